"""Per-sample gradient clipping by book-keeping: one forward, one backward, one GEMM per weight."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import HIGHER, UNIT, Norms, unit_of, wide_dtype
from doppel.privacy.clipping.formed import FormedGradients
from doppel.privacy.clipping.functional import FunctionalRule
from doppel.privacy.clipping.groups import add_products, cross_terms
from doppel.privacy.clipping.held_weights import HeldWeights
from doppel.privacy.clipping.linear import LinearRule
from doppel.privacy.clipping.parameter_use import ParameterUseAudit
from doppel.privacy.clipping.refusals import changed_in_place
from doppel.privacy.clipping.registry import build_rules
from doppel.privacy.clipping.rule import Capture, ObservedLayer, reentrant_checkpoint_error


class PerSampleClipper:
    """Turns one backward pass over a micro-batch into Σᵢ clip(gᵢ), and forms no per-sample gradient of common layers.

    Example::

        clipper = PerSampleClipper(model, max_grad_norm=0.1)
        for micro_batch in micro_batches:
            with clipper.capture(num_units=32):
                per_row_losses(model, micro_batch).sum().backward()
            norms = clipper.accumulate()

    During :meth:`capture` all trainable parameters are out of autograd, so that the backward pass forms no weight
    gradient; the output gradients of the trainable layers are observed instead, and give the exact norms (see the layer
    rules). :meth:`accumulate` then forms the clipped weight gradients by one GEMM per weight ("book-keeping", Bu et
    al., 2023). Outside ``capture`` the model carries no hook. Which layers are exact and which are refused:
    ``docs/own-model.md``.

    Formal guarantees:
        Let gᵢ be the gradient, by all trainable parameters together, of the sum of the losses of unit i's rows. One
        ``capture``/``accumulate`` adds Σᵢ cᵢgᵢ to the ``.grad`` fields, with cᵢ = min(1, C / (‖gᵢ‖'·(1 + η))), and
        cᵢ = 0 where ‖gᵢ‖' is not finite. ‖gᵢ‖' ≥ ‖gᵢ‖ is the computed norm with room for its rounding.

        *Sensitivity.* cᵢ is a function of unit i alone, and ‖cᵢgᵢ‖ ≤ C. So one unit more or less changes the sum over a
        logical batch (all its micro-batches, on all ranks) by at most C, which is what the Gaussian mechanism with
        standard deviation σC needs. No step is skipped, whatever the values: a skip would depend on the data.

        *Conditions on the caller.* The loss of a row depends on that row's data only; rows are the first dimension of
        every activation, and row r of each layer is row r of the micro-batch; all rows of one unit are in one capture.

        *Rounding.* The squared norm N² is a sum of terms that may cancel until float32 keeps no digit, and a row can be
        made so. So each rule bounds, in the worst case and for sums in any order, what rounding may hide of N² (e) and
        by what length the computed cᵢgᵢ may differ from its formula (f for each weight; :class:`.groups.Grams`):
        ‖gᵢ‖' = √(N² + Σe) + √(2Σf²), where 2 makes up for a tied weight, which has two of them. ‖cᵢgᵢ‖ ≤ C then holds
        for the exact norm of cᵢgᵢ as computed and summed over the unit's positions. In float32 it costs utterances
        .03 to .13 % of their contribution (docs/performance.md). η is 152 units of rounding: half of what
        sums of squares may lose, and 16 for roots, quotients and factors; in float16 2⁻¹⁰, for what falls between its
        smallest numbers (:func:`.arithmetic.centre_operands`). Not covered is the sum over units, which is never
        rounded to half precision.

    Args:
        model: The model; its parameters with ``requires_grad`` are clipped. Freeze before building the
            clipper.
        max_grad_norm: The bound C > 0 on the norm of each unit's gradient; ``float("inf")`` clips nothing.

    Attributes:
        max_grad_norm: The bound C.
        rules: The layers that are clipped, each with how.
        num_nonfinite: How many units have contributed zero because their norm was not finite. It is a private
            number.

    Raises:
        UnsupportedLayerError: If a trainable parameter has no exact rule.
        ValueError: If ``max_grad_norm`` is not positive, or nothing is trainable.
    """

    def __init__(self, model: nn.Module, max_grad_norm: float) -> None:
        if not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is {max_grad_norm}, but it must be positive (inf: no clipping)")
        self.max_grad_norm = float(max_grad_norm)
        self._bound = 2.0 ** math.ceil(math.log2(max_grad_norm)) if math.isfinite(max_grad_norm) else 1.0
        self._model = model
        self._parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("the model has no trainable parameter, so there is nothing to clip: unfreeze some")
        self._all_parameters, self._modules = list(model.parameters()), list(model.modules())  # ids stay theirs
        self._tables: list[dict[str, Any]] = [x for m in self._modules for x in (m._modules, m._parameters)]
        self._structure = self._found_structure()
        self.rules = build_rules(model)
        linear = [rule for rule in self.rules if isinstance(rule, LinearRule)]
        self._num_grams = sum(rule.trains_weight and not rule.is_formed for rule in self.rules)
        self._formed = FormedGradients(list({id(p): p for rule in self.rules for p in rule.formed_parameters}.values()))
        of_linear = {id(p): p for rule in linear for p in (rule.weight, rule.bias) if p is not None}
        self._weights = HeldWeights(list(of_linear.values()))
        self._constant = functools.cache(torch.tensor)
        self._num_nonfinite: Tensor | None = None
        self._capture: Capture | None = None
        self._is_active = self._is_closed = self._is_audited = self._is_step = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_grad_norm={self.max_grad_norm}, num_layers={len(self.rules)})"

    @property
    def num_nonfinite(self) -> int:
        """How many units have contributed zero because their norm was not finite. It is a private number."""
        return 0 if self._num_nonfinite is None else int(self._num_nonfinite)

    @property
    def num_bytes_kept(self) -> int:
        """Bytes of units' gradients, and of factors of them, that are held between backward pass and clipped sum."""
        if self._capture is None:
            return 0
        tensors = [part.gradients for part in self._formed.parts]
        for shared in self._capture.inputs:
            tensors += [shared.A, *(G for _, _, G, _ in shared.readers)]
        return sum(x.nbytes for x in {id(x): x for x in tensors}.values() if x is not None)

    def begin_step(self) -> None:
        """Make copies of weights in half precision once from here on, until :meth:`end_step`: weights must not change.

        Otherwise each capture makes them. Copies of an earlier step are made anew at once, in their place, so that a
        recorded capture, which runs nothing on the host, reads those of this step.
        """
        self._weights.renew()
        self._is_step = True

    def end_step(self) -> None:
        """Let weights change."""
        self._is_step = False

    def close(self) -> None:
        """Free all buffers; the clipper cannot be used afterwards."""
        self._reset()
        self._weights, self._constant = HeldWeights([]), functools.cache(torch.tensor)
        self._is_closed = True

    # -------------------------------------------------------------------------------- capture
    @contextmanager
    def capture(self, num_units: int, rows_per_unit: int = 1) -> Iterator[PerSampleClipper]:
        """Yield within this block, run one forward and one backward of the *sum* of the per-row losses.

        Args:
            num_units: Units in the micro-batch.
            rows_per_unit: Rows of each unit, consecutive in the batch; their losses add up and are clipped
                together.

        Yields:
            The clipper.

        Raises:
            UnsupportedLayerError: If a layer is used in a way that has no exact rule.
            RuntimeError: If the clipper is busy, closed, or parameters were frozen or unfrozen since it was
                built.
        """
        if num_units < 1 or rows_per_unit < 1:
            raise ValueError(f"a capture needs at least one unit and one row, not {num_units} × {rows_per_unit}")
        self._check_ready()
        if not self._is_step:
            self._weights.forget()
        capture = self._capture = Capture(
            num_units, rows_per_unit, self._formed, self._weights, self._num_grams, self._constant
        )
        self._is_active = True
        try:
            for _, parameter in self._parameters:
                parameter.requires_grad_(False)
            with capture.observing(self.rules, None if self._is_audited else self._audit()):
                yield self
        except BaseException as error:
            self._reset()
            if isinstance(error, RuntimeError) and _is_in_place_error(error):
                raise changed_in_place() from error
            raise
        finally:
            self._is_active = False
            for _, parameter in self._parameters:
                parameter.requires_grad_(True)
        self._is_audited |= bool(capture.started)

    def _audit(self) -> ParameterUseAudit:
        owners = {id(rule.module): frozenset(map(id, rule.trained_parameters)) for rule in self.rules}
        followed = frozenset(id(rule.module) for rule in self.rules if isinstance(rule, FunctionalRule))
        return ParameterUseAudit(self._parameters, owners, followed)

    def _check_ready(self) -> None:
        if self._is_closed:
            raise RuntimeError("this clipper was closed: build a new one")
        if self._is_active or (self._capture is not None and self._capture.started):
            raise RuntimeError("the last capture was not finished: call accumulate() after each capture")
        if self._found_structure() != self._structure:
            raise RuntimeError(
                "parameters were frozen, unfrozen or replaced since the clipper was built: build a new one"
            )

    def _found_structure(self) -> tuple[list[int], list[bool]]:
        """Name by id what each module holds, and tell which parameters are trained: a walk over the model is slow."""
        held = chain.from_iterable(table.values() for table in self._tables)
        return list(map(id, held)), [p.requires_grad for p in self._all_parameters]

    def _reset(self) -> None:
        if self._capture is not None:
            self._capture.close()
            self._capture = None

    # -------------------------------------------------------------------------------- clipped sum
    @torch.no_grad()
    def accumulate(self, loss_scale: float = 1.0, on_ready: Callable[[nn.Parameter], None] | None = None) -> Tensor:
        """Add Σᵢ clip(gᵢ) of the captured micro-batch to each ``.grad``; buffers are freed layer by layer.

        Nothing here waits for a GPU: units whose norm is not finite are erased without asking whether there are any.

        Args:
            loss_scale: The factor by which the loss was multiplied before ``backward`` (float16). It is taken
                out again: norms, clipping and the sum are those of the unscaled loss.
            on_ready: Called with each parameter as soon as its ``.grad`` holds all of this micro-batch, so that work on
                it (a reduction over ranks) can overlap the rest. Parameters that the micro-batch does not reach are
                not reported.

        Returns:
            The norms ‖gᵢ‖ before clipping, [num_units], in float32 (float64 for a float64 model). They are
            private.

        Raises:
            RuntimeError: If no backward ran inside a capture.
        """
        capture = self._capture
        try:
            for rule in () if capture is None else capture.without_grad:
                if rule not in capture.started:  # type: ignore[union-attr]
                    raise reentrant_checkpoint_error(rule)
            with torch.autocast(self._parameters[0][1].device.type, enabled=False):  # sums are wide under it, too
                norms = None if capture is None else self._norms(capture)
                if norms is None:
                    raise RuntimeError(
                        "nothing was captured: run forward and backward inside `with clipper.capture(...)`"
                    )
                assert capture is not None
                capture.end_backward()
                norm, safe = norms if loss_scale == 1.0 else (norms[0] / loss_scale, norms[1] / loss_scale)
                self._add_clipped(capture, safe, 1.0 / loss_scale, on_ready)
                return norm
        finally:
            self._reset()

    def _norms(self, capture: Capture) -> tuple[Tensor, Tensor] | None:
        """Norm of each unit [U]: as computed, and a bound that the true one does not exceed; None without any."""
        wide = wide_dtype(self._parameters[0][1].dtype)
        found: list[Norms] = [grams.norms() for grams in capture.grams.values()]
        found += [(part.squares(), None, None) for part in (*self._formed.parts, *capture.calls)]
        found += cross_terms(capture.inputs)
        if not found:
            return None
        squares, room, longer = (_sum(x) for x in zip(*found, strict=True))
        assert squares is not None
        squares.clamp_(min=0.0)
        safe = squares.sqrt() if room is None else squares.add(room, alpha=HIGHER * UNIT).sqrt_()
        if longer is not None:
            safe.add_(longer.sqrt_(), alpha=math.sqrt(2.0) * UNIT)
        return squares.sqrt().to(wide), safe.to(wide)

    def _add_clipped(
        self, capture: Capture, safe_norms: Tensor, scale: float, on_ready: Callable[[nn.Parameter], None] | None
    ) -> None:
        dtypes = {safe_norms.dtype, *(x.flat_A.dtype for x in capture.inputs if x.flat_A is not None)}
        dtypes.update(part.gradients.dtype for part in self._formed.parts if part.gradients is not None)
        margin = 2.0**-10 if torch.float16 in dtypes else 152.0 * max(unit_of(wide_dtype(x)) for x in dtypes)
        factors = (self.max_grad_norm / (1.0 + margin) / safe_norms).clamp_(max=1.0)
        nonfinite = safe_norms.lt(math.inf).logical_not_()
        if self._num_nonfinite is None:
            self._num_nonfinite = torch.zeros((), dtype=torch.int64, device=nonfinite.device)
        self._num_nonfinite += nonfinite.sum()
        factors.masked_fill_(nonfinite, 0.0)
        erased = nonfinite if may_be_any(nonfinite) else None  # 0 · nan is nan
        added = _ignore if on_ready is None else self._counted(capture, on_ready)
        weights = factors if scale == 1.0 else factors * scale
        for part in (*self._formed.parts, *capture.calls):
            reached = part.reached
            part.add(weights, erased)
            for parameter in reached:
                added(parameter)
        add_products(capture.inputs, factors, scale, self._bound, erased, added)

    def _counted(self, capture: Capture, on_ready: Callable[[nn.Parameter], None]) -> Callable[[nn.Parameter], None]:
        """Return what is called at each use of a parameter: of a tied weight, the last finishes it."""
        users = Counter(id(p) for part in (*self._formed.parts, *capture.calls) for p in part.reached)
        users.update(id(weight) for shared in capture.inputs for weight, *_ in shared.readers)

        def added(parameter: nn.Parameter) -> None:
            users[id(parameter)] -= 1
            if users[id(parameter)] == 0:
                on_ready(parameter)

        return added


def may_be_any(flags: Tensor) -> bool:
    """Return whether any is true, where that is known: a GPU would have to be waited for."""
    return bool(flags.numpy().any()) if flags.device.type == "cpu" else True


def _ignore(parameter: nn.Parameter) -> None:
    pass


def _sum(terms: Iterable[Tensor | None]) -> Tensor | None:
    there = [x for x in terms if x is not None]
    return torch.stack(there).sum(0) if len(there) > 1 else next(iter(there), None)


def _is_in_place_error(error: RuntimeError) -> bool:
    return ObservedLayer.__name__ in str(error) or "inplace" in str(error)
