"""Layers without a rule of their own: exact by torch.func, to the naive loop."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from clipping_models import MODELS, build, losses, without_dropout
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

from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError, functional


@pytest.mark.parametrize("name", MODELS)
def test_clipped_sum_equals_naive_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of one row and of two; all units in one block, and in blocks that are formed again."""
    model, batch = build(name)
    without_dropout(model)
    for rows_per_unit in (1, 2):
        for block in (2**25, 1):
            monkeypatch.setattr(functional, "BLOCK_NUMBERS", block)
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
    room = (256 + 16) * eps / 4 + 8 * eps  # that of sums of squares, and η: 9.1e-6
    assert relative_error(clipped(model, batch, bound, losses=losses)[0], clipped_sum[0]) <= room + 1e-6


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


@pytest.mark.parametrize("block", [2**25, 1])
@pytest.mark.parametrize("name", ["Conv2d", "encoder layer", "own model"])
def test_a_row_that_is_not_finite_takes_nobody_along(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "BLOCK_NUMBERS", block)
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
@pytest.mark.parametrize("name", ["Conv2d", "attention", "own module"])
def test_a_row_of_any_size_is_within_the_bound_strictly(
    name: str, dtype: torch.dtype, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As computed, under autocast too: where a gradient is huge, tiny, or a sum of positions that cancel."""
    monkeypatch.setattr(functional, "BLOCK_NUMBERS", block)
    model, batch = build(name, torch.float32, num_rows=1)
    without_dropout(model)
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


def test_a_layer_that_draws_is_refused_by_name() -> None:
    """A unit alone would be given other numbers; a Dropout around it is no part of it, and may stay."""
    model, batch = build("encoder layer")
    without_dropout(model)
    model.dropout.p = model.dropout1.p = 0.3  # type: ignore[union-attr, assignment]
    torch.manual_seed(7)
    expected = torch.autograd.grad(losses(model, batch).sum(), list(model.parameters()))
    torch.manual_seed(7)
    found, norms = clipped(model, batch, math.inf, losses=losses)
    assert_close((found, norms), (list(expected), norms), 1e-10)
    model.self_attn.dropout = 0.3  # type: ignore[union-attr, assignment]
    with pytest.raises(UnsupportedLayerError, match=r"'self_attn' .MultiheadAttention.*dropout=0"):
        clipped(model, batch, 1.0, losses=losses)


class Twice(nn.Module):
    """Layers that are called twice, with a formula or without, or that share a weight."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.words, self.decoder_words, self.head = nn.Embedding(7, 6), nn.Embedding(7, 6), nn.Linear(6, 7)
        self.block, self.conv, self.back = nn.Linear(6, 6), nn.Conv1d(6, 6, 1), nn.ConvTranspose1d(6, 6, 1)
        if how == "as in T5":
            self.decoder_words.weight = self.head.weight = self.words.weight
        if how == "shared without a formula":
            self.back.weight = self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        ids = (x[..., 0] * 2).round().long().clamp(0, 6)
        h = self.words(ids) + self.decoder_words(ids.flip(1))
        h = self.back(self.conv(self.block(h).mT)).mT
        if self.how == "as in ALBERT":
            h = self.block(torch.tanh(h))
        if self.how == "without a formula":
            h = self.conv(torch.tanh(h).mT).mT
        if self.how == "embedded again":
            h = h + self.words(ids.flip(1))
        return self.head(h)


@pytest.mark.parametrize("length", [5, 6])
def test_an_input_is_told_anew_where_it_comes_by_another_name(length: int) -> None:
    """A mask of rows, then one of pairs of positions, which may be as many as the rows are."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 6))

        def forward(self, x: Tensor, *, of_rows: Tensor | None = None, of_pairs: Tensor | None = None) -> Tensor:
            if of_rows is not None:
                x = x * of_rows.unsqueeze(-1)
            return (x if of_pairs is None else of_pairs @ x) * self.scale

    model, batch, pairs = Masked().double(), {"x": torch.randn(6, length, 6).double()}, torch.randn(length, length)
    clipper = PerSampleClipper(model, 0.1)
    for name in ("of_rows", "of_pairs"):

        def of_mask(model: nn.Module, batch: Batch, name: str = name) -> Tensor:
            mask = batch["x"][..., 0] if name == "of_rows" else pairs.double()
            return model(batch["x"], **{name: mask}).square().sum((1, 2))

        model.zero_grad()
        with clipper.capture(6):
            of_mask(model, batch).sum().backward()
        norms = clipper.accumulate()
        assert_close((grads_of(model), norms), naive(model, batch, 0.1, losses=of_mask), 1e-10)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("as in T5", "'words', 'decoder_words', 'head' share"),
        ("shared without a formula", "'conv', 'back' share"),
        ("as in ALBERT", "'block' .Linear. was called twice"),
        ("without a formula", "'conv' .Conv1d. was called twice"),
        ("embedded again", "'words' .Embedding. was called twice"),
    ],
)
def test_what_is_used_twice_is_refused_by_name_and_never_wrong(how: str, named: str) -> None:
    batch = {"x": torch.randn(4, 5, 6).double(), "weights": torch.ones(4)}
    assert_equal_to_naive(Twice("").double(), batch, losses=losses, tolerance=1e-10)
    with pytest.raises(UnsupportedLayerError, match=named) as caught:
        clipped(Twice(how).double(), batch, 1.0, losses=losses)
    assert "\n" not in str(caught.value)


def test_an_input_that_is_changed_in_place_is_refused() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return x.relu_() * self.scale

    model = nn.Sequential(nn.Identity(), InPlace())
    with pytest.raises(UnsupportedLayerError, match="'1' .InPlace.*in place"):
        clipped(model, {"x": torch.randn(4, 6), "weights": torch.ones(4)}, 1.0, losses=losses)


def test_a_call_after_a_backward_pass_is_refused() -> None:
    """Two micro-batches in one capture would be clipped as if row r of both were one unit."""
    for layer in (nn.Linear(6, 6), nn.Conv1d(6, 6, 1)):
        x = torch.randn(3, 6, 6)
        with pytest.raises(UnsupportedLayerError, match="one backward"), PerSampleClipper(layer, 1.0).capture(3):
            for _ in range(2):
                layer(x).sum().backward()
