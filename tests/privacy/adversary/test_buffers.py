"""The attacker's module keeps what the loss ignores, means of its batches, in a buffer that every checkpoint holds.

No row moves another one's loss or gradient, so the row check passed, and the noise, which is added to gradients, never
reached the buffer. So it is with everything in a state_dict that no optimiser trains.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from own_classifier import WIDTH, Checked, Classifier, spent_steps, train
from private_training import weights
from torch import Tensor, nn

from datamodules.unit_data_module import UnitBatch
from doppel.errors import UserError


class Keeps(Classifier):
    """Has a place to keep something, and keeps it in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(WIDTH))

    def losses(self, batch: UnitBatch) -> Tensor:
        self.keep(batch.rows[0].detach())
        return super().losses(batch)

    def keep(self, inputs: Tensor) -> None:
        self.kept += inputs.mean(0)


class Replaces(Keeps):
    def keep(self, inputs: Tensor) -> None:
        self.kept = self.kept + inputs.mean(0)


class Unseen(Keeps):
    """PyTorch's own counter of writes does not see these."""

    def keep(self, inputs: Tensor) -> None:
        self.kept.data.add_(inputs.mean(0))


class Counts(Keeps):
    def keep(self, inputs: Tensor) -> None:
        self.kept += len(inputs)


class InFrozen(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)

    def keep(self, inputs: Tensor) -> None:
        self.frozen.copy_(inputs.mean(0))


class InExtraState(Keeps):
    seen = 0.0

    def keep(self, inputs: Tensor) -> None:
        self.seen += inputs.mean().item()

    def get_extra_state(self) -> float:
        return self.seen

    def set_extra_state(self, state: Any) -> None:
        self.seen = state


class NewBuffer(Keeps):
    def keep(self, inputs: Tensor) -> None:
        self.register_buffer("later", inputs.mean(0))


KINDS = {
    Keeps: "the buffer 'kept'",
    Replaces: "the buffer 'kept'",
    Unseen: "the buffer 'kept'",
    Counts: "the buffer 'kept'",
    InFrozen: "the frozen parameter 'frozen'",
    InExtraState: "the entry '_extra_state'",
    NewBuffer: "the buffer 'later'",
}


def refused(folder: Path, model: Classifier, match: str) -> None:
    """The model is refused by name, and no file of its weights is left."""
    keeper = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=1, save_top_k=-1, save_last=True)
    with pytest.raises(UserError, match=match) as error:
        train(folder, model, [keeper], enable_checkpointing=True)
    assert error.value.about == type(model).__name__
    assert list((folder / "checkpoints").glob("*.ckpt")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_step_changes_without_noise_is_refused_before_it_is_kept(tmp_path: Path, kind: type[Keeps]) -> None:
    model = kind()
    start = torch.cat([model.head.weight.detach().flatten(), model.head.bias.detach()])
    refused(tmp_path, model, f"^{kind.__name__}: a step changes {KINDS[kind]}")
    assert torch.equal(torch.cat([model.head.weight.flatten(), model.head.bias]), start)
    assert spent_steps(tmp_path) == 1


@pytest.mark.parametrize("kind", [Keeps, Unseen, InFrozen, InExtraState])
def test_made_up_rows_tell_it_before_anything_is_spent(tmp_path: Path, kind: type[Keeps]) -> None:
    class WithRows(kind, Checked):  # type: ignore[misc, valid-type]
        pass

    refused(tmp_path, WithRows(), KINDS[kind])
    assert spent_steps(tmp_path) == 0


class AfterSteps(Classifier):
    """Keeps what it has seen in a step only when the step is over."""

    def __init__(self, late: int, counted: bool) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(WIDTH))
        self.late, self.is_counted = late, counted

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for micro_batch in batch.micro_batches if batch_idx >= self.late else ():
            (self.kept if self.is_counted else self.kept.data).add_(micro_batch.rows[0].mean(0))


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("late", [0, 3, 5])
def test_a_hook_that_keeps_something_later_is_refused_at_the_next_step_or_checkpoint(
    tmp_path: Path, late: int, counted: bool
) -> None:
    """Or at the end: of five, the last step."""
    folder = tmp_path / "checkpoints"
    keeper = ModelCheckpoint(folder, "{step}", every_n_train_steps=2, save_top_k=-1)
    with pytest.raises(UserError, match="changes the buffer 'kept'"):
        train(tmp_path, AfterSteps(late, counted), [keeper], enable_checkpointing=True)
    for path in folder.glob("*.ckpt"):
        assert not torch.load(path)["state_dict"]["kept"].any()


