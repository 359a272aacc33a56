"""Averaging of the last steps: post-processing of what a private run releases, and nothing else about it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint
from private_training import data_module, fit, privacy, weights
from signals import SignalAt

from callbacks.preemption import Preempted, Preemption
from commands.launch.experiment import read_yaml
from doppel.privacy.ledger import Ledger
from lightning_modules.utterance_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[2]
(OVERLAY,) = read_yaml(ROOT / "configs" / "overlays" / "average.yaml")["trainer"]["callbacks+"]


def average() -> EMAWeightAveraging:
    return EMAWeightAveraging(**OVERLAY["init_args"])


class Iterates(Callback):
    """Keeps the weights after each step: all that the mechanism releases."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        self.kept.append(weights(pl_module))


def train(folder: Path, tiny_model: str, corpus: str, *extra: Callback, resume: bool = False) -> UtteranceLM:
    torch.manual_seed(0)
    model = UtteranceLM(base_model=tiny_model, dropout=0.3)
    keeper = ModelCheckpoint(folder / "checkpoints", "{step}", save_last="link", enable_version_counter=False)
    callbacks = [keeper, Preemption(), privacy(folder), *extra]
    data = data_module(corpus)
    fit(folder, model, data, callbacks, ckpt_path="last" if resume else None, enable_checkpointing=True)
    return model


def saved(folder: Path) -> torch.Tensor:
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    model_weights = [value.flatten() for name, value in state.items() if name != "model.lm_head.weight"]  # tied
    return torch.cat(model_weights)


def test_the_model_is_a_function_of_the_iterates_that_the_run_without_it_has(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    plain, iterates = Iterates(), Iterates()
    train(tmp_path / "plain", tiny_model, corpus, plain)
    model = train(tmp_path / "averaged", tiny_model, corpus, average(), iterates)
    assert all(torch.equal(a, b) for a, b in zip(plain.kept, iterates.kept, strict=True)), "it steers nothing"
    spent = [Ledger(tmp_path / name / "ledger.jsonl").summary()["scopes"] for name in ("plain", "averaged")]
    assert spent[0] == spent[1]
    expected, decay = iterates.kept[0], OVERLAY["init_args"]["decay"]
    for iterate in iterates.kept[1:]:
        expected = decay * expected + (1 - decay) * iterate
    torch.testing.assert_close(weights(model), expected)
    assert not torch.allclose(expected, iterates.kept[-1], atol=1e-3)
    torch.testing.assert_close(saved(tmp_path / "averaged"), expected)


@pytest.mark.parametrize("step", [2, 4, 7])
def test_an_interrupted_average_goes_on(tmp_path: Path, tiny_model: str, corpus: str, step: int) -> None:
    whole = weights(train(tmp_path / "whole", tiny_model, corpus, average()))
    with pytest.raises(Preempted):
        train(tmp_path / "broken", tiny_model, corpus, average(), SignalAt(step))
    assert torch.equal(weights(train(tmp_path / "broken", tiny_model, corpus, average(), resume=True)), whole)
