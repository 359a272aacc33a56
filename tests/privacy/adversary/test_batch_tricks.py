"""The attacker's batch, not its rows, decides what a row gives: tricks of ordinary training that two rows do not show.

Each moved the clipped sum by 1 to 16 times C for one unit more, and passed a check by a long and a short row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from own_classifier import Checked, caveats, spent_steps, train
from private_training import weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, pad
from torch.nn.utils.rnn import pad_sequence

from callbacks.row_independence import check_row_independence
from datamodules.unit_data_module import UnitBatch
from doppel.errors import UserError
from lightning_modules.training.logical_batch_module import LogicalBatchModule

PAGE = Path(__file__).parents[3] / "docs" / "own-model.md"
WIDTH, SEEDS = 16, range(8)


class Text(LogicalBatchModule):
    """A label of each text, by the mean of its words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, WIDTH)
        self.hidden, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def probe(self) -> tuple[UnitBatch, UnitBatch]:
        short, long = torch.arange(1, 4), torch.arange(1, 41)
        rows = [pad_sequence(words, batch_first=True) for words in ([short], [long, short])]
        alone, beside = (UnitBatch((words, torch.arange(len(words)).flip(0)), len(words), 1) for words in rows)
        return alone, beside

    def features(self, words: Tensor) -> Tensor:
        mask = (words != 0).unsqueeze(-1)
        x: Tensor = (self.embed(words) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return x

    def logits(self, words: Tensor) -> Tensor:
        x: Tensor = self.head(torch.tanh(self.hidden(self.features(words))))
        return x

    def losses(self, batch: UnitBatch) -> Tensor:
        words, labels = batch.rows
        return cross_entropy(self.logits(words), labels, reduction="none")


class SkipsNan(Text):
    """Leaves a batch out if one loss is nan."""

    def losses(self, batch: UnitBatch) -> Tensor:
        losses = super().losses(batch)
        return torch.zeros_like(losses, requires_grad=True) if losses.isnan().any() else losses


class MasksNan(Text):
    def losses(self, batch: UnitBatch) -> Tensor:
        losses = super().losses(batch)
        return losses.nan_to_num() * losses.isfinite().all()


class RaisesOnNan(Text):
    def losses(self, batch: UnitBatch) -> Tensor:
        losses = super().losses(batch)
        assert not losses.isnan().any(), losses
        return losses


class Regrouped(Text):
    """Puts rows in order before its layers, and losses in theirs again: by four buckets in turn."""

    def order(self, words: Tensor, labels: Tensor) -> Tensor:
        return (torch.arange(len(words)) % 4).argsort(stable=True)

    def losses(self, batch: UnitBatch) -> Tensor:
        words, labels = batch.rows
        order = self.order(words, labels)
        return cross_entropy(self.logits(words[order]), labels[order], reduction="none")[order.argsort()]


class RegroupedByLength(Regrouped):
    def order(self, words: Tensor, labels: Tensor) -> Tensor:
        return ((words != 0).sum(1) // 8).argsort(stable=True)


class RegroupedByLabel(Regrouped):
    """Its made-up rows have one label, which is always 0."""

    def order(self, words: Tensor, labels: Tensor) -> Tensor:
        return labels.argsort(stable=True)

    def probe(self) -> tuple[UnitBatch, UnitBatch]:
        alone, beside = super().probe()
        for batch in (alone, beside):
            batch.rows = batch.rows[0], torch.zeros_like(batch.rows[1])
        return alone, beside


class BatchStatistics(Text):
    """Centres features over the batch, from eight rows on."""

    rows = 8

    def features(self, words: Tensor) -> Tensor:
        x = super().features(words)
        return x - x.mean(0) if len(x) >= self.rows else x


class RunningMaximum(Text):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()), persistent=False)

    def features(self, words: Tensor) -> Tensor:
        x = super().features(words)
        self.largest = torch.maximum(self.largest, x.detach().abs().max())
        return x / self.largest.clamp(min=1e-3)


