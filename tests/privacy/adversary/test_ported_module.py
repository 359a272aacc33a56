"""The attacker ports a module of any Lightning tutorial: accuracies by ``self.log``, a private hold-out, monitors."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner import Tuner
from torch import Tensor, nn
from torchmetrics.classification import BinaryAccuracy

from callbacks.differential_privacy import PrivateTrainingError
from datamodules.unit_data_module import UnitBatch, UnitDataModule
from doppel.errors import UserError
from tests.own_classifier import WIDTH, Classifier, caveats, collate, spent_steps
from tests.private_training import fit, privacy

pytestmark = pytest.mark.filterwarnings("ignore")


class Ported(Classifier):
    """Logs in each of the ways that a tutorial has."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = BinaryAccuracy()

    def losses(self, batch: UnitBatch) -> Tensor:
        inputs_BD, labels_B = batch.rows
        logits_BC = self.head(inputs_BD)
        guess_B = logits_BC.argmax(1)
        accuracy = (guess_B == labels_B).float().mean()
        if self.training:
            self.metric.update(guess_B, labels_B)
            self.log("train_acc", accuracy, prog_bar=True, on_step=True, on_epoch=True, batch_size=len(labels_B))
            self.log_dict({"train_error": 1 - accuracy}, prog_bar=True, batch_size=len(labels_B))
            self.log("train_metric", self.metric, prog_bar=True, on_step=False, on_epoch=True)
            self.trainer.logger.log_metrics({"direct_acc": float(accuracy)}, step=self.trainer.global_step)
            self.logger.experiment.log_metrics({"experiment_acc": float(accuracy)})
            self.print(f"printed_acc {accuracy:.3f}")
        return nn.functional.cross_entropy(logits_BC, labels_B, reduction="none")

    def validation_step(self, batch: UnitBatch, batch_idx: int) -> None:
        inputs_BD, labels_B = batch.rows
        accuracy = (self.head(inputs_BD).argmax(1) == labels_B).float().mean()
        self.log("val_acc", accuracy, prog_bar=True)
        self.log("hp_metric", accuracy)

    def on_train_epoch_end(self) -> None:
        self.log("epoch_acc", self.metric.compute())

    def on_train_end(self) -> None:
        self.logger.log_hyperparams({"best_acc": float(self.metric.compute())})


class LogsBeside(Callback):
    """A callback that measures what it sees."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        pl_module.log("callback_acc", torch.tensor(0.5), prog_bar=True)
        self.log("own_acc", torch.tensor(0.5))
        for logger in trainer.loggers:
            logger.log_metrics({"loggers_acc": 0.5})


class Bar(TQDMProgressBar):
    """Keeps what a bar would show."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: set[str] = set()

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        self.shown |= metrics.keys() - {"v_num"}
        return dict(metrics)


def data(**kwargs: Any) -> UnitDataModule:
    x = torch.randn(80, WIDTH, generator=torch.Generator().manual_seed(0)).tolist()
    rows = [{"x": x[i], "y": i % 2, "user": str(i)} for i in range(80)]
    return UnitDataModule(rows[:60], "user", collate, batch_size=10, val=rows[60:], **kwargs)


def train(folder: Path, callbacks: list[Callback], module: Ported | None = None, **kwargs: Any) -> tuple[Trainer, Bar]:
    bar, module = Bar(), module or Ported()
    val_is_public, is_public = kwargs.pop("val_is_public", False), kwargs.pop("is_public", False)
    trainer = fit(
        folder,
        module,
        data(val_is_public=val_is_public, is_public=is_public),
        [privacy(folder, seed=None, **kwargs), bar, *callbacks],
        max_epochs=1,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        enable_progress_bar=True,
        logger=CSVLogger(folder),
    )
    return trainer, bar


