"""A module or loop of one's own that lets a gradient, or a row, pass by clipping, noise or the closed figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from own_classifier import Checked, Classifier, caveats, collate, spent_steps, train
from private_training import privacy, weights
from torch import Tensor, nn

from datamodules.batches.batch import LogicalBatch
from datamodules.unit_data_module import UnitBatch, UnitDataModule
from doppel.errors import PrivateTrainingError, UserError
from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.private_step import noisy_mean
from tests.private_training import fit

SECRET = "my-secret-diagnosis"
Own = Callable[[Classifier, LogicalBatch], None]


def two_passes(self: Classifier, batch: LogicalBatch) -> None:
    """Each unit is added twice, which is 2 C."""
    reducer = self.begin_step(self.parameters())
    for micro_batch in batch.micro_batches:
        for _ in range(2):
            with self.step_policy.micro_batch(micro_batch, None):
                self.manual_backward(self.row_losses(micro_batch).sum())
    self.end_step(reducer, batch.expected_num_units)


def outside(self: Classifier, batch: LogicalBatch) -> None:
    """A second loss, whose gradient nothing clips."""
    reducer = self.begin_step(self.parameters())
    for micro_batch in batch.micro_batches:
        with self.step_policy.micro_batch(micro_batch, None):
            self.manual_backward(self.row_losses(micro_batch).sum())
        self.manual_backward(self.row_losses(micro_batch).sum())
    self.end_step(reducer, batch.expected_num_units)


def without_noise(self: Classifier, batch: LogicalBatch) -> None:
    """PyTorch's optimiser, of whose steps Lightning tells no callback."""
    for micro_batch in batch.micro_batches:
        with self.step_policy.micro_batch(micro_batch, None):
            self.manual_backward(self.row_losses(micro_batch).sum())
    self.optimizers(use_pl_optimizer=False).step()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (two_passes, "a second pass in one step"),
        (outside, "outside of step_policy.micro_batch"),
        (without_noise, "gradients without noise"),
    ],
)
def test_no_training_step_of_ones_own_takes_a_step_without_clipping_or_noise(
    tmp_path: Path, own: Own, message: str
) -> None:
    class Module(Classifier):
        def training_step(self, batch: LogicalBatch, batch_idx: int) -> None:
            own(self, batch)

    model = Module()
    start = weights(model)
    with pytest.raises(PrivateTrainingError, match=message):
        train(tmp_path, model)
    assert torch.equal(weights(model), start)


def test_gradients_of_public_rows_and_averages_of_weights_are_nobodys_business(tmp_path: Path) -> None:
    """Outside of a step backward passes are as ever, and after the fit, too; a copy of the module is none of ours."""
    model = Checked()
    train(tmp_path, model, [EMAWeightAveraging()])
    rows = torch.ones(3, 8), torch.zeros(3, dtype=torch.int64)
    model.losses(UnitBatch(rows, 3, 1)).sum().backward()
    assert model.head.weight.grad is not None and spent_steps(tmp_path) == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64])
