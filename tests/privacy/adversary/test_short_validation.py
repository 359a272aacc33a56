"""Nobody attacks here, yet a private run was lost: two ranks crashed where validation had one batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from private_training import data_module, fit, privacy

from lightning_modules.causal_lm import UtteranceLM
from lightning_modules.training.strategy import LogicalBatchDDPStrategy


@pytest.mark.slow
@pytest.mark.ddp
@pytest.mark.parametrize("batch", [65536, 64])  # one batch; several on each rank
def test_two_ranks_measure_the_one_batch_of_a_validation_file(
    tmp_path: Path, tiny_model: str, corpus: str, batch: int
) -> None:
    losses, public = [], tmp_path / "public.txt"
    public.write_text("".join(f"move my appointment number {number}\n" for number in range(60)))
    for ranks in (1, 2):
        strategy = LogicalBatchDDPStrategy(start_method="spawn", process_group_backend="gloo")
        data = data_module(corpus, val_path=str(public), val_is_public=True, max_tokens_per_micro_batch=batch)
        folder = tmp_path / str(len(losses))
        model = UtteranceLM(base_model=tiny_model)
        devices = {"devices": 2, "strategy": strategy} if ranks == 2 else {}
        trainer = fit(folder, model, data, [privacy(folder)], max_epochs=1, **devices)
        losses.append(float(trainer.callback_metrics["val/loss"]))
    assert losses[0] > 1
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
