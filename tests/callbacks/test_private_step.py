"""The step that the callback puts into a module: noise before anybody sees a gradient, one public B."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from private_training import data_module, fit, privacy, sgd, weights
from torch import nn

from callbacks.differential_privacy import PrivateTrainingError
from datamodules.batches.batch import LogicalBatch
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.private_step import PrivateStep, noisy_mean
from lightning_modules.causal_lm import UtteranceLM
from lightning_modules.semantic_parser import SemanticParser
from lightning_modules.training.step_policy import PlainStep

pytestmark = pytest.mark.filterwarnings("ignore")


class _Spy(Callback):
    """Keeps the gradients that a callback can see before the optimiser's step."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        self.seen.append(torch.cat([p.grad.flatten() for p in pl_module.parameters()]))


class Nobody(LightningDataModule):
    """Ten empty Poisson samples; what they expect need not be what the module says."""

    num_units, batch_size, unit, data_fingerprint, sampling = 100, 10, "utterance", "nobody", "poisson"
    max_rows_per_unit = privacy_caveat = None

    def __init__(self, expected: float = 10.0) -> None:
        super().__init__()
        self.expected = expected

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader([LogicalBatch([], 0, self.expected)] * 10, batch_size=None)


def test_no_callback_sees_a_gradient_without_noise_wherever_it_stands_in_the_list(
    tmp_path: Path, tiny_model: str
) -> None:
    before, after = _Spy(), _Spy()
    callback = privacy(tmp_path, max_grad_norm=1.0)
    fit(tmp_path, UtteranceLM(base_model=tiny_model), Nobody(), [before, callback, after], max_epochs=1)
    assert callback.spec is not None
    for spy in (before, after):
        assert len(spy.seen) == 10
        for gradient in spy.seen:  # of nobody: noise alone
            assert gradient.std().item() == pytest.approx(callback.spec.noise_multiplier / 10, rel=0.05)
    assert not torch.equal(before.seen[0], before.seen[1])


def test_a_data_module_that_divides_by_another_number_is_refused(tmp_path: Path, tiny_model: str) -> None:
    model = UtteranceLM(base_model=tiny_model, optimizer=sgd)
    start = weights(model)
    with pytest.raises(PrivateTrainingError, match="9 .*10.*expected_num_units"):
        fit(tmp_path, model, Nobody(expected=9.0), [privacy(tmp_path)], max_epochs=1)
    assert torch.equal(weights(model), start)


def test_the_module_has_its_ordinary_step_again_after_the_fit(tmp_path: Path, tiny_model: str) -> None:
    model = UtteranceLM(base_model=tiny_model)
    policies = []
    model.on_train_end = lambda: policies.append(model.step_policy)  # type: ignore[method-assign]
    fit(tmp_path, model, Nobody(), [privacy(tmp_path)], max_epochs=1)
    assert isinstance(policies[0], PrivateStep)
    assert isinstance(model.step_policy, PlainStep)


def test_a_step_without_noise_is_refused_before_it_is_taken(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    class Own(UtteranceLM):
        def training_step(self, batch: LogicalBatch, batch_idx: int) -> None:
            for micro_batch in batch.micro_batches:
                self.manual_backward(self.losses(micro_batch).sum())
            self.optimizers().step()  # type: ignore[union-attr]

    model = Own(base_model=tiny_model, optimizer=sgd)
    start = weights(model)
    with pytest.raises(PrivateTrainingError, match="Own"):
        fit(tmp_path, model, data_module(corpus), [privacy(tmp_path)])
    assert torch.equal(weights(model), start)


def test_noise_of_a_step_is_never_used_twice(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    class Twice(UtteranceLM):
        def training_step(self, batch: LogicalBatch, batch_idx: int) -> None:
            reducer = self.begin_step(self.parameters())
            self.step_policy.finish(reducer, batch.expected_num_units, self.trainer.global_step)
            self.end_step(reducer, batch.expected_num_units)

    with pytest.raises(PrivateTrainingError, match="step 0"):
        fit(tmp_path, Twice(base_model=tiny_model), data_module(corpus), [privacy(tmp_path)])


def test_one_logical_batch_pays_for_one_step(tmp_path: Path, tiny_model: str) -> None:
    class Greedy(UtteranceLM):
        def training_step(self, batch: LogicalBatch, batch_idx: int) -> None:
            super().training_step(batch, batch_idx)
            start.append(weights(self))
            super().training_step(batch, batch_idx)

    start: list[torch.Tensor] = []
    model = Greedy(base_model=tiny_model, optimizer=sgd)
    with pytest.raises(PrivateTrainingError, match="Greedy"):
        fit(tmp_path, model, Nobody(), [privacy(tmp_path)], max_epochs=1)
    assert torch.equal(weights(model), start[0])


def test_modules_and_data_that_do_not_follow_the_protocol_are_told_what_is_missing(
    tmp_path: Path, tiny_model: str
) -> None:
    class Other(LightningModule):
        pass

    class Unnamed(LightningDataModule):
        sampling, num_units, batch_size = "poisson", 100, 10

    callback = privacy(tmp_path)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    for module, data, message in (
        (Other(), Nobody(), "Other.*docs/own-model.md"),
        (SemanticParser(), Nobody(), "SemanticParser"),
        (UtteranceLM(base_model=tiny_model), Unnamed(), "Unnamed.*unit, data_fingerprint"),
        (UtteranceLM(base_model=tiny_model), None, "num_units, batch_size"),
    ):
        trainer.datamodule = data  # type: ignore[attr-defined]
        with pytest.raises(PrivateTrainingError, match=message):
            callback.setup(trainer, module, "fit")


@pytest.mark.parametrize("has_gradient", [True, False])
def test_noisy_mean_is_the_sum_plus_noise_divided_by_b(has_gradient: bool) -> None:
    parameter = nn.Parameter(torch.zeros(100_000, dtype=torch.float64))
    frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    if has_gradient:
        parameter.grad = torch.full_like(parameter, 300.0)
    noise = GaussianNoise(noise_multiplier=2.0, max_grad_norm=0.5, seed=1)
    noisy_mean([parameter, frozen], noise, batch_size=10, step=0)
    assert parameter.grad is not None and frozen.grad is None
    mean = 30.0 if has_gradient else 0.0
    assert parameter.grad.mean().item() == pytest.approx(mean, abs=5 * 0.1 / math.sqrt(100_000))
    assert parameter.grad.std().item() == pytest.approx(2.0 * 0.5 / 10, rel=0.02)
