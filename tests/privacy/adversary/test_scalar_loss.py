"""The attacker writes `reduction="mean"`: one number for a micro-batch, which was clipped as if it were a row's.

Of a row's gradient it has a share that the number of the others decides, so that one unit more moves them all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from own_classifier import Checked, Classifier, caveats, spent_steps, train
from private_training import weights
from torch import Tensor

from datamodules.unit_data_module import UnitBatch
from doppel.errors import UserError

SHAPES: dict[str, Any] = {
    "a scalar": lambda losses: losses.mean(),
    "another number of losses than rows": lambda losses: losses.mean().view(1),
    "a tensor of 2 dimensions": lambda losses: losses.view(-1, 1),
    "a list": lambda losses: [losses.mean()],
    "a float": lambda losses: losses.mean().item(),
}


@pytest.mark.parametrize("found", SHAPES)
@pytest.mark.parametrize("kind", [Classifier, Checked])
def test_losses_that_are_not_one_for_each_row_are_refused_by_name(
    tmp_path: Path, kind: type[Classifier], found: str
) -> None:
    """With made-up rows before anything is spent, else in the first step that has a row, before the weights move."""

    class Reduced(kind):  # type: ignore[misc, valid-type]
        def losses(self, batch: UnitBatch) -> Tensor:
            return SHAPES[found](super().losses(batch))  # type: ignore[no-any-return]

    model = Reduced()
    start = weights(model)
    with pytest.raises(UserError, match=rf"gives {found}, .*\[rows\]") as refused:
        train(tmp_path, model)
    assert refused.value.about == "Reduced"
    assert torch.equal(weights(model), start)
    assert spent_steps(tmp_path) == (0 if kind is Checked else 1)


class Later(Classifier):
    """Its losses are of the right shape until the third step."""

    def losses(self, batch: UnitBatch) -> Tensor:
        losses = super().losses(batch)
        return losses.mean() if self.trainer.global_step == 2 else losses


def test_every_step_is_looked_at(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a scalar"):
        train(tmp_path, Later())
    assert spent_steps(tmp_path) == 3


class NoMemory(Checked):
    def losses(self, batch: UnitBatch) -> Tensor:
        if self.trainer.global_step == 0 and batch.num_units == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().losses(batch)


@pytest.mark.parametrize(("kind", "why"), [(Classifier, "Classifier has no probe()"), (NoMemory, "no memory")])
def test_a_model_that_was_not_checked_is_named_in_the_ledger(tmp_path: Path, kind: type[Classifier], why: str) -> None:
    train(tmp_path, kind())
    assert any("row alone was not checked" in text and why in text for text in caveats(tmp_path))


def test_a_model_that_was_checked_is_not(tmp_path: Path) -> None:
    train(tmp_path, Checked())
    assert caveats(tmp_path) == []
