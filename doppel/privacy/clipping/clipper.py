"""Per-sample gradient clipping by book-keeping: one forward, one backward, one GEMM per weight."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from doppel.privacy.clipping.arithmetic import wide_dtype
from doppel.privacy.clipping.observer import ModelObserver, reentrant_checkpoint_error
from doppel.privacy.clipping.registry import build_rules
from doppel.privacy.clipping.rule import LayerRule, ObserveGradient, UnitLayout, UnsupportedLayerError


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

        *Rounding.* The squared norm is a sum of terms that may cancel until float32 keeps no digit, and a row can be
        made so. So each rule bounds what rounding may hide, in the worst case and for sums in any order
        (:func:`.arithmetic.rounding`), and ‖gᵢ‖'² is the sum of both: ‖cᵢgᵢ‖ ≤ C holds for cᵢgᵢ as computed and summed
        over the unit's positions. It costs utterances at most 0.2 % of their contribution
        (``benchmarks/privacy_price.py``). η covers sums of squares: 8 units of rounding where products are formed from
        float32 or float64, one unit of half precision where the scaled operands are rounded to it (in float16 around
        peaks of their own, :func:`.arithmetic.centre_operands`). Not covered is the sum over units, which is never
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
        self.num_nonfinite = 0
        self._model = model
        self._parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("the model has no trainable parameter, so there is nothing to clip: unfreeze some")
        self._trainable = frozenset(id(p) for _, p in self._parameters)
        self.rules = build_rules(model)
        if math.isfinite(self.max_grad_norm):
            for rule in self.rules:
                rule.bound = 2.0 ** math.ceil(math.log2(self.max_grad_norm))
        self._observer = ModelObserver(self.rules)
        self._is_active = self._is_closed = self._is_audited = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_grad_norm={self.max_grad_norm}, num_layers={len(self.rules)})"

    def close(self) -> None:
        """Free all buffers; the clipper cannot be used afterwards."""
        self._reset()
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
        layout = UnitLayout(num_units, rows_per_unit)
        with ExitStack() as stack:
            stack.callback(self._leave)
            self._enter(stack, layout)
            try:
                yield self
            except BaseException as error:
                self._reset()
                if isinstance(error, RuntimeError) and _is_in_place_error(error):
                    raise UnsupportedLayerError(
                        "the input or the output of a trainable layer was changed in place, so its gradient cannot be "
                        "seen: use the out-of-place operation (such as ReLU(inplace=False)), or train LoRA (model.lora)"
                    ) from error
                raise
        self._is_audited = any(rule.is_recorded for rule in self.rules)

    def _check_ready(self) -> None:
        if self._is_closed:
            raise RuntimeError("this clipper was closed: build a new one")
        if self._is_active or any(rule.is_recorded for rule in self.rules):
            raise RuntimeError("the last capture was not finished: call accumulate() after each capture")
        trainable = frozenset(id(p) for p in self._model.parameters() if p.requires_grad)
        if trainable != self._trainable:
            raise RuntimeError(
                "parameters were frozen, unfrozen or replaced since the clipper was built: build a new one"
            )

    def _enter(self, stack: ExitStack, layout: UnitLayout) -> None:
        self._is_active = True
        for _, parameter in self._parameters:
            parameter.requires_grad_(False)
        self._observer.attach(stack, layout, audited=[] if self._is_audited else self._parameters)

    def _leave(self) -> None:
        self._is_active = False
        for _, parameter in self._parameters:
            parameter.requires_grad_(True)

    def _reset(self) -> None:
        for rule in self.rules:
            rule.reset()

    # -------------------------------------------------------------------------------- clipped sum
    @torch.no_grad()
    def accumulate(self, loss_scale: float = 1.0, on_ready: Callable[[nn.Parameter], None] | None = None) -> Tensor:
        """Add Σᵢ clip(gᵢ) of the captured micro-batch to each ``.grad``; buffers are freed layer by layer.

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
        try:
            for rule in self.rules:
                rule.finish()
        except BaseException:
            self._reset()
            raise
        rules = [rule for rule in self.rules if rule.squared_norms is not None]
        if not rules:
            self._reset()
            raise RuntimeError("nothing was captured: run forward and backward inside `with clipper.capture(...)`")
        for rule in self.rules:
            if rule.ran_without_grad and not rule.is_recorded:
                self._reset()
                raise reentrant_checkpoint_error(rule)
        with torch.autocast(self._parameters[0][1].device.type, enabled=False):  # sums are float32, also under autocast
            return self._add_clipped(rules, loss_scale, on_ready or _ignore)

    def _add_clipped(
        self, rules: list[LayerRule], loss_scale: float, on_ready: Callable[[nn.Parameter], None]
    ) -> Tensor:
        norms, safe_norms = self._norms(rules) / loss_scale
        margin = max(_rounding_margin(rule.operand_dtype) for rule in rules)
        factors = (self.max_grad_norm / (safe_norms * (1.0 + margin))).clamp_(max=1.0)
        nonfinite = ~torch.isfinite(safe_norms)
        num_nonfinite = int(nonfinite.sum())
        if num_nonfinite:
            self.num_nonfinite += num_nonfinite
            factors.masked_fill_(nonfinite, 0.0)
            for rule in rules:
                rule.erase(nonfinite)  # 0 · nan is nan
        users = Counter(
            id(p) for rule in rules for p in rule.trained_parameters
        )  # of a tied weight: the last finishes it
        while rules:  # the last layer first: it holds the logits' gradient
            rule = rules.pop()
            rule.add_clipped(factors, 1.0 / loss_scale)
            rule.reset()
            for parameter in rule.trained_parameters:
                users[id(parameter)] -= 1
                if users[id(parameter)] == 0:
                    on_ready(parameter)
        self._reset()
        return norms

    def _norms(self, rules: list[LayerRule]) -> Tensor:
        """Norm of each unit [2, U]: as computed, and a bound that the true one does not exceed."""
        terms = [rule.squared_norms for rule in rules] + [rule.cross_term() for rule in rules]
        squared, may_hide = torch.stack([term for term in terms if term is not None]).sum(0).clamp_(min=0.0)
        return torch.stack([squared, squared + may_hide]).sqrt_()


def _ignore(parameter: nn.Parameter) -> None:
    pass


def _is_in_place_error(error: RuntimeError) -> bool:
    return ObserveGradient.__name__ in str(error) or "inplace" in str(error)


def _rounding_margin(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps * (8.0 if dtype is wide_dtype(dtype) else 1.0)
