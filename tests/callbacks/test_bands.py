"""A training whose noise is correlated: its segments, what is charged for them, and what it refuses."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from private_training import Crash, CrashAt, data_module, fit, privacy, sgd, weights
from signals import SignalAt

from callbacks import preemption
from callbacks.differential_privacy import DifferentialPrivacy, PrivateTrainingError
from callbacks.preemption import Preempted, Preemption
from datamodules.batches.batch import LogicalBatch
from doppel.privacy.banded_noise import BandedNoise
from doppel.privacy.bands import coefficients
from doppel.privacy.ledger import Ledger
from doppel.privacy.optimizer import DPAdam
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")
BANDS, NUM_STEPS = 4, 10  # two epochs of five


def train(
    folder: Path,
    tiny_model: str,
    data: LightningDataModule,
    *extra: Callback,
    bands: int = BANDS,
    optimizer: Any = DPAdam,
    ckpt_path: str | None = None,
    **kwargs: Any,
) -> tuple[UtteranceLM, DifferentialPrivacy]:
    model, callback = UtteranceLM(base_model=tiny_model, optimizer=optimizer), privacy(folder, bands=bands)
    keeper = ModelCheckpoint(folder / "checkpoints", "{step}", save_last="link", enable_version_counter=False)
    callbacks = [keeper, *extra, callback]
    fit(folder, model, data, callbacks, ckpt_path=ckpt_path, enable_checkpointing=True, **kwargs)
    return model, callback


def rounds(folder: Path) -> int:
    """That are paid."""
    return int(Ledger(folder / "ledger.jsonl").summary()["mechanisms"][0]["done_steps"])


class Watch(Callback):
    """Which units each step has drawn, and which rounds were paid when it was computed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.drawn, self.paid, self.noise = folder, [], [], []  # type: ignore[var-annotated]

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.drawn.append(set(data.sampler.units_at(trainer.global_step)))
        self.paid.append(rounds(self.folder))
        self.noise.append(pl_module.step_policy._noise)
        assert optimizer._noise_scale == pl_module.step_policy.spec.noise_scale
        assert optimizer._num_steps == NUM_STEPS


