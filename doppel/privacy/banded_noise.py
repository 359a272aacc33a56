"""Gaussian noise that is correlated over steps: banded matrix factorisation."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from doppel.errors import PrivateTrainingError
from doppel.privacy.noise import GRID_BITS, GaussianNoise

#: Independent draws are multiples of 2^-FINE_BITS of σC, far below the grid of the noisy sums.
FINE_BITS = 52


class BandedNoise(GaussianNoise):
    """Adds x_t to the sum of step t, where C x = z: part of a step's noise is taken back by later ones.

    z is independent noise of standard deviation ``noise_multiplier`` · ``max_grad_norm``. C = T D⁻¹: T is the lower
    triangular Toeplitz matrix of c_0 … c_{b-1}, D has the norms of its columns, of which the end of the training cuts
    the last b - 1. So x_t = D_t y_t, with y_t = (z_t - c_1 y_{t-1} - … - c_{b-1} y_{t-b+1}) / c_0.

    Formal guarantees:
        The noisy sums g + x are a function of C g + z, the matrix mechanism, whose argument and rounds
        :class:`.plan.DPPlan` tells: columns have norm 1, and sampling (:class:`.sampling.PoissonSampler`, ``bands``)
        keeps the columns that one unit moves from sharing a row.

        *Segments.* An object is one segment, from its first step on: C is block-diagonal over segments. Its steps
        follow one another: one that is skipped or repeated would break C x = z, and is refused. It may stop at any
        step, which cuts columns and makes none longer; a step beyond the last would, and is refused.

        *Floating point.* z is drawn in float64, as multiples of 2⁻⁵² standard deviations (the next power of two); x is
        formed of it in float64, a function of z alone; and the sum is rounded to the grid of
        :class:`.noise.GaussianNoise`. Whatever came before, millions of values of z lie between neighbours of that
        grid, so each is reached from every sum. z and the b - 1 last y are in this process's memory and in no file:
        with them a reader could subtract the noise.

    Args:
        noise_multiplier: σ of a round.
        max_grad_norm: The clipping norm.
        coefficients: c_0 … c_{b-1}; D divides by their norm.
        num_steps: After which the training ends, counted from 0 over the whole run.
        seed: None for the operating system's entropy; a number is for tests and warns.

    Raises:
        ValueError: If the arguments are out of range.
    """

    def __init__(
        self,
        noise_multiplier: float,
        max_grad_norm: float,
        coefficients: Sequence[float],
        num_steps: int,
        seed: int | None = None,
    ) -> None:
        super().__init__(noise_multiplier, max_grad_norm, seed)
        if not (math.isfinite(math.hypot(*coefficients)) and coefficients[0] > 0):
            raise ValueError(f"coefficients are {coefficients}: give finite numbers, the first of them positive")
        self.coefficients, self.num_steps = tuple(coefficients), num_steps
        self._past: dict[int, deque[Tensor]] = {}  # by place: y of the last b - 1 steps, the newest first
        self._last: dict[int, int] = {}  # by place: the last step

    @torch.no_grad()
    def add_(self, flat: Tensor, place: int, step: int) -> None:
        """Add x_t to each entry of some of a step's sums, as :meth:`.GaussianNoise.add_` adds z_t.

        Raises:
            PrivateTrainingError: The step does not follow the last one at this place, or is not below ``num_steps``.
        """
        last = self._last.setdefault(place, step - 1)
        if step != last + 1 or step >= self.num_steps:
            raise PrivateTrainingError(
                f"step {step} of {self.num_steps} follows step {last}, but noise that later steps take back "
                "(privacy.bands) needs each step once, in order: take one optimiser step for a logical batch"
            )
        own = torch.zeros_like(flat, dtype=torch.float64)
        self._add(own, place, step, FINE_BITS)
        past = self._past.setdefault(place, deque(maxlen=len(self.coefficients) - 1))
        for coefficient, earlier in zip(self.coefficients[1:], past, strict=False):
            own.sub_(earlier, alpha=coefficient)
        own.div_(self.coefficients[0])
        past.appendleft(own)
        self._last[place] = step
        if self.std:
            column, grid = math.hypot(*self.coefficients[: self.num_steps - step]), self.grid(GRID_BITS)
            flat.copy_(own.mul(column / grid).add_(flat, alpha=1.0 / grid).round_().mul_(grid))