def test_trained_weights_in_which_sums_are_rounded_are_refused_before_anything_is_spent(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """In bfloat16 one unit among a thousand moved the sum by 3.6 C. Frozen weights may be of any type."""
    model = Checked()
    model.extra = nn.Linear(2, 2, dtype=dtype)
    with pytest.raises(PrivateTrainingError, match=rf"extra\.weight\) is {str(dtype)[6:]}, .*dtype=torch\.float32"):
        train(tmp_path, model)
    assert not (tmp_path / "ledger.jsonl").exists()
    parameter = nn.Parameter(torch.zeros(3, dtype=dtype))
    with pytest.raises(PrivateTrainingError, match="of shape"):
        noisy_mean([parameter], GaussianNoise(1.0, 1.0), 10, 0)
    model.extra.requires_grad_(False)
    train(tmp_path, model)
    assert spent_steps(tmp_path) == 6


def test_noise_of_a_step_is_used_once_in_a_loop_of_ones_own() -> None:
    """Counted in each epoch anew, or for each of two parts of a model, the difference of two sums would have none."""
    noise, parts = GaussianNoise(1.0, 1.0), [nn.Parameter(torch.zeros(9)) for _ in range(2)]
    noisy_mean(parts[:1], noise, 10, 0)
    with pytest.raises(PrivateTrainingError, match="noise of step 0 was used before"):
        noisy_mean(parts[1:], noise, 10, 0)
    noisy_mean(parts, noise, 10, 3)
    with pytest.raises(PrivateTrainingError, match="noise of step 1 was used before"):
        noisy_mean(parts, noise, 10, 1)


@pytest.mark.parametrize("by_hook", [True, False])
def test_a_gradient_that_is_changed_after_its_layer_gave_it_away_is_refused(by_hook: bool) -> None:
    """The norm was taken of what it was."""

    class Larger(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad.mul_(50)

    def losses(is_changed: bool) -> Tensor:
        hidden = first(torch.randn(2, 3, 80))
        beside = Larger.apply(hidden) if is_changed and not by_hook else hidden * 1.0
        if is_changed and by_hook:
            beside.register_hook(lambda grad: grad.mul_(20))
        return (beside + second(hidden)).square().sum()  # type: ignore[no-any-return]

    first, second = nn.Linear(80, 80), nn.Linear(80, 80)
    clipper = PerSampleClipper(nn.ModuleList([first, second]), 1.0)
    with clipper.capture(2):
        losses(True).backward()
    with pytest.raises(UnsupportedLayerError, match="changed in place"):
        clipper.accumulate()
    with clipper.capture(2):
        losses(False).backward()
    assert clipper.accumulate().isfinite().all()


@pytest.mark.parametrize("kind", [KeyError, RuntimeError, type("Own", (Exception,), {})])
def test_what_losses_raise_of_a_private_row_is_told_by_type_and_place(tmp_path: Path, kind: type[Exception]) -> None:
    class Module(Classifier):
        def losses(self, batch: UnitBatch) -> Tensor:
            raise kind(SECRET)

    name = rf"losses\(\) raises {kind.__name__} at test_own_steps\.py:\d+, whose message"
    with pytest.raises(UserError, match=name) as told:
        train(tmp_path, Module())
    assert SECRET not in str(told.value) and told.value.__suppress_context__


def test_a_module_trains_on_after_a_training_that_ended_within_a_step(tmp_path: Path) -> None:
    """In the same process, as in a notebook: nothing of the first is left on its parameters or optimiser."""

    class Module(Checked):
        fails = True

        def losses(self, batch: UnitBatch) -> Tensor:
            if self.fails and self.trainer.global_step == 2:
                raise KeyboardInterrupt
            return super().losses(batch)

    model = Module()
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(tmp_path / "first", model)
    Module.fails = False
    rows = torch.ones(3, 8), torch.zeros(3, dtype=torch.int64)
    model.losses(UnitBatch(rows, 3, 1)).sum().backward()
    train(tmp_path / "second", model)
    assert spent_steps(tmp_path / "second") == 6


def test_rows_that_a_data_module_saves_as_its_settings_stay_in_the_process(tmp_path: Path) -> None:
    class Data(UnitDataModule):
        def __init__(self, rows: list[dict[str, Any]], factor: int = 3) -> None:
            super().__init__(rows, "user", collate, batch_size=10)
            self.save_hyperparameters()

    rows = [{"x": [1.0] * 8, "y": i % 2, "user": f"{SECRET}{i}"} for i in range(60)]
    keeper = ModelCheckpoint(tmp_path / "kept", save_last=True, save_weights_only=True)
    for private, callbacks in ((True, [privacy(tmp_path / "ledger")]), (False, [])):
        folder = tmp_path / str(private)
        given = {"logger": CSVLogger(folder), "enable_checkpointing": True, "max_epochs": 1}
        fit(folder, Checked(), Data(rows), [*callbacks, *([keeper] if private else [])], **given)  # type: ignore[arg-type]
        files = [file for place in (folder, tmp_path / "kept") for file in place.rglob("*") if file.is_file()]
        found = [file for file in files if SECRET.encode() in file.read_bytes()]
        assert any(file.suffix == ".ckpt" for file in files) and bool(found) is not private


def test_a_callback_that_trains_more_later_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    with pytest.raises(PrivateTrainingError, match="BackboneFinetuning trains other parameters from some epoch on"):
        train(tmp_path, Checked(), [BackboneFinetuning(1)])
    assert spent_steps(tmp_path) == 0


def test_the_ledger_names_a_profiler(tmp_path: Path) -> None:
    """It counts micro-batches, whose number follows the sampled rows."""
    train(tmp_path, Checked(), profiler="simple")
    assert any("trainer.profiler" in text for text in caveats(tmp_path))


def test_a_layer_without_rows_first_is_refused_without_the_number_of_private_rows() -> None:
    clipper = PerSampleClipper(nn.Sequential(nn.Linear(3, 3)), 1.0)
    with (
        pytest.raises(UnsupportedLayerError, match="first dimension, of 2 or more, must be the rows") as told,
        clipper.capture(117),
    ):
        clipper._model(torch.randn(5, 119, 3))
    assert "117" not in str(told.value) and "119" not in str(told.value)
