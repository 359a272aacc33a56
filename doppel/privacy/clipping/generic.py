"""The rule for every layer without a faster one: its vector-Jacobian product, mapped over units by ``torch.func``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from doppel.privacy.clipping.arithmetic import add_to_grad, erase_units, formed_norm, wide_dtype
from doppel.privacy.clipping.call import LayerCall, ObserveCall, expand_rows
from doppel.privacy.clipping.draws import NoteDraws
from doppel.privacy.clipping.embedding import refuse_flat_ids
from doppel.privacy.clipping.formulas import LayerBody
from doppel.privacy.clipping.rule import LayerRule, UnitLayout, UnsupportedLayerError, called_twice_error

#: Numbers that per-unit gradients of one block of units may have: 128 MiB in float32.
BLOCK_NUMBERS = 2**25
#: What a wrong use of a layer, or what torch.func cannot map, ends in.
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
_T = TypeVar("_T")


class GenericRule(LayerRule):
    """A unit's gradient is formed: the layer is run again for each unit alone, and its output gradient pulled back.

    Works on whatever ``torch.func`` can map over units: convolutions, attention, modules of one's own. Calls of a
    module, and modules that share a parameter, add up in each unit's gradient before its norm is taken, so cross terms
    need no formula. Units run in blocks whose gradients take no more than :data:`BLOCK_NUMBERS`; gradients of a single
    block are kept, and those of several are formed again for the clipped sum.

    Formal guarantees:
        *The vector whose norm is taken is the vector that is clipped.* A sum of squares cannot cancel: its rounding is
        bounded (:func:`.arithmetic.formed_norm`), whatever rounding did to the vector itself, in half precision too. A
        vector that is formed again is scaled down where it came out longer than before. So ‖cᵢgᵢ‖ ≤ C as computed, for
        any layer, any autocast and kernels that do not repeat themselves.

        *What is exact.* In the first capture, and whenever the forms of the inputs leave open which of them have rows,
        the outputs of all units alone are compared with the output of the layer. A layer that mixes rows, draws random
        numbers of its own kind or keeps a state gives others, and is refused by name. Dropout within the layer is
        given the mask that it had.

    Args:
        name: As of the base class.
        module: As of the base class.
        owned: The trainable parameters by their names in the module: its own and, for a module that uses its
            children's without calling them, those of all its children.
    """

    def __init__(self, name: str, module: nn.Module, owned: dict[str, nn.Parameter]) -> None:
        self.name, self.module = name, module
        self._owned = owned
        self._body = LayerBody(module, owned)
        self.group: list[GenericRule] = [self]
        self._answers: dict[tuple[Any, ...], tuple[bool, ...]] = {}
        self._draws_nothing: set[tuple[bool, ...]] = set()
        self.reset()

    @property
    def trained_parameters(self) -> list[nn.Parameter]:
        return list({id(parameter): parameter for parameter in self._owned.values()}.values())

    @property
    def num_shared_numbers(self) -> int:
        """Numbers of one unit's gradient, with all that share a parameter."""
        return sum(p.numel() for p in {id(p): p for rule in self.group for p in rule.trained_parameters}.values())

    def reset(self) -> None:
        super().reset()
        self._calls: list[LayerCall] = []
        self._draws: list[Tensor | None] = []
        self._members: list[GenericRule] = []
        self._erased: Tensor | None = None

    # -------------------------------------------------------------------------------- forward
    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the layer's random numbers, and refuse a forward pass that changes its own input."""
        forward, own = self.module.forward, self.module.__dict__.get("forward")

        def watched_forward(*args: Any, **kwargs: Any) -> Any:
            inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            versions = [x._version for x in inputs]
            output = self._noting_draws(lambda: forward(*args, **kwargs))
            if [x._version for x in inputs] != versions:
                raise UnsupportedLayerError(
                    f"module '{self.name}' ({type(self.module).__name__}) changes its input in place, so it cannot be "
                    "run again for each row: use the out-of-place operation (such as ReLU(inplace=False))"
                )
            return output

        self.module.forward = watched_forward
        try:
            yield
        finally:
            del self.module.forward
            if own is not None:
                self.module.forward = own

    def _noting_draws(self, forward: Callable[[], _T]) -> _T:
        modes = tuple(module.training for module in self.module.modules())
        self._draws = []
        if modes in self._draws_nothing:
            return forward()
        with NoteDraws() as noted, sdpa_kernel(SDPBackend.MATH):  # the other kernels show no mask
            output = forward()
        self._draws = noted.draws
        if not noted.draws:
            self._draws_nothing.add(modes)
        return output

    def observe_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, layout: UnitLayout, is_again: bool
    ) -> Any:
        """The output that the model goes on with; a checkpoint runs the call ``is_again``, for its inputs alone."""
        if not is_again and self._seen_calls:
            raise called_twice_error(self)
        leaves, structure = tree_flatten(output)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        outputs = [self.prepare_output(leaves[i], layout) for i in places]
        if not outputs:
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) has trained parameters, but its forward returns "
                "no tensor that a loss can depend on: return it, or freeze the module"
            )
        call = LayerCall(self._body, args, kwargs, outputs, layout, self._draws)
        inputs = call.inputs
        if not is_again:
            self.is_recorded, self.layout = True, layout
            self._calls.append(call)
            if self._answer(call) is not None:
                call.outputs = None
        seen = ObserveCall.apply(call, len(outputs), *outputs, *inputs)
        call.inputs = []  # autograd saves them until the backward pass
        for place, leaf in zip(places, seen, strict=True):
            leaves[place] = leaf
        return tree_unflatten(leaves, structure)

    def adopt_call(self, layout: UnitLayout, device: str, dtype: torch.dtype, is_autocast: bool) -> LayerCall:
        """A call that a fast rule has seen, of a layer whose only input has the rows that its output has."""
        tensor = self.trained_parameters[0].detach()  # stands for the input, which the backward pass brings
        with torch.autocast(device, dtype, is_autocast):
            call = LayerCall(self._body, (tensor,), {}, (tensor,), layout, ())
        call.inputs, call.outputs, call.is_of_rows = [], None, True
        self.is_recorded, self.layout = True, layout
        self._calls.append(call)
        return call

    def expand_output(self, output: Tensor, layout: UnitLayout) -> Tensor:
        if isinstance(self.module, nn.Embedding):
            refuse_flat_ids(self.name, output)
        output = expand_rows(output, layout.num_rows)
        if not output.dim() or len(output) != layout.num_rows:
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(self.module).__name__}) gave an output of shape {tuple(output.shape)}, "
                f"but its first dimension must be the {layout.num_rows} rows of the micro-batch: keep the batch "
                "dimension first (batch_first=True), give each row a copy of its own (expand), or freeze the module"
            )
        return output

    def summarise(self, inputs: Tensor, grads: Tensor, layout: UnitLayout) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError("the calls of a layer are summed up in finish()")

    # -------------------------------------------------------------------------------- norms
    def finish(self) -> None:
        if not self._seen_calls:
            return
        for call in self._seen_calls:
            self._settle(call)
        members = [rule for rule in self.group if rule._seen_calls]
        self.operand_dtype = wide_dtype(self.trained_parameters[0].dtype)
        if self is not members[-1]:  # which answers for all, and forms the clipped sum before any is reset
            shape, device = (2, self.layout.num_units), self.trained_parameters[0].device
            self.squared_norms = torch.zeros(shape, dtype=self.operand_dtype, device=device)
            return
        self._members = members
        squared = []
        for units in self._blocks():
            gradients = self._gradients(units)
            squared.append(formed_norm(gradients.values()))
        self.squared_norms = torch.cat(squared, 1)
        if len(squared) == 1:
            self.kept = {str(key): grads for key, grads in gradients.items()}

    @property
    def _seen_calls(self) -> list[LayerCall]:
        return [call for call in self._calls if call.grads is not None]

    def _blocks(self) -> list[slice]:
        """Units whose gradients are held side by side. How many they are depends on nothing private."""
        size = max(BLOCK_NUMBERS // self.num_shared_numbers, 1)
        return [slice(start, start + size) for start in range(0, self.layout.num_units, size)]

    def _gradients(self, units: slice) -> dict[int, Tensor]:
        """By parameter the gradients of the units, [units, …] each, over all calls of all members."""
        total: dict[int, Tensor] = {}
        for rule in self._members:
            for call in rule._seen_calls:
                for key, grads in rule._or_refuse(call.gradients, units).items():
                    grads = grads.flatten(1).to(wide_dtype(grads.dtype))
                    total[key] = total[key] + grads if key in total else grads
        return total

    # -------------------------------------------------------------------------------- whose is an input
    def _answer(self, call: LayerCall) -> tuple[bool, ...] | None:
        """Which inputs have rows, where an earlier call has told."""
        if call.layout.num_units == 1 and self._answers:
            return call.guesses()[0]
        has_rows = self._answers.get(call.key)
        return has_rows if has_rows is not None and call.allows(has_rows) else None

    def _settle(self, call: LayerCall) -> None:
        """Find which inputs have rows: then the outputs of units alone are those of the layer."""
        if call.is_of_rows:  # whatever the forms of other calls' inputs have told
            call.has_rows = tuple(call.layout.num_units == 1 or len(x) == call.layout.num_rows for x in call.inputs)
        if call.has_rows is None:
            call.has_rows = self._answer(call)
        if call.has_rows is not None:
            return
        reasons = []
        for has_rows in call.guesses():
            try:
                self._or_refuse(self._compare, call, has_rows)
            except UnsupportedLayerError as error:
                reasons.append(error)
            else:
                if call.layout.num_units > 1:
                    self._answers[call.key] = has_rows
                call.outputs, call.has_rows = None, has_rows
                return
        raise reasons[0]

    def _compare(self, call: LayerCall, has_rows: tuple[bool, ...]) -> None:
        assert call.outputs is not None
        for units in self._blocks():
            for whole, alone in zip(call.outputs, call.outputs_of_units(has_rows, units), strict=True):
                expected = whole.unflatten(0, (call.layout.num_units, -1))[units]
                if alone.shape != expected.shape or _differs(alone, expected, call.is_autocast):
                    raise UnsupportedLayerError(self._refusal(
                        "gives another output for a unit alone than beside others: it mixes the rows of a batch, keeps "
                        "a state, draws random numbers that cannot be repeated, or its first dimension is not the "
                        "rows. Mend that, or freeze it"
                    ))  # fmt: skip

    def _or_refuse(self, function: Callable[..., _T], *args: Any) -> _T:
        """Run what may not be possible for this layer."""
        try:
            return function(*args)
        except (UnsupportedLayerError, torch.OutOfMemoryError):
            raise
        except _FAILURES as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise UnsupportedLayerError(self._refusal(
                f"cannot be run for each unit alone by torch.func ({reason}): let no control flow depend on data, "
                "change nothing in place, build it of layers that doppel.privacy.check names, or freeze it"
            )) from error  # fmt: skip

    def _refusal(self, what: str) -> str:
        return f"module '{self.name}' ({type(self.module).__name__}) {what}"

    # -------------------------------------------------------------------------------- clipped sum
    def erase(self, units: Tensor) -> None:
        super().erase(units)
        self._erased = units

    def add_clipped(self, factors: Tensor, scale: float) -> None:
        if not self._members:
            return
        parameters = {id(p): p for rule in self._members for p in rule.trained_parameters}
        if self.kept:
            for key, parameter in parameters.items():
                if str(key) in self.kept:
                    grads = self.kept[str(key)]
                    add_to_grad(parameter, factors.to(grads.dtype) @ grads, scale)
            return
        assert self.squared_norms is not None
        bounds = self.squared_norms.sum(0)
        for units in self._blocks():
            gradients = self._gradients(units)
            squared = formed_norm(gradients.values())[0]
            longer = (bounds[units] / squared).sqrt().clamp(max=1.0).nan_to_num(nan=0.0)  # 0/0
            erased = ~torch.isfinite(squared)
            if self._erased is not None:
                erased |= self._erased[units]
            for key, grads in gradients.items():
                weights = (factors[units] * longer).to(grads.dtype)
                add_to_grad(parameters[key], weights @ erase_units(grads, erased), scale)


def _differs(found: Tensor, expected: Tensor, is_autocast: bool) -> bool:
    """Whether a unit's numbers are others than rounding explains. A unit that is not finite tells nothing."""
    wide = torch.float64
    tolerance = 5e-2 if is_autocast or expected.dtype in (torch.float16, torch.bfloat16) else 1e-3
    size = expected.flatten(1).to(wide).norm(dim=1)
    distance = (found.to(wide) - expected.to(wide)).flatten(1).norm(dim=1)
    finite = torch.isfinite(size)
    if not finite.any():
        return False
    size, distance = size[finite], distance[finite]
    return not bool((distance <= tolerance * torch.maximum(size, 1e-3 * size.max())).all())
