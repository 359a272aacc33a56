"""Poisson sampling of logical batches."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from doppel.privacy.secret import Secret


class PoissonSampler:
    """Draws logical batches: each unit is in the batch of each step independently with probability q.

    A batch is a function of the step. It may be empty. Units are numbered 0 ≤ unit < ``num_units``.

    With ``bands`` = b > 1 sampling is cyclic (Choquette-Choo et al., 2023), as :class:`.banded_noise.BandedNoise` asks:
    units are dealt into b groups, and step t draws each unit of group t mod b independently with probability b·q.

    Formal guarantees:
        The Poisson-subsampled Gaussian mechanism (Mironov et al., 2019, section 3) asks for Poisson sampling: each
        step includes each unit independently, with the same probability q, unseen by the reader. A draw is 63 bits of
        a cryptographic stream that is keyed from a secret (the operating system's entropy, new in each process) and the
        step, whose number must not be used twice. Batches are neither capped nor topped up: their size is
        Binomial(N, q), and empty ones take their noise and are accounted, for skipping them would tell of the data.
        Ranks that share the secret draw one batch, of which each computes a part. The parts must be disjoint and cover
        it, so whoever deals them out compares :meth:`fingerprint` first.

        *Groups.* A unit's group is a die of its own, thrown once for all steps, so those of the others are the same
        with it and without: a balanced deal would move them. Steps that draw one unit are a multiple of b apart, over
        epochs too, and of any b successive steps (a *round*) one alone can draw it, with probability b·q whatever its
        group. A new sampler throws new dice: a segment of the noise has one sampler.

    Args:
        num_units: Number of units N in the data set.
        sample_rate: Probability q with which a unit is in a batch: expected batch size / N.
        steps_per_epoch: Steps that count as an epoch; by default ⌈1/q⌉.
        seed: None for the operating system's entropy; a number is for tests and warns.
        bands: Number of groups b, at most 1/q; 1 for none.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        num_units: int,
        sample_rate: float,
        steps_per_epoch: int | None = None,
        seed: int | None = None,
        bands: int = 1,
    ) -> None:
        if num_units < 1:
            raise ValueError(f"num_units is {num_units}: a sampler needs at least one unit")
        if not 0 < sample_rate <= 1:
            raise ValueError(
                f"sample_rate is {sample_rate}, but it must be in (0, 1]: is the batch larger than the data?"
            )
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise ValueError(f"steps_per_epoch is {steps_per_epoch}, but an epoch has at least one step")
        if bands < 1 or bands * sample_rate > 1 + 1e-9:
            raise ValueError(
                f"bands is {bands} at a sample rate of {sample_rate}: give at least 1, and at most 1 / sample_rate"
            )
        self.num_units = num_units
        self.sample_rate = float(sample_rate)
        self.bands = bands
        # 1e-9: N/(N/steps) may come out a rounding error above the whole number it is
        self.steps_per_epoch = steps_per_epoch or math.ceil(1.0 / self.sample_rate - 1e-9)
        self._secret = Secret(seed)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_units={self.num_units}, sample_rate={self.sample_rate}, "
            f"steps_per_epoch={self.steps_per_epoch}, bands={self.bands})"
        )

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self.steps_per_epoch

    def units_at(self, step: int) -> list[int]:
        """Return the units of a step's batch, ascending; equal on ranks that share the secret.

        Args:
            step: Number of the optimiser step, counted from 0 over the whole run.

        Raises:
            ValueError: The step is negative.
        """
        if step < 0:
            raise ValueError(f"step is {step}: steps are counted from 0 over the whole run")
        stream = self._secret.stream("sampling", *divmod(step, self.steps_per_epoch))
        coins = stream.words(self.num_units).view(np.uint64) >> 1
        is_drawn = coins < np.uint64(self.bands * self.sample_rate * 2**63)
        if self.bands > 1:
            dice = self._secret.stream("groups").words(self.num_units).view(np.uint64)
            is_drawn &= dice % np.uint64(self.bands) == step % self.bands
        chosen: list[int] = np.flatnonzero(is_drawn).tolist()
        return chosen

    def share_secret(self, broadcast: Callable[[Tensor], Tensor]) -> None:
        """Let all ranks draw what rank 0 draws, before the first batch; see :meth:`.secret.Secret.share`."""
        self._secret.share(broadcast)

    def fingerprint(self) -> str:
        """Return a digest that is equal on ranks that draw the same batches; it must not be written anywhere."""
        return f"{self._secret.derive('fingerprint'):x} {self!r}"
