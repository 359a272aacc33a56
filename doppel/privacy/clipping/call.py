"""One call of a layer within a capture, and the same call again for each unit alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from doppel.privacy.clipping.draws import RepeatDraws
from doppel.privacy.clipping.formulas import LayerBody
from doppel.privacy.clipping.rule import UnitLayout

_MAX_GUESSES = 16


class LayerCall:
    """What a layer was called with in a capture, and what came back as the gradient of its output.

    Args:
        body: The layer.
        args: Positional arguments of the layer's forward.
        kwargs: Its named arguments.
        outputs: Its floating outputs, [rows, …] each.
        layout: Units and rows of the micro-batch.
        draws: Random numbers that it has drawn.

    Attributes:
        is_autocast: Whether it ran under autocast.
        inputs: The tensors among the arguments.
        grads: Gradients of the outputs; None until the backward pass, and if the loss does not depend on them.
        has_rows: For each input whether its first dimension is the rows; None until that is settled.
        is_of_rows: Whether an input of as many rows as the micro-batch is known to be them.
        outputs: As the argument; None where nothing is left to be compared with them.
    """

    def __init__(
        self,
        body: LayerBody,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: Sequence[Tensor],
        layout: UnitLayout,
        draws: Sequence[Tensor | None],
    ) -> None:
        leaves, self._structure = tree_flatten((args, kwargs))
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.inputs = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
        self.outputs: list[Tensor] | None = [output.detach() for output in outputs]
        self.grads: tuple[Tensor, ...] | None = None
        self.has_rows: tuple[bool, ...] | None = None
        self.is_of_rows = False
        self.layout = layout
        self._body = body
        self._draws = draws
        self._device = outputs[0].device.type
        self.is_autocast = torch.is_autocast_enabled(self._device)
        self._autocast_dtype = torch.get_autocast_dtype(self._device)

    @property
    def key(self) -> tuple[Any, ...]:
        """Calls of one key take their arguments in the same way, as far as their forms can say."""
        return (len(self._leaves), *((x.dim(), x.dim() > 0 and len(x) == 1) for x in self.inputs))

    def receive(self, inputs: Sequence[Tensor], grads: tuple[Tensor, ...]) -> None:
        """Take what the backward pass brings.

        Raises:
            RuntimeError: It brings something twice.
        """
        if self.grads is not None:
            raise RuntimeError("a layer's output gradient came twice in one capture: call backward once per capture")
        self.inputs, self.grads = list(inputs), tuple(grad.detach() for grad in grads)

    # -------------------------------------------------------------------------------- whose is an input
    def guesses(self) -> list[tuple[bool, ...]]:
        """For each input whether its first dimension is the rows, likeliest first."""
        num_units, num_rows = self.layout.num_units, self.layout.num_rows
        if num_units == 1:
            return [tuple(x.dim() > 0 for x in self.inputs)]  # a unit alone is called with everything
        choices = [
            (True, False)
            if x.dim() and len(x) == num_rows
            else (False, True)
            if x.dim() > 2 and len(x) > num_rows and len(x) % num_rows == 0
            else (False,)
            for x in self.inputs
        ]
        return list(product(*choices))[:_MAX_GUESSES]

    def allows(self, has_rows: tuple[bool, ...]) -> bool:
        """Whether the inputs' forms allow nothing but this answer of an earlier call."""
        num_units, num_rows = self.layout.num_units, self.layout.num_rows
        if num_units == 1:
            return has_rows == self.guesses()[0]
        return all(len(x) % num_rows == 0 if own else not (x.dim() and len(x) == num_rows)
                   for x, own in zip(self.inputs, has_rows, strict=True))  # fmt: skip

    # -------------------------------------------------------------------------------- again, unit by unit
    def outputs_of_units(self, has_rows: tuple[bool, ...], units: slice) -> list[Tensor]:
        """The outputs of each unit alone, [units, rows of a unit, …] each."""
        values = self._body.values()

        def run(_: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
            return vjp(lambda own: self._run(own, inputs), values)[0]  # without, autocast casts no bias of a Conv1d

        numbers = torch.arange(self.layout.num_units, device=self._device)[units]
        return list(self._mapped(run, numbers, has_rows, units))

    def gradients(self, units: slice) -> dict[int, Tensor]:
        """The gradients of each unit with respect to the layer's parameters, [units, …] each."""
        assert self.grads is not None and self.has_rows is not None
        values = self._body.values()

        def run(grads: list[Tensor], inputs: list[Tensor]) -> dict[int, Tensor]:
            outputs, pull = vjp(lambda own: self._run(own, inputs), values)[:2]
            return pull(tuple(grad.to(out.dtype) for grad, out in zip(grads, outputs, strict=True)))[0]

        return self._mapped(run, [self._of_units(grad, units) for grad in self.grads], self.has_rows, units)

    def _mapped(self, run: Callable[..., Any], first: Any, has_rows: tuple[bool, ...], units: slice) -> Any:
        """``run`` for each unit, under the autocast and with the random numbers of the call itself."""
        inputs = [self._of_units(x, units) if own else x for x, own in zip(self.inputs, has_rows, strict=True)]
        dims = [0 if own else None for own in has_rows]
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "There is a performance drop")
            stack.enter_context(
                torch.autocast(self._device, self._autocast_dtype, self.is_autocast, cache_enabled=False)
            )
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the others cannot be mapped, or only by a loop
            stack.enter_context(RepeatDraws(self._draws, self.layout.num_units, units))
            return vmap(run, (0, dims), randomness="different")(first, inputs)

    def _run(self, values: dict[int, Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        leaves = list(self._leaves)
        for place, x in zip(self._places, inputs, strict=True):
            leaves[place] = x
        args, kwargs = tree_unflatten(leaves, self._structure)
        return tuple(expand_rows(x, self.layout.rows_per_unit) for x in floating(self._body.run(values, args, kwargs)))

    def _of_units(self, x: Tensor, units: slice) -> Tensor:
        return x.unflatten(0, (self.layout.num_units, len(x) // self.layout.num_units))[units]


class ObserveCall(torch.autograd.Function):
    """Identity on a layer's outputs, whose backward shows inputs and output gradients to the :class:`LayerCall`.

    As :class:`~.observer.ObserveGradient` it makes autograd refuse a change in place of an input or an output.
    """

    @staticmethod
    def forward(ctx: Any, call: LayerCall, num_outputs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.num_inputs = call, len(tensors) - num_outputs
        ctx.save_for_backward(*tensors[num_outputs:])
        return tuple(output.view_as(output) for output in tensors[:num_outputs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.call.receive(ctx.saved_tensors, grads)
        return (None, None, *grads, *[None] * ctx.num_inputs)


def floating(output: Any) -> list[Tensor]:
    """The tensors of an output that can have a gradient."""
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def expand_rows(x: Tensor, num_rows: int) -> Tensor:
    """An output [1, …] that is broadcast over rows, as one with a row for each."""
    return x.expand(num_rows, *x.shape[1:]) if x.dim() and len(x) == 1 and num_rows > 1 else x
