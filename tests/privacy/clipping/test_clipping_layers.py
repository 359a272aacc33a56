"""Single layers and unusual uses of them equal the naive loop."""

from __future__ import annotations

import math

import pytest
import torch
from clipping_reference import (
    Batch,
    Losses,
    assert_close,
    assert_equal_to_naive,
    build,
    clipped,
    make_batch,
    mean_losses,
    toy_losses,
    trained,
)
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from doppel.privacy.clipping import formed
from doppel.privacy.clipping.embedding import EmbeddingRule


def test_position_ids_of_every_row_give_the_same_as_broadcast_ones() -> None:
    model, batch = build("gpt2-tied"), make_batch(5)
    position = torch.arange(12).expand(5, -1)

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        ids, labels = batch["input_ids"], batch["labels"]
        given = {"position_ids": position[: len(ids)]} if given_ids else {}
        logits = model(input_ids=ids, attention_mask=batch["attention_mask"], **given).logits
        return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none").sum(1)

    given_ids = False
    broadcast = clipped(model, batch, 1.0, losses=losses)
    given_ids = True
    assert_close(clipped(model, batch, 1.0, losses=losses), broadcast)


def test_head_on_the_last_positions_only_keeps_the_cross_term_exact() -> None:
    def losses(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(input_ids=batch["input_ids"], logits_to_keep=4).logits
        return F.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, -4:], reduction="none").sum(1)

    assert_equal_to_naive(build("gpt2-tied"), make_batch(4), rows_per_unit=2, losses=losses)


class Toy(nn.Module):
    """Embedding (with padding) → LayerNorm without bias → RMSNorm → Linear → tied head with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.layer_norm = nn.LayerNorm(6, bias=False)
        self.rms_norm = nn.RMSNorm(6)
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            parameter.data.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.rms_norm(self.layer_norm(self.embedding(ids))))))


def token_losses(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["ids"])
    return F.cross_entropy(logits.transpose(1, 2), batch["ids"].roll(-1, 1), reduction="none").mean(1)


@pytest.fixture(params=[True, False], ids=["formed", "products"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units' gradients of small matrices are formed, or are products as those of large ones."""
    monkeypatch.setattr(formed, "_SMALL_MATRIX", 2048 if request.param else 0)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("rows_per_unit", [1, 2, 3])
def test_padding_idx_head_bias_and_torch_norms_are_exact(rows_per_unit: int) -> None:
    ids = [[1, 2, 2, 0], [3, 0, 0, 0], [5, 6, 5, 6], [0, 0, 0, 0], [7, 8, 9, 10], [1, 1, 1, 1]]
    assert_equal_to_naive(Toy(), {"ids": torch.tensor(ids)}, rows_per_unit, losses=token_losses)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("head_is_last", [True, False])
def test_a_tied_weight_is_exact_whichever_of_its_layers_comes_first(head_is_last: bool) -> None:
    """The backward pass goes the other way; and ids may be of 32 bits."""
    model = Toy()
    for unused in (model.layer_norm, model.rms_norm, model.hidden):
        unused.requires_grad_(False)

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        def of_words() -> Tensor:
            return model.embedding(batch["ids"].int()).tanh().sum((1, 2))

        def of_head() -> Tensor:
            return model.head(batch["x"]).square().sum((1, 2))

        first, second = (of_words, of_head) if head_is_last else (of_head, of_words)
        return first() + second()

    ids = torch.tensor([[1, 2, 2, 0], [3, 0, 0, 0], [5, 6, 5, 6], [1, 1, 1, 1]])
    x = torch.randn(4, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_equal_to_naive(model, {"ids": ids, "x": x}, 2, losses=losses)


@pytest.mark.usefixtures("either_way")
def test_an_embedding_times_a_constant_is_exact_and_another_of_that_name_is_seen_through() -> None:
    model = Toy()
    model.embedding = Gemma3TextScaledWordEmbedding(11, 6, padding_idx=0, embed_scale=6**0.5).double()
    model.head.weight = model.embedding.weight
    ids = torch.tensor([[1, 2, 2, 0], [3, 0, 0, 0], [5, 6, 5, 6], [1, 1, 1, 1]])
    assert_equal_to_naive(model, {"ids": ids}, 2, losses=token_losses)

    class OddScaledWordEmbedding(Gemma3TextScaledWordEmbedding):
        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(input_ids).tanh()

    odd = OddScaledWordEmbedding(11, 6, padding_idx=0, embed_scale=6**0.5)
    assert not EmbeddingRule.matches(odd) and EmbeddingRule.matches(model.embedding)


def test_linear_without_a_sequence_dimension_is_exact() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)).double()
    assert_equal_to_naive(model, {"x": torch.randn(6, 5, dtype=torch.float64)}, 2, losses=toy_losses)


@pytest.mark.parametrize("name", ["gpt2-dropout", "toy"])
def test_dropout_gives_the_gradient_of_the_same_masks(name: str) -> None:
    torch.manual_seed(0)
    losses: Losses = mean_losses
    if name == "toy":
        model: nn.Module = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2)).double().train()
        batch, losses = {"x": torch.randn(3, 5, 4, dtype=torch.float64)}, toy_losses
    else:
        model, batch = build(name), make_batch(4)
    torch.manual_seed(5)
    found, norms = clipped(model, batch, math.inf, losses=losses)
    torch.manual_seed(5)
    expected = torch.autograd.grad(losses(model, batch).sum(), trained(model))
    assert_close((found, norms), (list(expected), norms))


def test_two_forward_passes_of_different_parts_are_one_capture() -> None:
    """Each layer may run once: which forward it runs in does not matter."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)]).double()
    losses: Losses = lambda model, batch: (model[0](batch["x"]) * model[1](batch["y"])).sum((1, 2))  # noqa: E731
    batch = {key: torch.randn(4, 2, 4, dtype=torch.float64) for key in "xy"}
    assert_equal_to_naive(model, batch, 2, losses=losses)


def test_a_forward_of_ones_own_is_exact_and_put_back() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    own = model[0].forward = lambda x: torch.tanh(F.linear(x, model[0].weight, model[0].bias))
    assert_equal_to_naive(model, {"x": torch.randn(4, 5, 4, dtype=torch.float64)}, losses=toy_losses)
    assert vars(model[0])["forward"] is own and "forward" not in vars(model[1])
