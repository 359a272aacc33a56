"""float16 training whose steps do not depend on the data: a fixed loss scale in place of a gradient scaler."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor


class StaticLossScale(MixedPrecision):
    """``16-mixed`` precision with a constant, public loss scale, and no step skipped.

    Formal guarantees:
        float16 has few exponents, so small gradients vanish without a scale. The usual ``GradScaler`` halves it and
        *skips the step* whenever a gradient is not finite, and doubles it after 2,000 finite steps: both depend on
        private gradients without noise and show in what is released, which no accountant covers. Here the scale is
        chosen before the run. Where it is too large for one example, this one contributes zero, a function of it alone;
        the others are not touched, and the step is taken. The loss of each row is scaled, so that the right scale does
        not depend on the batch; the clipper divides by it (``accumulate(loss_scale=…)``): ``.grad`` is never scaled.

    Args:
        scale: Factor of the loss, at least 1; a power of two is exact.
        device: Device type of autocast, such as ``cuda``.
    """

    def __init__(self, scale: float, device: str) -> None:
        super().__init__("16-mixed", device)
        self.scaler = None
        self.scale = scale

    def pre_backward(self, tensor: Tensor, module: pl.LightningModule) -> Tensor:  # type: ignore[override]
        """Scale the loss."""
        return super().pre_backward(tensor * self.scale, module)