def written(folder: Path) -> dict[str, list[str]]:
    """What metrics.csv says, by name."""
    (path,) = folder.rglob("metrics.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    found = {name: [row[name] for row in rows if row[name]] for row in rows for name in row}
    return {name: values for name, values in found.items() if values and name not in ("step", "epoch")}


PUBLIC = {"train/learning_rate", *(f"dp/{name}" for name in ("delta", "epsilon", "noise_multiplier"))}
PUBLIC |= {"dp/num_steps", "dp/sample_rate"}


def test_no_exact_figure_leaves_by_any_way(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="tells nothing of a private run") as warned:
        trainer, bar = train(tmp_path, [LogsBeside(), LearningRateMonitor("step")])
    assert written(tmp_path).keys() == PUBLIC | {"lr-Adam"}
    assert trainer.callback_metrics.keys() == {"train/learning_rate", "lr-Adam"}
    assert trainer.logged_metrics.keys() == {"train/learning_rate"}
    assert not bar.shown and not trainer.progress_bar_metrics
    told = "".join(capfd.readouterr())
    files = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "_acc" not in told and "train_error" not in told and "train_metric" not in told
    assert "_acc" not in files and "train_error" not in files and "hp_metric" not in files
    calls = [str(w.message) for w in warned if "tells nothing" in str(w.message)]
    assert len(calls) == len(set(calls)) == 13, "once for each line that logs"
    assert all(call.startswith("test_ported_module.py:") for call in calls)
    for call in (
        "self.log ",
        "self.print ",
        "logger.log_metrics ",
        "logger.experiment.log_metrics ",
        "log_hyperparams",
    ):
        assert any(call in text for text in calls), call
    assert type(trainer.logger) is CSVLogger, "the trainer has its loggers back"


@pytest.mark.parametrize(
    "monitor",
    [
        lambda folder: EarlyStopping("train_acc"),
        lambda folder: EarlyStopping("train/accuracy"),
        lambda folder: EarlyStopping("epoch_acc"),
        lambda folder: ModelCheckpoint(folder, monitor="val_acc"),
        lambda folder: ModelCheckpoint(folder, monitor="val/acc"),
        lambda folder: ModelCheckpoint(folder, monitor="hp_metric"),
        lambda folder: LearningRateFinder(),
        lambda folder: BatchSizeFinder(),
    ],
)
def test_a_monitor_of_anything_else_is_refused_at_the_start(tmp_path: Path, monitor: Any) -> None:
    callback = monitor(tmp_path)
    name = getattr(callback, "monitor", "steps")
    with pytest.raises(PrivateTrainingError, match=f"{type(callback).__name__}.*{name}.*leave"):
        train(tmp_path, [callback])
    assert not (tmp_path / "ledger.jsonl").exists(), "nothing is spent for it"


def test_a_tuner_is_refused(tmp_path: Path) -> None:
    trainer = Trainer(accelerator="cpu", max_epochs=1, callbacks=[privacy(tmp_path)], logger=False, barebones=False)
    with pytest.raises(PrivateTrainingError, match="LearningRateFinder chooses by what private steps give"):
        Tuner(trainer).lr_find(Ported(), datamodule=data())
    assert not (tmp_path / "ledger.jsonl").exists()


class Declared(Ported):
    """Says what is public."""

    def validation_step(self, batch: UnitBatch, batch_idx: int) -> None:
        inputs_BD, labels_B = batch.rows
        accuracy = (self.head(inputs_BD).argmax(1) == labels_B).float().mean()
        self.log_metric("val_acc", accuracy, batch.is_public, prog_bar=True)


def test_a_figure_that_is_declared_public_is_logged_and_may_choose(tmp_path: Path) -> None:
    keeper, stop = ModelCheckpoint(tmp_path, monitor="val_acc"), EarlyStopping("val_acc")
    by_step = ModelCheckpoint(tmp_path, "{step}", monitor="step", mode="max")
    trainer, bar = train(tmp_path, [keeper, stop, by_step], Declared(), val_is_public=True)
    assert written(tmp_path).keys() == PUBLIC | {"val_acc"} and bar.shown == {"val_acc"}
    assert keeper.best_model_score is not None and trainer.callback_metrics.keys() == {"val_acc", "train/learning_rate"}


def test_a_monitored_figure_that_nothing_declares_is_refused_before_a_step_is_paid(tmp_path: Path) -> None:
    with pytest.raises(PrivateTrainingError, match=r"ModelCheckpoint monitors 'val_acc'.*self\.log_metric\('val_acc'"):
        train(tmp_path, [ModelCheckpoint(tmp_path, monitor="val_acc")], val_is_public=True)
    assert spent_steps(tmp_path) == 0


def test_what_is_asked_for_leaves_under_a_name_that_says_so_and_the_ledger_tells(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer, bar = train(tmp_path, [LogsBeside()], log_private_diagnostics=True)
    told = written(tmp_path).keys() - PUBLIC
    assert {"private/train_acc_step", "private/train_metric", "private/val_acc", "private/direct_acc"} < told
    assert all(name.startswith("private/") for name in told | bar.shown)
    assert all(name in PUBLIC or name.startswith("private/") for name in trainer.callback_metrics)
    assert "private/print: printed_acc" in capfd.readouterr().out
    assert any("private/…" in text for text in caveats(tmp_path))


def test_a_run_on_public_data_logs_as_lightning_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stop = EarlyStopping("train_acc", check_on_train_epoch_end=True)
    _, bar = train(tmp_path, [LogsBeside(), stop], is_public=True)
    logged = {"train_acc_step", "train_error", "val_acc", "epoch_acc", "direct_acc", "experiment_acc", "loggers_acc"}
    assert logged < written(tmp_path).keys() and "train_error" in bar.shown
    assert "printed_acc" in capfd.readouterr().out


@pytest.mark.parametrize("verb", ["validate", "test"])
@pytest.mark.parametrize("is_public", [False, True])
def test_a_verb_tells_of_a_public_file_alone(tmp_path: Path, verb: str, is_public: bool) -> None:
    class Beside(Callback):
        def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
            trainer.logger.log_metrics({"direct_acc": 0.5})  # type: ignore[union-attr]

    class Verbs(Ported):
        test_step = Ported.validation_step

    trainer = Trainer(
        accelerator="cpu",
        callbacks=[privacy(tmp_path), Beside()],
        logger=CSVLogger(tmp_path),
        default_root_dir=tmp_path,
    )
    held_out = data(**{f"{'val' if verb == 'validate' else 'test'}_is_public": is_public})
    held_out.test = held_out.val
    (results,) = getattr(trainer, verb)(Verbs(), held_out)
    assert (results.keys() == {"val_acc", "hp_metric"}) if is_public else not results
    assert is_public or not any(path.read_text().strip() for path in tmp_path.rglob("metrics.csv"))


def test_a_verb_that_logs_private_figures_tells_the_ledger_of_the_training(tmp_path: Path) -> None:
    train(tmp_path, [])
    callback = privacy(tmp_path, log_private_diagnostics=True)
    trainer = Trainer(accelerator="cpu", callbacks=[callback], logger=False, default_root_dir=tmp_path)
    trainer.validate(Ported(), data(val_is_public=True), verbose=False)
    assert not any("private/…" in text for text in caveats(tmp_path))
    (results,) = trainer.validate(Ported(), data(), verbose=False)
    assert results.keys() == {"private/val_acc", "private/hp_metric"}
    assert any("private/… that validate has logged" in text for text in caveats(tmp_path))


def test_a_module_whose_figures_cannot_be_closed_is_not_measured_on_private_rows(tmp_path: Path) -> None:
    class Foreign(LightningModule):
        def validation_step(self, batch: UnitBatch, batch_idx: int) -> None:
            self.log("val_acc", torch.tensor(0.5))

    trainer = Trainer(accelerator="cpu", callbacks=[privacy(tmp_path)], logger=False, default_root_dir=tmp_path)
    with pytest.raises(UserError, match="Foreign.*LogicalBatchModule"):
        trainer.validate(Foreign(), data())
    (results,) = trainer.validate(Foreign(), data(val_is_public=True), verbose=False)
    assert results == {"val_acc": 0.5}
