"""The rule of every layer without a formula: its vector-Jacobian product, mapped over units by ``torch.func``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from doppel.privacy.clipping.arithmetic import Norms, add_to_grad, erase_units, formed_norm, wide_dtype
from doppel.privacy.clipping.embedding import refuse_flat_ids
from doppel.privacy.clipping.rule import Capture, KeepingRule, UnsupportedLayerError, observed

#: Numbers that the gradients of one block of units may have: 128 MiB in float32.
BLOCK_NUMBERS = 2**25
#: What a wrong use of a layer, or what torch.func cannot map, ends in.
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
_MAX_GUESSES = 16


@dataclass
class _Call:
    """One call of a layer: its arguments as a flat tree, where tensors stand in it, outputs to compare, autocast."""

    arguments: list[Any]
    structure: Any
    places: list[int]
    outputs: list[Tensor]
    autocast: tuple[str, torch.dtype, bool]
    inputs: Sequence[Tensor] = ()
    grads: Sequence[Tensor] | None = None


class FunctionalRule(KeepingRule):
    """A unit's gradient is formed: the layer is run again for each unit alone, and its output gradient pulled back.

    Works on whatever ``torch.func`` can map over units, where rows are the first dimension: convolutions, GroupNorm,
    attention, modules of one's own. Units run in blocks whose gradients take no more than :data:`BLOCK_NUMBERS`;
    gradients of a single block are kept, and those of several are formed again for the clipped sum.

    Formal guarantees:
        *The vector whose norm is taken is the vector that is clipped.* A sum of squares cannot cancel: its rounding is
        bounded (:func:`.arithmetic.formed_norm`), whatever rounding did to the vector itself, in half precision too. A
        vector that is formed again is scaled down where it came out longer than before. So ‖cᵢgᵢ‖ ≤ C as computed, for
        any layer, any autocast and kernels that do not repeat themselves.

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
        self.name, self.module, self.plain_forward = name, module, module.forward
        self._keys = {own: str(id(parameter)) for own, parameter in owned.items()}
        self._owned = {str(id(parameter)): parameter for parameter in owned.values()}
        self._num_units = self._num_rows = self._num_outputs = 1
        self._compared: set[tuple[str, tuple[bool, ...]]] = set()  # arguments' structure, and which have rows
        self.clear()

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        return list(self._owned.values())

    def clear(self) -> None:
        super().clear()
        self._call: _Call | None = None
        self._squared: Tensor | None = None
        self._has_rows: tuple[bool, ...] = ()
        self._erased: Tensor | None = None

    # -------------------------------------------------------------------------------- forward and backward
    def call(self, capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.watch(capture, args, kwargs, self.plain_forward(*args, **kwargs))

    def watch(self, capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Return the output that the model goes on with, whose gradient is observed."""
        leaves, structure = tree_flatten(output)
        floating = [place for place, leaf in enumerate(leaves) if _is_floating(leaf)]
        outputs = [_expand_rows(leaves[place], capture.num_rows) for place in floating]
        for own in outputs:
            if isinstance(self.module, nn.Embedding):
                refuse_flat_ids(self.name, own)
            self.check_rows(own, capture)
        if not outputs:
            raise self._refusal(
                "has trained parameters, but its forward returns no tensor that a loss can depend on: return it, or "
                "freeze the module"
            )
        arguments, structure_of_arguments = tree_flatten((args, kwargs))
        places = [place for place, x in enumerate(arguments) if isinstance(x, Tensor)]
        inputs = [arguments[place].detach() for place in places]
        if torch._C._current_graph_task_id() == -1:  # else a checkpoint runs the call again, for its inputs alone
            self._num_units, self._num_rows = capture.num_units, capture.num_rows
            device = outputs[0].device.type
            autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
            others = [None if isinstance(x, Tensor) else x for x in arguments]
            is_known = (str(structure_of_arguments), self._guesses(inputs)[0]) in self._compared
            compared = [] if is_known else [x.detach() for x in outputs]
            self._call = _Call(others, structure_of_arguments, places, compared, autocast)
        self._num_outputs = len(outputs)
        seen = observed(self, capture, capture.start, *outputs, *inputs)
        for place, x in zip(floating, seen, strict=True):
            leaves[place] = x
        return tree_unflatten(leaves, structure)

    def compute(self, ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*tensors[self._num_outputs :])
        return tuple(output.view_as(output) for output in tensors[: self._num_outputs])

    def pull(self, ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.capture.is_open:
            assert self._call is not None
            self._call.inputs, self._call.grads = ctx.saved_tensors, grads
        return *grads, *[None] * (len(ctx.needs_input_grad) - 3 - len(grads))

    # -------------------------------------------------------------------------------- norms
    def norms(self) -> Norms:
        assert self._call is not None
        structure, refusals = str(self._call.structure), []
        for has_rows in self._guesses(self._call.inputs):
            try:
                self._form(has_rows)
            except UnsupportedLayerError as error:
                refusals.append(error)
                if not self._call.outputs:  # which would tell whether another guess is right
                    break
            else:
                if self._num_units > 1:  # a unit alone tells nothing
                    self._compared.add((structure, has_rows))
                assert self._squared is not None
                return self._squared, None, None
        raise refusals[0]

    def _guesses(self, inputs: Sequence[Tensor]) -> list[tuple[bool, ...]]:
        """For each input whether its first dimension is the rows, likeliest first; their outputs tell which is right.

        A mask of attention may have several entries for each row.
        """
        num_rows = self._num_rows
        if self._num_units == 1:
            return [tuple(x.dim() > 0 for x in inputs)]
        may_have = [x.dim() > 0 and (len(x) == num_rows or (x.dim() > 2 and len(x) % num_rows == 0)) for x in inputs]
        return list(product(*[(True, False) if may else (False,) for may in may_have]))[:_MAX_GUESSES]

    def _form(self, has_rows: tuple[bool, ...]) -> None:
        assert self._call is not None
        self._has_rows, squared = has_rows, []
        for units, outputs, gradients in self._of_units():
            if self._call.outputs:
                self._compare(outputs, units)
            squared.append(formed_norm(gradients.values()))
        self._squared = torch.cat(squared)
        self.kept = gradients if len(squared) == 1 else {}

    def _compare(self, outputs: Sequence[Tensor], units: slice) -> None:
        assert self._call is not None
        for alone, whole in zip(outputs, self._call.outputs, strict=True):
            expected = whole.unflatten(0, (self._num_units, -1))[units]
            if alone.shape != expected.shape or _differs(alone, expected, self._call.autocast[2]):
                raise self._refusal(
                    "gives another output for a unit alone than beside others: it mixes the rows of a batch, keeps a "
                    "state, or its first dimension is not the rows. Mend that, or freeze it"
                )

    # -------------------------------------------------------------------------------- unit by unit
    def _of_units(self) -> Iterator[tuple[slice, Sequence[Tensor], dict[str, Tensor]]]:
        """Block by block: the units, their outputs alone, and their gradients [units, …] of each parameter, wide.

        How many units are side by side depends on nothing private.
        """
        size = max(BLOCK_NUMBERS // sum(p.numel() for p in self.trained_parameters), 1)
        for start in range(0, self._num_units, size):
            units = slice(start, start + size)
            try:
                outputs, gradients = self._run(units)
            except torch.OutOfMemoryError:
                raise
            except _FAILURES as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                raise self._refusal(
                    f"cannot be run for each unit alone by torch.func ({reason}): let no control flow depend on data, "
                    "change nothing in place, draw nothing (MultiheadAttention(dropout=0); a Dropout beside it may "
                    "stay), build it of layers that doppel.privacy.check names, or freeze it"
                ) from error
            yield units, outputs, {key: g.flatten(1).to(wide_dtype(g.dtype)) for key, g in gradients.items()}

    def _run(self, units: slice) -> tuple[Sequence[Tensor], dict[str, Tensor]]:
        call = self._call
        assert call is not None and call.grads is not None
        values = {key: parameter.detach() for key, parameter in self._owned.items()}

        def outputs_of(values: dict[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
            arguments = list(call.arguments)
            for place, x in zip(call.places, inputs, strict=True):
                arguments[place] = x
            args, kwargs = tree_unflatten(arguments, call.structure)
            buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}  # what is written is lost
            parameters = {name: values[key] for name, key in self._keys.items()}
            output = functional_call(self.module, {**buffers, **parameters}, args, kwargs, tie_weights=False)
            return [_expand_rows(x, self._num_rows // self._num_units) for x in tree_leaves(output) if _is_floating(x)]

        def of_unit(grads: list[Tensor], inputs: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
            outputs, pull = vjp(lambda own: outputs_of(own, inputs), values)[:2]
            return outputs, pull([grad.to(x.dtype) for grad, x in zip(grads, outputs, strict=True)])[0]

        def split(x: Tensor) -> Tensor:
            return x.unflatten(0, (self._num_units, len(x) // self._num_units))[units]

        inputs = [split(x) if own else x for x, own in zip(call.inputs, self._has_rows, strict=True)]
        in_dims = (0, [0 if own else None for own in self._has_rows])
        device, dtype, is_autocast = call.autocast
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "There is a performance drop")
            stack.enter_context(torch.autocast(device, dtype, is_autocast, cache_enabled=False))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # the others cannot be mapped, or only by a loop
            return vmap(of_unit, in_dims, randomness="error")([split(x) for x in call.grads], inputs)

    def _refusal(self, what: str) -> UnsupportedLayerError:
        return UnsupportedLayerError(f"module '{self.name}' ({type(self.module).__name__}) {what}")

    # -------------------------------------------------------------------------------- clipped sum
    def erase(self, units: Tensor) -> None:
        self.kept = {key: erase_units(grads, units) for key, grads in self.kept.items()}
        self._erased = units

    def add_clipped(self, weights: Tensor) -> None:
        assert self._squared is not None
        if self.kept:
            for key, grads in self.kept.items():
                add_to_grad(self._owned[key], weights.to(grads.dtype) @ grads, 1.0)
            return
        for units, _, gradients in self._of_units():
            squared = formed_norm(gradients.values())
            longer = (self._squared[units] / squared).sqrt().clamp(max=1.0).nan_to_num(nan=0.0)  # 0/0
            erased = ~torch.isfinite(squared)
            if self._erased is not None:
                erased |= self._erased[units]
            for key, grads in gradients.items():
                own = (weights[units] * longer).to(grads.dtype)
                add_to_grad(self._owned[key], own @ erase_units(grads, erased), 1.0)


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