class Scratch(Keeps):
    """Keeps it in a buffer that is in no checkpoint, by which later rows could be moved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scratch", torch.zeros(WIDTH), persistent=False)

    def keep(self, inputs: Tensor) -> None:
        self.scratch += inputs.mean(0)


@pytest.mark.parametrize("is_checked", [False, True])
def test_a_buffer_that_is_in_no_checkpoint_may_not_change_either(tmp_path: Path, is_checked: bool) -> None:
    class WithRows(Scratch, Checked):
        pass

    what = "a made-up row of its probe()" if is_checked else "a step"
    refused(tmp_path, WithRows() if is_checked else Scratch(), f"{re.escape(what)} changes the buffer 'scratch'")
    assert spent_steps(tmp_path) == (0 if is_checked else 1)


class Harmless(Checked):
    """A buffer that is written to and stays as it is, and plain attributes."""

    passes, seen = 0, torch.zeros(WIDTH)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(1))

    def losses(self, batch: UnitBatch) -> Tensor:
        self.seen = self.seen + batch.rows[0].detach().mean(0)
        self.ones.fill_(1.0)
        self.passes += 1
        return super().losses(batch)


def test_what_leaves_in_no_checkpoint_or_stays_as_it_is_may_be_there(tmp_path: Path) -> None:
    model = Harmless()
    start = weights(model).clone()
    keeper = ModelCheckpoint(tmp_path / "checkpoints", every_n_train_steps=2)
    train(tmp_path, model, [keeper], enable_checkpointing=True)
    assert model.passes > 6 and not torch.equal(weights(model), start) and spent_steps(tmp_path) == 6


class Stranger(Classifier):
    """Trains a tensor beside the module: neither clipped nor noised, and its gradient is in the optimiser's state."""

    def __init__(self) -> None:
        super().__init__()
        self.beside = [torch.zeros(WIDTH, requires_grad=True)]

    def losses(self, batch: UnitBatch) -> Tensor:
        return super().losses(batch) + batch.rows[0] @ self.beside[0]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam([*self.parameters(), *self.beside])


def test_a_weight_beside_the_module_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    refused(tmp_path, Stranger(), "its optimiser trains a tensor that is no parameter of the module")
    assert spent_steps(tmp_path) == 0


class InTrained(Keeps):
    """Writes to a weight that the optimiser moves."""

    def keep(self, inputs: Tensor) -> None:
        with torch.no_grad():
            self.head.bias.add_(inputs.mean())


def test_what_a_step_writes_to_a_trained_weight_is_refused_before_it_is_kept(tmp_path: Path) -> None:
    refused(tmp_path, InTrained(), "^InTrained: a step changes the trained parameter 'head.bias'")
    assert spent_steps(tmp_path) == 1


def test_made_up_rows_tell_that_a_trained_weight_is_written_to(tmp_path: Path) -> None:
    class WithRows(InTrained, Checked):
        pass

    refused(tmp_path, WithRows(), "a made-up row .* changes the trained parameter 'head.bias'")
    assert spent_steps(tmp_path) == 0


class HasABase(Checked):
    """Calls a layer of its own ``base``, as language models here call the frozen weights below their LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH)

    def losses(self, batch: UnitBatch) -> Tensor:
        inputs_BD, labels_B = batch.rows
        return nn.functional.cross_entropy(self.head(self.base(inputs_BD)), labels_B, reduction="none")


def test_a_layer_that_is_called_base_is_trained_like_any_other_and_is_no_excuse_for_half_precision(
    tmp_path: Path,
) -> None:
    assert train(tmp_path / "run", HasABase()).global_step == 6
    with pytest.raises(UserError, match="precision bf16-true sums gradients and noise in half precision"):
        train(tmp_path / "half", HasABase(), precision="bf16-true")
    assert not (tmp_path / "half" / "ledger.jsonl").exists()
