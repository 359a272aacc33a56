"""Mode ``materialize``: any module, any sharing, and clear words where a row has no gradient of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from clipping_reference import (
    Batch,
    assert_close,
    assert_equal_to_naive,
    build,
    clipped,
    make_batch,
    mean_losses,
    naive,
    relative_error,
    toy_losses,
    trained,
)
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError


class Scaled(nn.Module):
    """A parameter of its own around a child, whose weight it may share."""

    def __init__(self, child: nn.Module, size: int = 4) -> None:
        super().__init__()
        self.child = child
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, size))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.child(x) + x


class Mixer(nn.Module):
    """Several inputs, by position and by name, some for each row and some for all; an argument that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, 4))
        self.register_buffer("offset", torch.full((4,), 0.3))

    def forward(self, x: Tensor, shared: Tensor, *, gate: Tensor, power: int) -> Tensor:
        return (x * gate + shared) ** power * self.weight + self.offset


class UsesMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.mixer = Mixer()

    def forward(self, x: Tensor) -> Tensor:
        shared = torch.arange(12.0, dtype=x.dtype).view(1, 3, 4)
        return self.mixer(self.first(x), shared, gate=x.tanh(), power=2)


class SharesWithItsChild(Scaled):
    """Its own parameter is also its child's bias."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4))
        self.scale = self.child.bias  # type: ignore[assignment]


class TwoNames(nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.linspace(-1.0, 1.0, 4))
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x + self.b


def shared_linears() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[4].weight = model[2].weight = model[0].weight
    return model


CASES: dict[str, Callable[[], nn.Module]] = {
    "own parameter around a child": lambda: nn.Sequential(nn.Linear(4, 4), Scaled(nn.Linear(4, 4)), nn.Linear(4, 2)),
    "nested own parameters": lambda: Scaled(Scaled(nn.Linear(4, 4))),
    "several inputs": UsesMixer,
    "shared with a child": SharesWithItsChild,
    "one parameter, two names": lambda: nn.Sequential(nn.Linear(4, 4), TwoNames()),
    "three Linears, one weight": shared_linears,
    "convolution": lambda: nn.Sequential(nn.Conv1d(3, 6, 2, groups=3), nn.GroupNorm(2, 6), nn.Flatten(), nn.PReLU()),
    "circular convolution": lambda: nn.Conv1d(3, 2, 3, padding=1, padding_mode="circular"),
    "LayerNorm without bias": lambda: nn.Sequential(nn.LayerNorm(4, bias=False), nn.Linear(4, 2)),
}


@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_any_module_is_exact(case: str, rows_per_unit: int) -> None:
    torch.manual_seed(0)
    model = CASES[case]().double()
    batch = {"x": torch.randn(6, 3, 4, dtype=torch.float64)}
    assert_equal_to_naive(model, batch, rows_per_unit, (1,), toy_losses, "materialize")


def test_shared_gradients_are_summed_before_their_norm() -> None:
    """Uses that cancel have norm 0, which a sum of squares would not."""
    model = nn.ModuleList([nn.Linear(4, 3, bias=False), nn.Linear(4, 3, bias=False)]).double()
    model[1].weight = model[0].weight
    batch = {"x": torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))}

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        return (model[0](batch["x"]) - model[1](batch["x"])).sum((1, 2))

    found, norms = clipped(model, batch, 1.0, losses=losses, mode="materialize")
    assert norms.max() <= 1e-12
    assert found[0].abs().max() <= 1e-12


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_replayed_module_computes_under_the_autocast_of_its_call(half: torch.dtype) -> None:
    """Whether autocast is still on in the backward pass is of no importance."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Scaled(nn.Linear(4, 4)), nn.Linear(4, 2))
    batch = {"x": torch.randn(6, 3, 4)}

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast("cpu", half):
            return toy_losses(model, batch)

    found, norms = clipped(model, batch, math.inf, losses=losses, mode="materialize")
    expected = torch.autograd.grad(losses(model, batch).sum(), trained(model))
    assert norms.dtype is torch.float32
    assert relative_error(found, list(expected)) <= torch.finfo(half).eps


def test_replaying_leaves_hooks_and_the_audit_alone() -> None:
    """A child that is run again with its parent is not recorded twice, nor taken for a use outside its module."""
    model = nn.Sequential(Scaled(nn.Linear(4, 4)), nn.Linear(4, 2)).double()
    clipper = PerSampleClipper(model, 1.0, mode="materialize")
    for _ in range(2):  # audited, not audited
        with clipper.capture(3):
            toy_losses(model, {"x": torch.randn(3, 2, 4, dtype=torch.float64)}).sum().backward()
        clipper.accumulate()


class RowMixer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor | None = None) -> Tensor:
        if x is None:
            return self.weight.expand(3, 2, 4)
        if self.kind == "mixes rows":
            return self.weight * (x - x.mean(0, keepdim=True))
        if self.kind == "random":
            return self.weight * F.dropout(x, 0.5)
        if self.kind == "branches":
            return self.weight * x if x.sum() > 0 else 2 * self.weight * x
        if self.kind == "two outputs":
            return self.weight * x, x  # type: ignore[return-value]
        raise AssertionError(self.kind)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("mixes rows", "gives something else"),
        ("random", "cannot be run on one row"),
        ("branches", "cannot be run on one row"),
        ("two outputs", "returns a tuple"),
        ("no input", "without a tensor"),
    ],
)
def test_what_has_no_gradient_of_a_row_is_refused_by_name(kind: str, reason: str) -> None:
    model = nn.ModuleDict({"odd": RowMixer(kind)})
    batch = {"x": torch.randn(3, 2, 4)}

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        out = model["odd"]() if kind == "no input" else model["odd"](batch["x"])  # type: ignore[index]
        return (out[0] if isinstance(out, tuple) else out).sum((1, 2))

    with pytest.raises(UnsupportedLayerError, match=reason) as caught:
        clipped(model, batch, 1.0, losses=losses, mode="materialize")
    assert "'odd' (RowMixer)" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_nonfinite_unit_contributes_zero(factor: float) -> None:
    model, batch = build("gpt2-tied"), make_batch(4)
    expected, _ = naive(model, {key: value[[0, 1, 3]] for key, value in batch.items()}, 1.0)
    weights = torch.tensor([1.0, 1.0, factor, 1.0], dtype=torch.float64)
    found, norms = clipped(model, batch, 1.0, losses=lambda m, b: weights * mean_losses(m, b), mode="materialize")
    assert torch.isfinite(norms).tolist() == [True, True, False, True]
    assert relative_error(found, expected) <= 1e-12


def test_nonfinite_activations_do_not_reach_the_sum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Scaled(nn.Linear(4, 4))).double()
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    bad = x.clone()
    bad[1, 0, 0] = math.nan
    found, norms = clipped(model, {"x": bad}, 1.0, losses=toy_losses, mode="materialize")
    expected, rest = naive(model, {"x": x[[0, 2]]}, 1.0, losses=toy_losses)
    assert torch.isfinite(norms).tolist() == [True, False, True]
    assert_close((found, norms[[0, 2]]), (expected, rest))


def test_a_weight_that_is_computed_from_parameters_elsewhere_is_refused() -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    with pytest.raises(UnsupportedLayerError, match="parametrizations.weight"):
        clipped(model, {"x": torch.randn(3, 2, 4)}, 1.0, losses=toy_losses, mode="materialize")


def test_mode_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="'book_keeping', 'materialize'"):
        PerSampleClipper(nn.Linear(2, 2), 1.0, mode="opacus")  # type: ignore[arg-type]