class Experts(Text):
    """Each of four experts takes as many rows as its share of the batch, and at least four."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def features(self, words: Tensor) -> Tensor:
        x = super().features(words)
        gates = self.route(x).softmax(1)
        chosen = one_hot(gates.argmax(1), 4)
        places = (chosen.cumsum(0) * chosen).sum(1)
        has_room = (places <= max(int(1.25 * len(x) / 4), 4)).unsqueeze(1)
        mixed = torch.stack([expert(x) for expert in self.experts], 2) * (gates * chosen).unsqueeze(1)
        return x + has_room * mixed.sum(2)


class CutAt90(Text):
    """Cuts texts where 90 % of the batch's end."""

    def cut(self, lengths: Tensor) -> Tensor:
        return lengths.quantile(0.9)

    def losses(self, batch: UnitBatch) -> Tensor:
        words, labels = batch.rows
        length = max(int(self.cut((words != 0).sum(1).float()).ceil()), 1)
        return super().losses(UnitBatch((words[:, :length], labels), batch.num_units, 1))


class CutAtTwice(CutAt90):
    """Cuts texts at twice the mean length."""

    def cut(self, lengths: Tensor) -> Tensor:
        return 2 * lengths.mean()


class HardestHalf(Text):
    def losses(self, batch: UnitBatch) -> Tensor:
        losses = super().losses(batch)
        hardest = losses.topk(max(len(losses) // 2, 1)).indices
        return losses * torch.zeros_like(losses).index_fill(0, hardest, 1.0)


class ByTheLargest(Text):
    def losses(self, batch: UnitBatch) -> Tensor:
        losses = super().losses(batch)
        return losses / losses.detach().max().clamp(min=1.0)


class Limited(torch.autograd.Function):
    """The identity; its gradient over the whole batch has at most a norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, largest: float) -> Tensor:
        ctx.largest = largest
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * (ctx.largest / grad.nan_to_num().norm().clamp(min=ctx.largest)), None


class LimitsGradient(Text):
    largest = 1.0

    def features(self, words: Tensor) -> Tensor:
        x: Tensor = Limited.apply(super().features(words), self.largest)  # type: ignore[no-untyped-call]
        return x


class LimitsAnyGradient(LimitsGradient):
    largest = 0.01


class LimitsGradientLate(LimitsGradient):
    """No gradient reaches its limit yet."""

    largest = 1000.0


class Tempered(Text):
    """Gives another loss with each call."""

    calls = 0

    def losses(self, batch: UnitBatch) -> Tensor:
        self.calls += 1
        return super().losses(batch) * (1 + self.calls / 100)


class PaddingOfZeros(Text):
    """Leaves padding out by a row of zeros, which the noise of the first step moves."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, WIDTH, padding_idx=0)

    def features(self, words: Tensor) -> Tensor:
        x: Tensor = self.embed(words).sum(1) / (words != 0).sum(1, keepdim=True).clamp(min=1)
        return x


TRICKS: dict[type[Text], str] = {
    PaddingOfZeros: "the loss of a made-up row in a batch of 32.*padding_idx",
    SkipsNan: "the loss of a made-up row in a batch of 32 with one whose loss is nan changes by 100",
    MasksNan: "the loss of a made-up row in a batch of 32 with one whose loss is nan changes by 100",
    RaisesOnNan: "raises AssertionError where the loss of a row is nan",
    Regrouped: "the gradient of a made-up row in a batch of 16",
    RegroupedByLength: "the gradient of a made-up row in a batch of 16",
    RegroupedByLabel: r"two rows that are alike in rows\[1\].*labels",
    BatchStatistics: "the loss of a made-up row in a batch of 16",
    RunningMaximum: "the loss of a made-up row.*a buffer that losses.. writes",
    Experts: "the loss of a made-up row in a batch of 16",
    CutAt90: "the loss of a made-up row in a batch of 16",
    CutAtTwice: "the loss of a made-up row in a batch of 16",
    HardestHalf: "the loss of a made-up row in a batch of 16",
    ByTheLargest: "the loss of a made-up row in a batch of 16",
    LimitsGradient: "the (gradient|clipped sum) of",
    LimitsAnyGradient: "the (gradient|clipped sum) of",
    LimitsGradientLate: "the (gradient|clipped sum) of",
    Tempered: "another loss when it comes again under the same seed",
}


def model(kind: type[Text], seed: int) -> Text:
    torch.manual_seed(seed)
    return kind().train()


@pytest.mark.parametrize("kind", TRICKS)
def test_a_trick_of_the_batch_is_refused_by_name_whatever_the_weights(kind: type[Text]) -> None:
    for seed in SEEDS:
        module = model(kind, seed)
        before = weights(module).clone()
        with pytest.raises(UserError, match=f"^{kind.__name__}.*{TRICKS[kind]}"):
            check_row_independence(module)
        assert torch.equal(weights(module), before)
        assert all(parameter.grad is None for parameter in module.parameters())
        assert not any(part._forward_hooks for part in module.modules())


class Dropping(Text):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def features(self, words: Tensor) -> Tensor:
        x: Tensor = self.dropout(super().features(words))
        return x


class NanIsZero(Text):
    """A row whose loss is nan gives nothing, and its neighbours what they give."""

    def losses(self, batch: UnitBatch) -> Tensor:
        losses = super().losses(batch)
        return losses.where(~losses.isnan(), 0.0)


class EmptyIsNan(Text):
    def features(self, words: Tensor) -> Tensor:
        mask = (words != 0).unsqueeze(-1)
        x: Tensor = (self.embed(words) * mask).sum(1) / mask.sum(1)
        return x


class EmptyIsRefused(Text):
    def features(self, words: Tensor) -> Tensor:
        if not (words != 0).any(1).all():
            raise ValueError("an empty text")
        return super().features(words)


class LimitsEachRow(Text):
    """Its gradients are limited, each by itself."""

    def logits(self, words: Tensor) -> Tensor:
        x = super().logits(words)
        if x.requires_grad:
            x.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
        return x


class Attentive(Text):
    """Masked attention; its micro-batches are a dict with shared positions, a mask and words in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(64, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)

    def probe(self) -> tuple[UnitBatch, UnitBatch]:
        batches = super().probe()
        for batch in batches:
            words, labels = batch.rows
            names = ["calendar", "weather"][-len(labels) :]
            places = torch.arange(words.shape[1]).unsqueeze(0)
            batch.rows = {"words": words, "mask": words == 0, "places": places, "names": names}
        return batches

    def losses(self, batch: UnitBatch) -> Tensor:
        rows = batch.rows
        states = self.layer(self.embed(rows["words"]) + self.places(rows["places"]), src_key_padding_mask=rows["mask"])
        labels = torch.tensor([len(name) % 3 for name in rows["names"]])
        return cross_entropy(self.head(states[:, 0]), labels, reduction="none")


@pytest.mark.parametrize("kind", [Text, Dropping, NanIsZero, EmptyIsNan, EmptyIsRefused, LimitsEachRow, Attentive])
def test_a_model_whose_rows_are_independent_is_not_refused(kind: type[Text]) -> None:
    for seed in SEEDS:
        module = model(kind, seed)
        before, state = weights(module).clone(), torch.get_rng_state()
        assert check_row_independence(module) is None
        assert torch.equal(weights(module), before) and torch.equal(torch.get_rng_state(), state)


class LargerBatches(BatchStatistics):
    rows = 33


class OtherValues(Regrouped):
    def order(self, words: Tensor, labels: Tensor) -> Tensor:
        return ((words != 0).sum(1) // 64).argsort(stable=True)


class LargerGradients(LimitsGradient):
    largest = 1e9


class Later(BatchStatistics):
    rows = 0

    def features(self, words: Tensor) -> Tensor:
        return super().features(words) if self._trainer and self.trainer.global_step else Text.features(self, words)


UNSEEN = {
    LargerBatches: "batches of more than 32 rows",
    OtherValues: "values that no made-up row has",
    LargerGradients: "a limit that no made-up gradient reaches",
    Later: "from a later step on",
}


@pytest.mark.parametrize("kind", UNSEEN)
def test_what_made_up_rows_do_not_show_stands_on_the_page(kind: type[Text]) -> None:
    assert check_row_independence(model(kind, 0)) is None
    assert UNSEEN[kind] in " ".join(PAGE.read_text(encoding="utf-8").split())


class OwnStep(Checked):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)


def test_a_training_step_of_ones_own_is_named_in_the_ledger(tmp_path: Path) -> None:
    train(tmp_path, OwnStep())
    assert any("OwnStep has a training_step of its own" in text for text in caveats(tmp_path))


@pytest.mark.parametrize("kind", [Text, Attentive])
def test_a_model_whose_rows_are_independent_is_not_refused_once_noise_has_moved_all_its_weights(
    kind: type[Text],
) -> None:
    module = model(kind, 0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert check_row_independence(module) is None


def test_steps_that_were_paid_for_weights_whose_rows_mix_are_told_by_every_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an earlier version, which did not see it before the first step."""

    class Mixes(Checked):
        def losses(self, batch: UnitBatch) -> Tensor:
            losses = super().losses(batch)
            return losses / losses.detach().max()

    with monkeypatch.context() as patch:
        patch.setattr("callbacks.differential_privacy.check_row_independence", lambda module: None)
        train(tmp_path, Mixes(), max_steps=3).save_checkpoint(tmp_path / "paid.ckpt")
    spent = spent_steps(tmp_path)
    with pytest.raises(UserError, match="Mixes cannot be trained privately"):
        train(tmp_path, Mixes(), ckpt_path=str(tmp_path / "paid.ckpt"))
    assert spent_steps(tmp_path) == spent > 0
    assert any("a made-up row changed what another one gives" in text for text in caveats(tmp_path))


def test_a_trick_spends_no_step(tmp_path: Path) -> None:
    class Largest(Checked):
        def losses(self, batch: UnitBatch) -> Tensor:
            losses = super().losses(batch)
            return losses / losses.detach().max()

    with pytest.raises(UserError, match="Largest cannot be trained privately"):
        train(tmp_path, Largest())
    assert spent_steps(tmp_path) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda alone, beside: (beside, beside), "must give a micro-batch of one unit, and one of two"),
        (lambda alone, beside: (alone, UnitBatch((beside.rows[0],), 2, 1)), "two batches of different form: rows"),
        (lambda alone, beside: (UnitBatch(0, 1, 1), UnitBatch(0, 2, 1)), "a UnitBatch whose rows cannot be repeated"),
        (
            lambda *batches: [UnitBatch((x.rows[0].T, x.rows[1]), x.num_units, 1) for x in batches],
            r"rows\[0\], whose first dimension is not the rows",
        ),
        (
            lambda alone, beside: (alone, UnitBatch((pad(beside.rows[0], (0, 600)), beside.rows[1]), 2, 1)),
            "more than 512 positions.*in a third batch",
        ),
    ],
    ids=["units", "form", "rows", "first", "long"],
)
def test_rows_that_cannot_be_mixed_are_an_error_of_one_line(change: Any, message: str) -> None:
    class Other(Text):
        def probe(self) -> Any:
            return change(*super().probe())

    with pytest.raises(UserError, match=f"^Other: its probe.. .*{message}") as error:
        check_row_independence(Other())
    assert "\n" not in str(error.value)
