"""The attacker's row is long, so that the model treats the rows beside it in another way, and all gradients move.

Phi-3's "longrope" chooses the frequencies of all rows by the longest one of the batch: one row more then moved the sum
by up to eight times the bound. A loss that divides by the longest row does it too. Where rows change places within
``losses()``, the clipper takes the norm of one for that of another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from own_classifier import WIDTH, Checked, spent_steps, train
from private_training import data_module, fit, privacy, weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, Phi3Config

from callbacks import row_independence
from callbacks.row_independence import check_row_independence
from datamodules.batches.batch import IGNORE_INDEX, MicroBatch
from datamodules.unit_data_module import UnitBatch
from doppel.errors import UserError
from doppel.models.adapters import LoraArguments
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.ledger import Ledger
from lightning_modules.causal_lm import UtteranceLM


def phi3(tiny_model: str, folder: Path, rope: dict[str, object] | None) -> str:
    """A folder with a random Phi-3 of 64 positions, trained on 16 if its frequencies are scaled."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": len(tokenizer)}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": 16 if rope else 64}
    config = Phi3Config(**sizes, **heads, **special, **lengths, bos_token_id=tokenizer.bos_token_id, rope_scaling=rope)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


class ByTheLongestRow(UtteranceLM):
    """Divides every row's loss by the longest row of the batch."""

    def losses(self, batch: MicroBatch) -> Tensor:
        return super().losses(batch) / batch.input_ids.shape[1]


class ByGradientAlone(UtteranceLM):
    """Its losses have the right values; their gradients are those of the mean over the batch."""

    def losses(self, batch: MicroBatch) -> Tensor:
        losses = super().losses(batch)
        return losses.detach() + losses.mean() - losses.mean().detach()


class ByAVeryLongRow(UtteranceLM):
    """Weighs the rows beside one of more than 64 tokens in another way."""

    def losses(self, batch: MicroBatch) -> Tensor:
        return super().losses(batch) * (2 if batch.input_ids.shape[1] > 64 else 1)


class WithMemory(UtteranceLM):
    """What the longest row so far was changes the loss of every later one."""

    longest = 0

    def losses(self, batch: MicroBatch) -> Tensor:
        losses = super().losses(batch) * (1 + self.longest)
        self.longest = max(self.longest, batch.input_ids.shape[1] - 8)
        return losses


def test_a_model_that_looks_at_the_longest_row_is_refused(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    module = UtteranceLM(base_model=phi3(tiny_model, tmp_path / "long", LONG))
    with pytest.raises(UserError, match=r"UtteranceLM.*gradient.*longrope"):
        fit(tmp_path, module, data_module(corpus), [privacy(tmp_path)], max_epochs=1)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert not ledger.mechanisms[ledger.mechanism_id("default", "fit")].done_steps


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_model_that_looks_at_each_row_alone_is_not(
    tiny_model: str, corpus: str, tmp_path: Path, precision: str
) -> None:
    module = UtteranceLM(base_model=phi3(tiny_model, tmp_path / "plain", None))
    fit(tmp_path, module, data_module(corpus), [privacy(tmp_path)], max_epochs=1, precision=precision)
    (scope,) = Ledger(tmp_path / "ledger.jsonl").summary()["scopes"].values()
    assert not any("not checked" in text for text in scope["caveats"])


class ByALittle(UtteranceLM):
    """Its losses have the right values; beside a longer row gradients are longer by less than bfloat16 is off."""

    def losses(self, batch: MicroBatch) -> Tensor:
        losses = super().losses(batch)
        return losses + (losses - losses.detach()) * (0.004 if batch.input_ids.shape[1] > 8 else 0)


@pytest.mark.parametrize("kind", [UtteranceLM, ByALittle])
def test_what_half_precision_does_to_a_row_alone_is_no_other_row(
    kind: type[UtteranceLM], tiny_model: str, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deep bases that public text has taught are off by a fifth; here any more than nothing is taken to be too much."""
    monkeypatch.setattr(row_independence, "_OF_HALF", {torch.bfloat16: row_independence._Rounding(2e-2, 0.0, 0.0)})
    run = partial(fit, tmp_path, kind(base_model=tiny_model), data_module(corpus), [privacy(tmp_path)])
    if kind is UtteranceLM:
        run(max_epochs=1, precision="bf16-mixed")
        return
    with pytest.raises(UserError, match="the gradient of a made-up row beside a longer one changes by 0.40%"):
        run(max_epochs=1, precision="bf16-mixed")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (ByTheLongestRow, "the loss of a made-up row in a batch of 16 changes by"),
        (ByGradientAlone, "the loss of a made-up row in a batch of 32 with one whose loss is nan changes"),
        (ByAVeryLongRow, "the loss of a made-up row beside a longer one changes by 100"),
        (WithMemory, "the loss of a made-up row beside a longer one changes by"),
    ],
)
def test_a_loss_that_looks_at_other_rows_is_refused_by_name(
    tiny_model: str, corpus: str, tmp_path: Path, kind: type[UtteranceLM], what: str
) -> None:
    with pytest.raises(UserError, match=f"{kind.__name__} cannot.*{what}"):
        fit(tmp_path, kind(base_model=tiny_model), data_module(corpus), [privacy(tmp_path)], max_epochs=1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss_divisor": None},
        {"lora": LoraArguments(rank=2)},
        {"activation_checkpointing": True},
        {"dropout": 0.3},
        {"base_model": "models/base"},
    ],
    ids=str,
)
def test_the_shipped_models_pass_and_are_left_as_they_were(tiny_model: str, settings: dict[str, object]) -> None:
    module = UtteranceLM(**({"base_model": tiny_model} | settings))
    before, state = weights(module).clone(), torch.get_rng_state()
    dropouts = [part.p for part in module.modules() if isinstance(part, nn.Dropout)]
    assert check_row_independence(module.train()) is None
    assert torch.equal(weights(module), before) and torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert [part.p for part in module.modules() if isinstance(part, nn.Dropout)] == dropouts


class AtRandom(UtteranceLM):
    """Weighs its rows at random."""

    def losses(self, batch: MicroBatch) -> Tensor:
        losses = super().losses(batch)
        return losses * torch.rand_like(losses)


def test_what_cannot_be_checked_is_named_in_the_ledger_and_voids_nothing(
    tiny_model: str, corpus: str, tmp_path: Path, said: list[str]
) -> None:
    fit(tmp_path, AtRandom(base_model=tiny_model), data_module(corpus), [privacy(tmp_path)], max_epochs=1)
    (scope,) = Ledger(tmp_path / "ledger.jsonl").summary()["scopes"].values()
    reason = "depends on that row alone was not checked: AtRandom draws at random"
    assert any(reason in text for text in scope["caveats"]) and any(reason in text for text in said)
    assert not any(reason in text for text in scope["voids"])


class Scaling(nn.Module):
    """A layer of one's own, which has no fast rule, and breaks what the generic one needs."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.scale, self.how = nn.Parameter(torch.ones(WIDTH)), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "mixes rows":
            return self.scale * (x - x.mean(0))
        if self.how == "draws in another order":
            return self.scale * x[:, torch.randperm(WIDTH)]
        if self.how == "looks at data" and x.sum() > 1e9:
            return self.scale * x.flip(0)
        return self.scale * x


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("looks at data", "'head.1' .Scaling.*control flow"),
        ("draws in another order", "'head.1' .Scaling.*random"),
        ("mixes rows", "'head.1' .Scaling.*mixes the rows"),
    ],
)
def test_a_layer_whose_rule_fails_on_what_it_is_given_spends_no_step(how: str, named: str, tmp_path: Path) -> None:
    model = Checked()
    model.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), Scaling(how), nn.Linear(WIDTH, 2))
    with pytest.raises(UserError, match=named):
        train(tmp_path, model)
    assert spent_steps(tmp_path) == 0


