"""Constant rows that fill up a shape move nothing, even where a module makes a loss of padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from datamodules.batches.batch import MicroBatch
from datamodules.batches.cut import LogicalBatches
from datamodules.batches.encoded import EncodedExamples
from doppel.privacy.clipping import PerSampleClipper
from lightning_modules.training.logical_batch_module import LogicalBatchModule


class LossOfPadding(LogicalBatchModule):
    """Its loss looks at all positions, labelled or not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)

    def losses(self, batch: MicroBatch) -> Tensor:
        return self.head(self.embedding(batch.input_ids)).square().sum((1, 2)) + 1.0


def clipped(model: LossOfPadding, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, norms, and the sum."""
    model.zero_grad()
    clipper = PerSampleClipper(model, 0.01)
    with clipper.capture(batch.num_units, batch.rows_per_unit):
        losses = model.weighted_losses(batch)
        losses.sum().backward()
    norms = clipper.accumulate()
    clipper.close()
    return losses.detach(), norms, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("rows_per_unit", [1, 3])
def test_a_constant_row_has_no_loss_no_norm_and_no_part_in_the_sum(rows_per_unit: int) -> None:
    num = 17 * rows_per_unit
    ids = np.random.default_rng(0).integers(1, 50, 6 * num, dtype=np.int32)
    units = np.repeat(np.arange(17, dtype=np.int32), rows_per_unit)
    encoded = EncodedExamples(ids, 6 * np.arange(num + 1), np.ones(num, np.int32), units, 0, 96, (1, 2))
    (filled,) = LogicalBatches(encoded, 10_000, rows_per_unit).make(0, range(17), 17.0).micro_batches
    assert filled.num_units == 18
    bare = replace(
        filled, input_ids=filled.input_ids[:num], labels=filled.labels[:num], num_units=17, weights=torch.ones(num)
    )
    model = LossOfPadding()
    losses, norms, found = clipped(model, filled)
    expected_losses, expected_norms, expected = clipped(model, bare)
    assert (losses[num:] == 0).all() and norms[17:] == 0
    torch.testing.assert_close((losses[:num], norms[:17]), (expected_losses, expected_norms))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_how_many_constant_rows_there_are_moves_nothing() -> None:
    """With a row less there are two of them, and the sum moves by that row alone: not by twice the bound."""
    ids = np.random.default_rng(0).integers(1, 50, 6 * 34, dtype=np.int32)
    encoded = EncodedExamples(
        ids, 6 * np.arange(35), np.ones(34, np.int32), np.arange(34, dtype=np.int32), 0, 96, (1, 2)
    )
    batches, model = LogicalBatches(encoded, 10_000, 1), LossOfPadding()
    (more,), (less,) = (batches.make(0, range(num), 1.0).micro_batches for num in (34, 33))
    assert more.num_units == less.num_units == 36
    moved = clipped(model, more)[2] - clipped(model, less)[2]
    assert moved.norm() == pytest.approx(0.01, rel=1e-2)
