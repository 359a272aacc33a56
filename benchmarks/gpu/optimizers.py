"""Optimisers that were tried on private gradients: a model's ``optimizer.class_path`` names one.

*Why the guarantee holds.* A gradient is noised before an optimiser reads it, and what these add to it is public:
everything here is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class NoiseCorrectedAdam(torch.optim.Optimizer):
    """Adam whose second moment is corrected for the variance of the noise (Tang et al., 2023, DP-AdamBC, algorithm 1).

    Args:
        params: Parameters.
        lr: Learning rate.
        noise_std: Standard deviation of the noise of a gradient's coordinate: σ·C/B.
        floor: Least corrected root of the second moment, in units of ``noise_std``.
        betas: Decay rates of the two moments.
    """

    def __init__(
        self, params: Any, lr: float, noise_std: float, floor: float, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        super().__init__(params, {"lr": lr, "noise_std": noise_std, "floor": floor, "betas": tuple(betas)})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            (beta1, beta2), noise = group["betas"], group["noise_std"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state |= {"step": 0, "first": torch.zeros_like(param), "second": torch.zeros_like(param)}
                state["step"] += 1
                state["first"].lerp_(param.grad, 1 - beta1)
                state["second"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                first = state["first"] / (1 - beta1 ** state["step"])
                second = state["second"] / (1 - beta2 ** state["step"]) - noise**2
                root = second.clamp_(min=(group["floor"] * noise) ** 2).sqrt_()
                # so that a coordinate of noise alone moves as far as under Adam when the floor is 1
                param.addcdiv_(first, root, value=-group["lr"])


class AveragedAdam(torch.optim.AdamW):
    """AdamW that leaves the mean of the last quarter's weights; a training that is cut short starts the mean again.

    Args:
        params: Parameters.
        lr: Learning rate.
        num_steps: Steps of the training.
    """

    def __init__(self, params: Any, lr: float, num_steps: int) -> None:
        super().__init__(params, lr=lr, weight_decay=0.0)
        self.num_steps, self.done = num_steps, 0
        self.first_averaged = math.ceil(0.75 * num_steps)
        self.means: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step; at the last one, put the mean in the place of the weights."""
        super().step(closure)  # type: ignore[arg-type]
        self.done += 1
        if self.done <= self.first_averaged:
            return
        count = self.done - self.first_averaged
        for group in self.param_groups:
            for param in group["params"]:
                mean = self.means.setdefault(param, torch.zeros_like(param))
                mean.add_(param - mean, alpha=1 / count)
                if self.done == self.num_steps:
                    param.copy_(mean)