def test_a_layer_called_twice_spends_no_step(tmp_path: Path) -> None:
    model = Checked()
    shared = nn.Linear(WIDTH, WIDTH)
    model.head = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(WIDTH, 2))
    with pytest.raises(UserError, match="'head.0' .Linear. was called twice"):
        train(tmp_path, model)
    assert spent_steps(tmp_path) == 0


class Moving(Checked):
    """Its head sees the rows in another order than they come in; its losses are in theirs again."""

    def __init__(self, order: Callable[[Tensor, Tensor], Tensor], moves_inputs: bool = True) -> None:
        super().__init__()
        self.order, self.moves_inputs = order, moves_inputs

    def losses(self, batch: UnitBatch) -> Tensor:
        inputs, labels = batch.rows
        order = self.order(inputs, labels)
        logits = self.head(inputs[order]) if self.moves_inputs else self.head(inputs)[order]
        losses = nn.functional.cross_entropy(logits, labels[order], reduction="none")
        return losses[order.argsort()]


ORDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "longest first": lambda x, y: x.sum(1).argsort(descending=True),
    "shortest first": lambda x, y: x.sum(1).argsort(),
    "by label": lambda x, y: y.argsort(),
    "reversed": lambda x, y: torch.arange(len(x)).flip(0),
    "at random": lambda x, y: torch.randperm(len(x)),
}


@pytest.mark.parametrize("how", ORDERS)
def test_rows_that_change_places_are_refused_before_anything_is_spent(how: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="Moving cannot be trained privately.*gradient.*autograd on the row alone.*sort"
    ):
        train(tmp_path, Moving(ORDERS[how]))
    assert spent_steps(tmp_path) == 0


def test_rows_may_change_places_behind_the_last_layer() -> None:
    for order in ORDERS.values():
        assert check_row_independence(Moving(order, moves_inputs=False)) is None


@pytest.mark.parametrize("checkpointing", [False, True])
def test_in_half_precision_a_longer_row_beside_moves_others_by_no_more_than_is_told(checkpointing: bool) -> None:
    """The sum of a batch with one row more, less that row's own contribution, is the sum without it: to .001 C on some
    processors, .004 C where matrix units round by other shapes, and docs/claims.md tells what was measured."""
    bound, model = 0.1, UtteranceLM(base_model="models/base", activation_checkpointing=checkpointing)
    ids = torch.randint(5, 1000, (4, 200), generator=torch.Generator().manual_seed(0))

    def clipped(rows: list[int], lengths: tuple[int, ...] = (12, 30, 60, 200)) -> Tensor:
        labels = ids[rows].clone()
        for label, row in zip(labels, rows, strict=True):
            label[lengths[row] :] = IGNORE_INDEX
        width = max(lengths[row] for row in rows)
        batch, clipper = MicroBatch(ids[rows][:, :width], labels[:, :width], len(rows)), PerSampleClipper(model, bound)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), clipper.capture(len(rows)):
            model.row_losses(batch).sum().backward()
        clipper.accumulate()
        clipper.close()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    moved = clipped([0, 1, 2, 3]) - clipped([0, 1, 2])
    assert moved.norm() <= bound
    assert (moved - clipped([3])).norm() <= 6e-3 * bound
