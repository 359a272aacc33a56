"""The optimiser that knows the noise of its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.optim import AdamW, Optimizer


class DPAdam(AdamW):
    """Adam whose second moment is that of the public noise, (σC/B)²: nearly all that Adam would estimate.

    A weight moves by lr · f · m / (σC/B), with m ← β₁ m + (1 - β₁) g from m = 0 and no bias correction, which would
    make early steps loud. In its place f = T / Σ(1 - β₁ᵗ), the same for all T steps, gives what few steps lack while m
    fills: 1.18 of 59, 1.74 of 18. All that is linear in the gradients, so noise that later steps take back
    (:class:`.banded_noise.BandedNoise`) is taken back from the weights, of which Adam's quotient keeps a part. σ is
    that of independent noise at the same budget: one rate serves every N, B, T, ε and number of bands.
    ``DifferentialPrivacy`` binds it; unbound, without privacy, it is AdamW.

    Formal guarantees:
        Post-processing: it reads noisy gradients and the plan's public numbers.

    Args:
        params: Weights, or groups of them.
        lr: Rate: the step of a weight whose mean gradient is as large as the noise's standard deviation.
        betas: β₁, and AdamW's β₂.
        eps: AdamW's.
        weight_decay: Decoupled.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
        self._noise_scale: float | None = None
        self._num_steps = 0

    def bind(self, noise_scale: float, num_steps: int) -> None:
        """Take what is public of the noise and of the training.

        A training whose state is AdamW's, which an older version began, goes on as it was begun.

        Args:
            noise_scale: Standard deviation of independent noise on a mean gradient, σC/B: ``DPPlan.noise_scale``.
            num_steps: T, planned, of the whole training.
        """
        if not any("exp_avg_sq" in state for state in self.state.values()):
            self._noise_scale, self._num_steps = noise_scale, num_steps

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore m alone, too: Adam's own way asks for a number of steps."""
        Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step."""
        if self._noise_scale is None:
            return cast("float | None", super().step(closure))
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta = group["betas"][0]
            trained = [p for p in group["params"] if p.grad is not None]
            for p in trained:
                if "exp_avg" not in self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            means = [self.state[p]["exp_avg"] for p in trained]
            if trained:
                torch._foreach_lerp_(means, [p.grad for p in trained], 1.0 - beta)
                torch._foreach_mul_(trained, 1.0 - group["lr"] * group["weight_decay"])
                # Σ(1 - β₁ᵗ) / T, the mean weight of a constant gradient in m.
                filled = 1.0 - beta * (1.0 - beta**self._num_steps) / ((1.0 - beta) * self._num_steps)
                torch._foreach_add_(trained, means, alpha=-group["lr"] / (filled * self._noise_scale))
        return loss
