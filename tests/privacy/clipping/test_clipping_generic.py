"""Layers without a rule of their own: exact by torch.func, to the naive loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from clipping_reference import (
    Batch,
    assert_close,
    assert_equal_to_naive,
    clipped,
    grads_of,
    median_bound,
    naive,
    norm_of,
    relative_error,
    rows_of,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D

from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError, generic


class Scaled(nn.Module):
    """Raw parameters of one's own above layers that have rules, one of them in a list and one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(6, 6), nn.Dropout(0.4)
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 6))
        self.shifts = nn.ParameterList([torch.ones(6), torch.zeros(6)])

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.drop(torch.relu_(self.inner(x * self.scale) + self.shifts[0])) + self.shifts[1]


class WithToken(nn.Module):
    """The model itself has a parameter: a token before the others, and positions by a module without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.ones(1, 1, 6)), Positions()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.layer(x + self.positions(x.shape[1]))


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 9, 6))

    def forward(self, length: int) -> Tensor:
        return self.table[:, :length]


class Attending(nn.Module):
    """Attention with masks that have rows, that have none, and none at all; dropout on the weights."""

    def __init__(self, masks: str, dropout: float = 0.3, **options: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, dropout=dropout, batch_first=True, **options)  # type: ignore[arg-type]
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        num_rows, length = x.shape[:2]
        options = {}
        if "causal" in self.masks:
            options["attn_mask"] = torch.ones(length, length, dtype=torch.bool).triu(1)
        if "rows" in self.masks:
            options["attn_mask"] = (x @ x.mT > 0.5).repeat_interleave(2, 0) & ~torch.eye(length, dtype=torch.bool)
        if "padding" in self.masks:
            options["key_padding_mask"] = (x[..., 0] > 1) & (torch.arange(length) > 0)
        output, weights = self.attention(x, x, x, need_weights="weights" in self.masks, **options)
        return output if weights is None else output + weights.sum((1, 2))[:, None, None]


class Two(nn.Module):
    """A layer used twice, and a weight that two modules and a convolution's transpose share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.conv, self.back = nn.Conv1d(6, 4, 3, padding=1), nn.ConvTranspose1d(4, 6, 3, padding=1)
        self.second.weight, self.back.weight = self.first.weight, nn.Parameter(self.conv.weight.detach())
        self.conv.weight = self.back.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.tanh(self.first(x)))
        return self.back(torch.tanh(self.conv(x.mT))).mT + x


class Again(nn.Module):
    """Layers with fast rules that are called more than once, under a checkpoint too; all but one call by position."""

    def __init__(self, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.linear, self.norm, self.rms, self.conv = nn.Linear(6, 6), nn.LayerNorm(6), nn.RMSNorm(6), Conv1D(6, 6)
        self.once, self.is_checkpointed = nn.Linear(6, 6, bias=False), is_checkpointed
        self.norm.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = checkpoint(self.block, x, use_reentrant=False) if self.is_checkpointed else self.block(x)
        return self.once(x)

    def block(self, x: Tensor) -> Tensor:
        return self.norm(x + self.conv(torch.tanh(self.linear(input=self.rms(x)))))


class Encoding(nn.Module):
    """Words that are embedded twice beside positions of no row, with a tied head and one more that is called once."""

    def __init__(self, num_heads: int, is_twice: bool = True) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 6, padding_idx=0), nn.Linear(6, 7)
        self.places, self.num_heads, self.is_twice = nn.Embedding(5, 6), num_heads, is_twice
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        ids = (x[..., :2] * 3).long().clamp(-3, 3) + 3
        place = torch.arange(x.shape[1])[None]
        h = self.words(ids[..., 0]) + self.places(place)
        if self.is_twice:
            h = h + torch.tanh(self.words(ids[..., 1])) * self.places(place.flip(1))
        for _ in range(self.num_heads):
            h = self.head(h)[..., :6].sin()
        return h


