"""float16 training whose steps do not depend on the data: a fixed loss scale in place of a gradient scaler."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor


class StaticLossScale(MixedPrecision):
    """``16-mixed`` precision with a constant, public loss scale, and no step skipped.

    float16 has few exponents: without a scale, small gradients vanish on their way back through the network. The usual
    ``GradScaler`` looks for the largest scale that does not overflow: it halves the scale and *skips the step* whenever
    a gradient is not finite, and doubles it after 2,000 steps that were. Both decisions look at private gradients
    without any noise, and both show in what is released: in the number of steps, and in which small gradients are lost.
    No accountant covers that. So the scale of a private run is chosen before it starts and stays. Where it is too
    large for one example, that example's gradient overflows, and the clipper lets this example contribute zero, which
    is a function of that example alone; the others are not touched, and the step is taken.

    The loss of each row is scaled, not their sum alone, so the scale that fits does not depend on the batch. The
    clipper takes the scale out again (``accumulate(loss_scale=…)``): ``.grad`` is never scaled.

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
