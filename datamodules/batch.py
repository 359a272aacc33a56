"""Logical batches and the micro-batches they are cut into.

One Lightning batch is one *logical* batch: the Poisson sample itself. The model walks over its micro-batches and
takes a single optimiser step, so steps, schedules, checkpoints and the privacy accountant all count the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

#: Label of a position that carries no loss (prompt, separator, padding).
IGNORE_INDEX = -100


@dataclass
class MicroBatch:
    """Rows that go through the model together.

    Rows are unit-major: the ``rows_per_unit`` rows of unit 0, then those of unit 1, and so on.

    Attributes:
        input_ids: Token ids, shape [num_units * rows_per_unit, T]. Padding is on the right, where causal attention
            never looks, so there is no mask.
        labels: Token ids with -100 where there is no loss; *not* shifted, same shape. An over-long example and an
            absent row of a unit are rows without any label: their loss and their gradient are zero.
        num_units: Number of privacy units, with those that fill up a fixed shape.
        rows_per_unit: Rows of each unit.
        weights: Factor in [0, 1] of each unit's contribution, float32 [num_units]; None for 1. A private run multiplies
            the clipped gradient by it, an ordinary one the loss.
    """

    input_ids: Tensor
    labels: Tensor
    num_units: int
    rows_per_unit: int = 1
    weights: Tensor | None = None


@dataclass
class LogicalBatch:
    """All that one optimiser step sees on this rank.

    Attributes:
        micro_batches: Zero or more micro-batches; an empty Poisson sample has none.
        num_units: Units sampled on this rank.
        expected_num_units: Expected number of units over *all* ranks, by which the summed gradient is divided.
        is_public: Whether metrics of this batch may leave the process.
    """

    micro_batches: list[MicroBatch]
    num_units: int
    expected_num_units: float
    is_public: bool = False