def test_a_round_is_paid_with_its_first_step_and_draws_a_unit_once(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    watch = Watch(tmp_path)
    model, callback = train(tmp_path, tiny_model, data_module(corpus), watch)
    assert callback.spec is not None and callback.spec.bands == BANDS
    assert watch.paid == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert rounds(tmp_path) == callback.spec.mechanisms()[0].steps == 3
    for start in range(NUM_STEPS - BANDS + 1):
        of_round = watch.drawn[start : start + BANDS]
        assert sum(map(len, of_round)) == len(set().union(*of_round)) > 0
    (noise,) = set(watch.noise)
    assert isinstance(noise, BandedNoise) and noise.coefficients == coefficients(BANDS)
    assert (noise.noise_multiplier, noise.num_steps) == (callback.spec.noise_multiplier, NUM_STEPS)
    again, _ = train(tmp_path / "again", tiny_model, data_module(corpus))
    assert torch.equal(weights(again), weights(model))
    checkpoint = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    states = checkpoint["optimizer_states"][0]["state"].values()
    assert all(list(state) == ["exp_avg"] for state in states) and len(states) > 0


@pytest.mark.parametrize("stop", [6, pytest.param(9, marks=pytest.mark.slow)])
def test_a_resumed_training_begins_a_segment_and_what_it_pays_is_never_less_than_what_it_takes(
    tmp_path: Path, tiny_model: str, corpus: str, stop: int
) -> None:
    """It goes on from the checkpoint of step 5: one round of three is left, or none, which ends the training early."""
    with pytest.raises(Crash):
        train(tmp_path, tiny_model, data_module(corpus), CrashAt(stop))
    before = rounds(tmp_path)
    assert before == -(-stop // BANDS)
    watch = Watch(tmp_path)
    resumed, callback = train(tmp_path, tiny_model, data_module(corpus), watch, ckpt_path="last")
    left = min(NUM_STEPS - 5, (3 - before) * BANDS)
    assert resumed.trainer.global_step == 5 + left
    assert watch.paid == [before + 1 + i // BANDS for i in range(left)]
    assert all(noise.num_steps == 5 + left and noise is watch.noise[0] for noise in watch.noise)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.epsilon("default") <= 8.0 and rounds(tmp_path) <= 3


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("step", "name", "end"), [(1, "SIGUSR1", 4), (7, "SIGTERM", 8)])
def test_a_signal_is_obeyed_at_the_end_of_the_round_if_there_is_time(
    tmp_path: Path, tiny_model: str, corpus: str, step: int, name: str, end: int
) -> None:
    last = tmp_path / "checkpoints" / "last.ckpt"
    with pytest.raises(Preempted):
        train(tmp_path, tiny_model, data_module(corpus), SignalAt(step, name), Preemption())
    assert torch.load(last, weights_only=True)["global_step"] == end
    resumed, _ = train(tmp_path, tiny_model, data_module(corpus), Preemption(), ckpt_path="last")
    assert resumed.trainer.global_step == NUM_STEPS and rounds(tmp_path) == 3


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_leaves_no_time_is_obeyed_after_its_step(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "_NOTICE", 0.0)
    with pytest.raises(Preempted):
        train(tmp_path, tiny_model, data_module(corpus), SignalAt(1, "SIGTERM"), Preemption())
    assert torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 2


def test_checkpoints_between_epochs_fall_on_the_ends_of_rounds(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    saved: list[int] = []

    class Saves(Callback):
        def on_save_checkpoint(self, trainer: Trainer, *_: Any) -> None:
            saved.append(trainer.global_step)

    train(tmp_path, tiny_model, data_module(corpus), Saves(), Preemption(every_n_minutes=0.0), max_epochs=2)
    assert sorted(set(saved)) == [4, 5, 8, 10]


class Own(LightningDataModule):
    """Without groups of units."""

    num_units, batch_size, unit, data_fingerprint, sampling = 100, 10, "utterance", "nobody", "poisson"
    max_rows_per_unit = privacy_caveat = None

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader([LogicalBatch([], 0, 10.0)] * 10, batch_size=None)


class SaysSo(Own):
    bands = 1


def test_what_would_lose_the_gain_or_the_guarantee_is_refused_by_name(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    corpus_data = data_module(corpus)
    for data, settings, message in (
        (corpus_data, {"optimizer": sgd}, "SGD loses what privacy.bands gains .*DPAdam"),
        (corpus_data, {"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs"),
    ):
        with pytest.raises(PrivateTrainingError, match=message):
            train(tmp_path, tiny_model, data, **settings)  # type: ignore[arg-type]
        assert not (tmp_path / "ledger.jsonl").exists()
    for kind in (Own, SaysSo):
        message = f"{kind.__name__}: its loader does not draw from the 4 groups"
        with pytest.raises(PrivateTrainingError, match=message):
            train(tmp_path, tiny_model, kind())
    assert rounds(tmp_path) == 0


def test_a_loader_that_is_made_before_the_plan_is_refused(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that still has groups where the plan has none."""

    class Early(UtteranceLM):
        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches == NUM_STEPS
            return super().configure_optimizers()

    callback = privacy(tmp_path, bands=BANDS)
    with pytest.raises(PrivateTrainingError, match="groups of privacy.bands.*estimated_stepping_batches"):
        fit(tmp_path, Early(base_model=tiny_model, optimizer=DPAdam), data_module(corpus), [callback])
    data = data_module(corpus)
    data.bands = BANDS
    with pytest.raises(PrivateTrainingError, match="the 1 groups"):
        fit(tmp_path / "b", Early(base_model=tiny_model, optimizer=DPAdam), data, [privacy(tmp_path / "b")])
    assert rounds(tmp_path) == rounds(tmp_path / "b") == 0


def test_with_one_band_any_optimiser_serves_and_dpadam_is_bound_too(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    watch = Watch(tmp_path)
    _, callback = train(tmp_path, tiny_model, data_module(corpus), watch, bands=1)
    assert callback.spec is not None and watch.paid == list(range(1, 11))
    spec = callback.spec
    assert spec.noise_scale == spec.noise_multiplier * spec.max_grad_norm / spec.expected_batch_size
    train(tmp_path / "sgd", tiny_model, Own(), bands=1, optimizer=sgd, max_epochs=1)
