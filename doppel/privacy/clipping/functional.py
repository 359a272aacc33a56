"""The rule of every layer without a formula: its vector-Jacobian product, mapped over units by ``torch.func``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from doppel.privacy.clipping.embedding import refuse_flat_ids
from doppel.privacy.clipping.formed import FormedPart
from doppel.privacy.clipping.refusals import UnsupportedLayerError
from doppel.privacy.clipping.rule import Capture, LayerRule, observed

#: Numbers that the gradients of one block of units may have: 128 MiB in float32.
BLOCK_NUMBERS = 2**25
#: What a wrong use of a layer, or what torch.func cannot map, ends in.
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
_MAX_GUESSES = 16


class FunctionalRule(LayerRule):
    """A unit's gradient is formed: the layer is run again for each unit alone, and its output gradient pulled back.

    Works on whatever ``torch.func`` can map over units, where rows are the first dimension: convolutions, GroupNorm,
    attention, modules of one's own. Units run in blocks whose gradients take no more than :data:`BLOCK_NUMBERS`;
    gradients of a single block are kept, and those of several are formed again for the clipped sum.

    Formal guarantees:
        *The vector whose norm is taken is the vector that is clipped.* A sum of squares cannot cancel: its rounding is
        bounded (:meth:`.formed.FormedPart.squares`), whatever rounding did to the vector itself, in half precision too.
        A vector that is formed again is scaled down where it came out longer than before. So ‖cᵢgᵢ‖ ≤ C as computed,
        for any layer, any autocast and kernels that do not repeat themselves.

        *What is exact.* The outputs of all units alone are compared with those of the layer, the first time that its
        inputs have these forms. A layer that mixes rows or keeps a state gives others, and is refused by name. One that
        draws random numbers is always refused: a unit alone would be given other ones.

    Args:
        name: As of the base class.
        module: As of the base class.
        owned: The trainable parameters by their names in the module: its own and, for a module that uses its
            children's without calling them, those of all its children. One parameter may have several names.
    """

    min_dims = 1

    def __init__(self, name: str, module: nn.Module, owned: dict[str, nn.Parameter]) -> None:
        super().__init__(name, module)
        self.keys = {own: str(id(parameter)) for own, parameter in owned.items()}
        self.owned = {str(id(parameter)): parameter for parameter in owned.values()}
        self.compared: set[tuple[str, tuple[bool, ...]]] = set()  # arguments' structure, and which have rows

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        return list(self.owned.values())

    @property
    def formed_parameters(self) -> list[nn.Parameter]:
        return []  # each call has buffers of its own

    def call(self, capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = tree_flatten(self.plain_forward(*args, **kwargs))
        floating = [place for place, leaf in enumerate(leaves) if _is_floating(leaf)]
        outputs = [_expand_rows(leaves[place], capture.num_rows) for place in floating]
        for own in outputs:
            if isinstance(self.module, nn.Embedding):
                refuse_flat_ids(self.name, own)
            self.check_rows(own, capture)
        if not outputs:
            raise self.refusal(
                "has trained parameters, but its forward returns no tensor that a loss can depend on: return it, or "
                "freeze the module"
            )
        arguments, structure_of_arguments = tree_flatten((args, kwargs))
        places = [place for place, x in enumerate(arguments) if isinstance(x, Tensor)]
        inputs = [arguments[place].detach() for place in places]
        device = outputs[0].device.type
        call = FunctionalCall(
            self,
            arguments=[None if isinstance(x, Tensor) else x for x in arguments],
            structure=structure_of_arguments,
            places=places,
            num_units=capture.num_units,
            num_rows=capture.num_rows,
            autocast=(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)),
        )
        if (str(structure_of_arguments), call.guesses(inputs)[0]) not in self.compared:
            call.outputs = [x.detach() for x in outputs]
        seen = observed(self, capture, capture.start, call, len(outputs), *outputs, *inputs)
        for place, x in zip(floating, seen, strict=True):
            leaves[place] = x
        return tree_unflatten(leaves, structure)

    def compute(  # type: ignore[override]
        self, ctx: Any, call: FunctionalCall, num_outputs: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.save_for_backward(*tensors[num_outputs:])
        return tuple(output.view_as(output) for output in tensors[:num_outputs])

    def pull(self, ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.capture.is_open:
            ctx.call.inputs, ctx.call.grads = ctx.saved_tensors, grads
            ctx.capture.calls.append(ctx.call)
        return None, None, *grads, *[None] * (len(ctx.needs_input_grad) - 5 - len(grads))

    def refusal(self, what: str) -> UnsupportedLayerError:
        """Say of the layer what it does."""
        return UnsupportedLayerError(f"module '{self.name}' ({type(self.module).__name__}) {what}")


@dataclass(eq=False)
class FunctionalCall:
    """One call of a layer: from its inputs and output gradients each unit's gradient can be formed.

    Args:
        rule: Of the layer.
        arguments: As a flat tree, without its tensors.
        structure: Of the tree.
        places: Where tensors stand in it.
        num_units: Units U in the micro-batch.
        num_rows: Their rows.
        autocast: Device, dtype, and whether it is on.
        outputs: To compare with; none, where that was done.
        inputs: The tensors.
        grads: Of the outputs.
    """

    rule: FunctionalRule
    arguments: list[Any]
    structure: Any
    places: list[int]
    num_units: int
    num_rows: int
    autocast: tuple[str, torch.dtype, bool]
    outputs: list[Tensor] = field(default_factory=list)
    inputs: Sequence[Tensor] = ()
    grads: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        self.reached = self.rule.trained_parameters
        self._has_rows: tuple[bool, ...] = ()
        self._squared = torch.empty(0)
        self._part: FormedPart | None = None  # of all units

    # -------------------------------------------------------------------------------- norms
    def squares(self) -> Tensor:
        structure, refusals = str(self.structure), []
        for has_rows in self.guesses(self.inputs):
            try:
                self._form(has_rows)
            except UnsupportedLayerError as error:
                refusals.append(error)
                if not self.outputs:  # which would tell whether another guess is right
                    break
            else:
                if self.num_units > 1:  # a unit alone tells nothing
                    self.rule.compared.add((structure, has_rows))
                return self._squared
        raise refusals[0]

    def guesses(self, inputs: Sequence[Tensor]) -> list[tuple[bool, ...]]:
        """For each input whether its first dimension is the rows, likeliest first; their outputs tell which is right.

        A mask of attention may have several entries for each row.
        """
        num_rows = self.num_rows
        if self.num_units == 1:
            return [tuple(x.dim() > 0 for x in inputs)]
        may_have = [x.dim() > 0 and (len(x) == num_rows or (x.dim() > 2 and len(x) % num_rows == 0)) for x in inputs]
        return list(product(*[(True, False) if may else (False,) for may in may_have]))[:_MAX_GUESSES]

    def _form(self, has_rows: tuple[bool, ...]) -> None:
        self._has_rows, squared = has_rows, []
        for units, outputs, part in self._of_units():
            if self.outputs:
                self._compare(outputs, units)
            squared.append(part.squares())
        self._squared = torch.cat(squared)
        self._part = part if len(squared) == 1 else None

    def _compare(self, outputs: Sequence[Tensor], units: slice) -> None:
        for alone, whole in zip(outputs, self.outputs, strict=True):
            expected = whole.unflatten(0, (self.num_units, -1))[units]
            if alone.shape != expected.shape or _differs(alone, expected, self.autocast[2]):
                raise self.rule.refusal(
                    "gives another output for a unit alone than beside others: it mixes the rows of a batch, keeps a "
                    "state, or its first dimension is not the rows. Mend that, or freeze it"
                )

    # -------------------------------------------------------------------------------- unit by unit
    def _of_units(self) -> Iterator[tuple[slice, Sequence[Tensor], FormedPart]]:
        """Block by block: the units, their outputs alone, and their gradients.

        How many units are side by side depends on nothing private.
        """
        size = max(BLOCK_NUMBERS // sum(p.numel() for p in self.reached), 1)
        for start in range(0, self.num_units, size):
            units = slice(start, start + size)
            try:
                outputs, gradients = self._run(units)
            except torch.OutOfMemoryError:
                raise
            except _FAILURES as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                raise self.rule.refusal(
                    f"cannot be run for each unit alone by torch.func ({reason}): let no control flow depend on data, "
                    "change nothing in place, draw nothing (MultiheadAttention(dropout=0); a Dropout beside it may "
                    "stay), build it of layers that doppel.privacy.check names, or freeze it"
                ) from error
            part = FormedPart(self.reached)
            for key, parameter in self.rule.owned.items():
                part.place(parameter, len(gradients[key])).copy_(gradients[key])
            yield units, outputs, part

    def _run(self, units: slice) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
        module, values = self.rule.module, {key: p.detach() for key, p in self.rule.owned.items()}

        def outputs_of(values: dict[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
            arguments = list(self.arguments)
            for place, x in zip(self.places, inputs, strict=True):
                arguments[place] = x
            args, kwargs = tree_unflatten(arguments, self.structure)
            buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}  # what is written is lost
            parameters = {name: values[key] for name, key in self.rule.keys.items()}
            output = functional_call(module, {**buffers, **parameters}, args, kwargs, tie_weights=False)
            return [_expand_rows(x, self.num_rows // self.num_units) for x in tree_leaves(output) if _is_floating(x)]

        def of_unit(grads: list[Tensor], inputs: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
            outputs, pull = vjp(lambda own: outputs_of(own, inputs), values)[:2]
            return outputs, pull([grad.to(x.dtype) for grad, x in zip(grads, outputs, strict=True)])[0]

        def split(x: Tensor) -> Tensor:
            return x.unflatten(0, (self.num_units, len(x) // self.num_units))[units]

        inputs = [split(x) if own else x for x, own in zip(self.inputs, self._has_rows, strict=True)]
        in_dims = (0, [0 if own else None for own in self._has_rows])
        device, dtype, is_autocast = self.autocast
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "There is a performance drop")
            stack.enter_context(torch.autocast(device, dtype, is_autocast, cache_enabled=False))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the others cannot be mapped, or only by a loop
            return vmap(of_unit, in_dims, randomness="error")([split(x) for x in self.grads], inputs)

    # -------------------------------------------------------------------------------- clipped sum
    def add(self, weights: Tensor, erased: Tensor | None) -> None:
        if self._part is not None:
            self._part.add(weights, erased)
            return
        for units, _, part in self._of_units():
            squared = part.squares()
            longer = (self._squared[units] / squared).sqrt().clamp(max=1.0).nan_to_num(nan=0.0)  # 0/0
            not_finite = ~torch.isfinite(squared)
            part.add(weights[units] * longer, not_finite if erased is None else not_finite | erased[units])


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _expand_rows(x: Tensor, num_rows: int) -> Tensor:
    """An output [1, …] that is broadcast over rows, as one with a row for each."""
    return x.expand(num_rows, *x.shape[1:]) if x.dim() and len(x) == 1 and num_rows > 1 else x


def _differs(found: Tensor, expected: Tensor, is_autocast: bool) -> bool:
    """Whether a unit's numbers are others than rounding explains. A unit that is not finite tells nothing."""
    tolerance = 5e-2 if is_autocast or expected.dtype in (torch.float16, torch.bfloat16) else 1e-3
    size = expected.flatten(1).double().norm(dim=1)
    distance = (found.double() - expected.double()).flatten(1).norm(dim=1)
    finite = torch.isfinite(size)
    if not finite.any():
        return False
    size, distance = size[finite], distance[finite]
    return not bool((distance <= tolerance * torch.maximum(size, 1e-3 * size.max())).all())
