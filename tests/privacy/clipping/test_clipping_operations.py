"""What is dispatched: a GPU runs small models at the pace of the host, so operations are its time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from clipping_reference import (
    assert_close,
    build,
    clipped,
    head_losses,
    make_batch,
    mean_losses,
    median_bound,
    naive,
    rows_of,
)
from torch import Tensor, nn

from benchmarks._operations import COUNTED, Operations, compared
from benchmarks._subject import Setting
from doppel.privacy.clipping import PerSampleClipper, groups
from doppel.privacy.clipping import clipper as clipper_module
from doppel.privacy.clipping.head import HeadLoss

READ = "aten::_local_scalar_dense"


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a unit is not finite is not known where it would have to be waited for."""
    monkeypatch.setattr(clipper_module, "may_be_any", lambda flags: True)


@pytest.mark.parametrize(
    ("size", "rank"),
    [pytest.param(*case, marks=pytest.mark.slow if case == ("llama-30", 0) else ()) for case in COUNTED],
)
def test_a_private_micro_batch_dispatches_about_as_much_as_an_ordinary_one(size: str, rank: int) -> None:
    """Of two rows; 32 take little more, in parts of a budget (``python -m benchmarks.clipping --operations``)."""
    ordinary, private = compared(Setting(size, 2, 64, adapters=rank))
    assert private.total <= 1.15 * ordinary.total
    own = [sum(count[READ] for count in found.counts.values()) for found in (ordinary, private)]
    assert own[0] == own[1]  # those of transformers


def test_nothing_is_read_within_a_micro_batch(as_on_gpu: None) -> None:
    """Also by the head, which is told how many labels there are; and units that are not finite are still erased."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"words": nn.Embedding(11, 8), "norm": nn.LayerNorm(8), "head": nn.Linear(8, 11)})
    ids, labels = torch.randint(11, (4, 6)), torch.randint(11, (4, 6))
    labels[:, :3] = -100
    clipper = PerSampleClipper(model, 1.0)
    for _ in range(2):
        found = Operations()
        with found.part("all"):
            with clipper.capture(4):
                hidden = model["norm"](model["words"](ids))
                HeadLoss(model["head"])(hidden, labels, num_labels=3).sum().backward()
            clipper.accumulate()
    assert found.total and not found.counts["all"][READ]


@pytest.mark.parametrize("length", [12, 48])
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_units_that_are_not_finite_contribute_zero_where_nobody_looks(
    name: str, length: int, factor: float, as_on_gpu: None
) -> None:
    model, batch = build(name), make_batch(4, length)
    expected = naive(model, rows_of(batch, [0, 1, 3]), 1.0)
    weights = torch.tensor([1.0, 1.0, factor, 1.0], dtype=torch.float64)
    for losses in (mean_losses, head_losses()):
        found, norms = clipped(model, batch, 1.0, losses=lambda m, b, losses=losses: weights * losses(m, b))
        assert torch.isfinite(norms).tolist() == [True, True, False, True]
        assert_close((found, norms[[0, 1, 3]]), expected)


@pytest.mark.parametrize("length", [12, 48])
@pytest.mark.parametrize("budget", [1, 2**15])
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_parts_of_any_size_give_the_same(name: str, budget: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer a part, so that an input's readers stand in several; and a few."""
    model, batch = build(name), make_batch(4, length)
    bound, expected = median_bound(model, batch)
    monkeypatch.setattr(groups, "BUDGET_CPU", budget)
    assert_close(clipped(model, batch, bound), expected)


class Reading(nn.Module):
    """Two layers that read one input, which may change between them."""

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.first, self.second, self.changes = nn.Linear(6, 5), nn.Linear(6, 5), changes

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        y = self.first(x)
        if self.changes:
            x.mul_(2.0)
        return y * self.second(x)


@pytest.mark.parametrize("changes", [False, True])
def test_an_input_that_changed_in_between_is_not_taken_for_the_same(changes: bool) -> None:
    """Under autocast each layer keeps a copy of its own, so that nothing stands against the change."""
    torch.manual_seed(0)
    model, x = Reading(changes), torch.randn(4, 3, 6)

    def losses(make: Callable[[nn.Module], nn.Module]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return make(model)(x).float().square().sum((1, 2))

    expected = torch.autograd.grad(losses(lambda model: model).sum(), list(model.parameters()))
    clipper = PerSampleClipper(model, math.inf)
    with clipper.capture(4):
        losses(lambda model: model).sum().backward()
    clipper.accumulate()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, grad, rtol=2e-2, atol=2e-2)