class Cells(nn.Module):
    """A recurrent cell, called for each position."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        state, seen = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            seen.append(state[0] if isinstance(state, tuple) else state)
        return self.head(torch.stack(seen, 1))


class OfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(6, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, input2=x.flip(1))


class Bag(nn.Module):
    """Words of each row, with repeated words, padding and a row without any."""

    def __init__(self, mode: str, is_weighted: bool = False) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(5, 6, mode=mode, padding_idx=0)
        self.head, self.is_weighted = nn.Linear(6, 3), is_weighted

    def forward(self, x: Tensor) -> Tensor:
        ids = (3 * x).round().long().clamp(0, 4)
        return self.head(self.bag(ids, per_sample_weights=x if self.is_weighted else None))


SHAPES = {1: (6, 5), 2: (6, 5, 5), 3: (6, 3, 4, 3)}
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Conv1d": (lambda: nn.Conv1d(6, 4, 3, padding=1), SHAPES[1]),
    "Conv1d, causal": (lambda: nn.Sequential(nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(6, 4, 3, dilation=1)), SHAPES[1]),
    "Conv2d": (lambda: nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2), SHAPES[2]),
    "Conv2d, circular": (lambda: nn.Conv2d(6, 4, 3, padding="same", padding_mode="circular", bias=False), SHAPES[2]),
    "Conv3d": (lambda: nn.Conv3d(6, 2, 2), SHAPES[3]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(6, 2, 3), SHAPES[2]),
    "GroupNorm": (lambda: nn.Sequential(nn.Conv2d(6, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(inplace=False)), SHAPES[2]),
    "InstanceNorm": (lambda: nn.InstanceNorm2d(6, affine=True), SHAPES[2]),
    "PReLU": (lambda: nn.Sequential(nn.Linear(6, 6), nn.PReLU(5), nn.PReLU()), (5, 6)),
    "Bilinear": (OfTwo, (5, 6)),
    "EmbeddingBag, sum": (lambda: Bag("sum", is_weighted=True), (6,)),
    "EmbeddingBag, mean": (lambda: Bag("mean"), (6,)),
    "EmbeddingBag, max": (lambda: Bag("max"), (6,)),
    "attention": (lambda: Attending(""), (5, 6)),
    "attention, weights": (lambda: Attending("weights padding"), (5, 6)),
    "attention, causal": (lambda: Attending("causal padding", bias=False), (5, 6)),
    "attention, as many positions as rows": (lambda: Attending("causal padding"), (6, 6)),
    "attention, masks of rows": (lambda: Attending("rows", add_bias_kv=True), (5, 6)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), (5, 6)),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(6, 2, 8, norm_first=True, batch_first=True), 2, None, False
        ),
        (5, 6),
    ),
    "own module": (Scaled, (5, 6)),
    "own model": (WithToken, (5, 6)),
    "called twice and shared": (Two, (5, 6)),
    "fast, called again": (Again, (5, 6)),
    "fast, called again, checkpointed": (lambda: Again(is_checkpointed=True), (5, 6)),
    "embedding called twice, tied": (lambda: Encoding(1), (5, 6)),
    "embedding called twice, its head never": (lambda: Encoding(0), (5, 6)),
    "head called twice, tied": (lambda: Encoding(2, is_twice=False), (5, 6)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), (5, 6)),
    "LSTM cells": (lambda: Cells(nn.LSTMCell(6, 5)), (4, 6)),
    "GRU cells": (lambda: Cells(nn.GRUCell(6, 5)), (4, 6)),
    "RNN cells": (lambda: Cells(nn.RNNCell(6, 5, nonlinearity="relu")), (4, 6)),
}


def build(name: str, dtype: torch.dtype = torch.float64, num_rows: int = 6) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, x = make(), torch.randn(num_rows, *shape)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype), {"x": x.to(dtype), "weights": torch.linspace(0.1, 2.0, num_rows).to(dtype)}


def losses(model: nn.Module, batch: Batch) -> Tensor:
    return batch["weights"] * model(batch["x"]).flatten(1).square().mean(1)


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


@pytest.mark.parametrize("name", MODELS)
def test_clipped_sum_equals_naive_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of one row and of two; all units in one block, and in blocks that are formed again."""
    model, batch = build(name)
    without_dropout(model)
    for rows_per_unit in (1, 2):
        for block in (2**25, 1):
            monkeypatch.setattr(generic, "BLOCK_NUMBERS", block)
            assert_equal_to_naive(model, batch, rows_per_unit, (1,), losses, tolerance=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_float32_is_exact_to_1e_6_but_for_the_room_of_the_norm(name: str) -> None:
    """Against float64: gradients and norms are exact to 1e-6; a clipped unit is shorter by what rounding may hide.

    That room is never given up: with it ‖cᵢgᵢ‖ ≤ C holds as computed, which the naive loop does not promise.
    """
    model, batch = build(name, torch.float32)
    without_dropout(model)
    exact, exact_batch = copy.deepcopy(model).double(), {key: value.double() for key, value in batch.items()}
    bound, clipped_sum = median_bound(exact, exact_batch, losses=losses)
    found = clipped(model, batch, math.inf, losses=losses)
    assert_close(found, naive(exact, exact_batch, math.inf, losses=losses), 1e-6)
    eps = torch.finfo(torch.float32).eps
    room = (256 + 16) * eps / 4 + 8 * eps  # formed_norm's of the squared norm, and η: 9.1e-6
    assert relative_error(clipped(model, batch, bound, losses=losses)[0], clipped_sum[0]) <= room + 1e-6


@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize(
    "name", ["attention", "attention, weights", "encoder layer", "encoder", "own module", "own model"]
)
def test_dropout_is_that_of_the_forward_pass(name: str, rows_per_unit: int) -> None:
    """Without clipping the sum is the plain gradient under the same masks; and each unit of the norms is right."""
    model, batch = build(name)
    model.train()
    torch.manual_seed(7)
    expected = torch.autograd.grad(losses(model, batch).sum(), list(model.parameters()))
    torch.manual_seed(7)
    found, _ = clipped(model, batch, math.inf, rows_per_unit, losses=losses)
    assert_close((found, torch.ones(1)), (list(expected), torch.ones(1)), 1e-10)
    num_units = len(batch["x"]) // rows_per_unit
    for unit in range(num_units):  # of the others no loss: what is left is one unit's gradient
        only = torch.zeros(num_units, rows_per_unit, dtype=torch.float64)
        only[unit] = 1.0
        torch.manual_seed(7)
        alone, norms = clipped(model, batch | {"weights": batch["weights"] * only.flatten()}, math.inf, rows_per_unit,
                               losses=losses)  # fmt: skip
        assert norm_of(alone) == pytest.approx(norms[unit].item(), rel=1e-10)
        assert norm_of(alone) == pytest.approx(norms.norm().item(), rel=1e-10)


# ------------------------------------------------------------------------------ adversaries
class Odd(nn.Module):
    """A layer of one's own that breaks a rule."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.scale, self.how, self.calls = nn.Parameter(torch.ones(6)), how, 0
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        self.calls += 1
        match self.how:
            case "mixes rows":
                x = x - x.mean(0)
            case "keeps a state":
                x = x * self.calls
            case "looks at data":
                x = x if x.sum() > 0 else -x
            case "changes its output's source":
                self.penalty = self.scale.square().sum()
        return x * self.scale


class OddModel(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.odd, self.how = nn.Linear(6, 6), Odd(how), how

    def forward(self, x: Tensor) -> Tensor:
        x = self.odd(self.first(x))
        if "source" in self.how:
            x = x + self.odd.penalty
        return x * self.odd.scale if self.how == "uses it elsewhere" else x


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("mixes rows", "'odd' .Odd.*mixes"),
        ("keeps a state", "'odd' .Odd.*state"),
        ("looks at data", "'odd' .Odd.*control flow"),
        ("changes its output's source", "'odd.scale'.*outside"),
        ("uses it elsewhere", "'odd.scale'.*outside"),
    ],
)
def test_what_is_not_of_one_row_is_refused_by_name(how: str, named: str) -> None:
    torch.manual_seed(0)
    model, batch = OddModel(how).double(), {"x": torch.randn(4, 3, 6).double(), "weights": torch.ones(4)}
    with pytest.raises(UnsupportedLayerError, match=named) as caught:
        clipped(model, batch, 1.0, losses=losses)
    assert "\n" not in str(caught.value)
    assert all(p.requires_grad for p in model.parameters())
    assert "forward" not in vars(model.odd)


def test_input_changed_in_place_is_refused() -> None:
    class InPlace(Odd):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2) * self.scale

    model = nn.Sequential(nn.Identity(), InPlace(""))
    with pytest.raises(UnsupportedLayerError, match="'1' .InPlace.*in place"):
        clipped(model, {"x": torch.randn(4, 6), "weights": torch.ones(4)}, 1.0, losses=losses)


@pytest.mark.parametrize("block", [2**25, 1])
@pytest.mark.parametrize("name", ["Conv2d", "encoder layer", "own model"])
def test_a_row_that_is_not_finite_takes_nobody_along(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic, "BLOCK_NUMBERS", block)
    model, batch = build(name)
    without_dropout(model)
    expected = naive(model, rows_of(batch, [0, 1, 3, 5]), 0.1, losses=losses)
    batch["x"][2].flatten()[0], batch["x"][4].flatten()[1] = math.nan, math.inf
    clipper = PerSampleClipper(model, 0.1)
    with clipper.capture(6):
        losses(model, batch).sum().backward()
    norms = clipper.accumulate()
    assert torch.isfinite(norms).tolist() == [True, True, False, True, False, True]
    assert clipper.num_nonfinite == 2
    assert_close((grads_of(model), norms[[0, 1, 3, 5]]), expected, 1e-10)


@pytest.mark.parametrize("block", [2**25, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Conv2d", "attention", "own module", "called twice and shared", "fast, called again"])
def test_a_row_of_any_size_is_within_the_bound_strictly(
    name: str, dtype: torch.dtype, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As computed, under autocast too: where a gradient is huge, tiny, or a sum of positions that cancel."""
    monkeypatch.setattr(generic, "BLOCK_NUMBERS", block)
    model, batch = build(name, torch.float32, num_rows=1)
    model.train()
    for size, bound in [(1e4, 1.0), (1e8, 1e-3), (1.0, 1e-5)]:

        def cast(model: nn.Module, batch: Batch, size: float = size) -> Tensor:
            with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
                output = model(batch["x"]).float().flatten(1)
            return size * (output * torch.linspace(-1, 1, output.shape[1]).sign()).sum(1)

        found, norm = clipped(model, batch, bound, losses=cast)
        if torch.isfinite(norm):
            assert bound * (1 - 1e-4) <= norm_of(found) <= bound
        else:
            assert not norm_of(found)


def test_a_second_call_in_a_later_capture_is_exact_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """And from then on: the generic rule keeps the layer, and those that share its weight, for good."""
    model, batch = build("embedding called twice, tied")
    bound, _ = median_bound(model, batch, losses=losses)
    clipper = PerSampleClipper(model, bound)
    for is_twice in (False, True, False):
        model.is_twice = is_twice  # type: ignore[assignment]
        expected = naive(model, batch, bound, losses=losses)
        model.zero_grad()
        with clipper.capture(6):
            losses(model, batch).sum().backward()
        norms = clipper.accumulate()
        assert_close((grads_of(model), norms), expected, 1e-10)


def test_ids_without_rows_are_refused_in_the_second_call_too() -> None:
    words = nn.Embedding(7, 6)
    with pytest.raises(UnsupportedLayerError, match="one dimension"), PerSampleClipper(words, 1.0).capture(3):
        words(torch.zeros(3, 2, dtype=torch.long))
        words(torch.arange(3))


def test_a_call_after_a_backward_pass_is_refused() -> None:
    """Two micro-batches in one capture would be clipped as if row r of both were one unit."""
    for layer in (nn.Linear(6, 6), nn.Conv1d(6, 6, 1)):
        x = torch.randn(3, 6, 6)
        with pytest.raises(UnsupportedLayerError, match="one backward"), PerSampleClipper(layer, 1.0).capture(3):
            for _ in range(2):
                layer(x).sum().backward()


def test_bags_with_offsets_are_refused_with_the_form_that_works() -> None:
    bag = nn.EmbeddingBag(5, 6, mode="sum")
    clipper = PerSampleClipper(bag, 1.0)
    with pytest.raises(UnsupportedLayerError, match=r"EmbeddingBag.*\[rows, positions\]"):
        with clipper.capture(2):
            bag(torch.tensor([1, 2, 3]), torch.tensor([0, 2])).sum().backward()
        clipper.accumulate()
