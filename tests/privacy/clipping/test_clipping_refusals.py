"""What has no exact rule is refused by name, in one line; nothing is left out of the norm in silence."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from clipping_reference import clipped
from torch import Tensor, nn
from torch.nn import functional as F

from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError
from doppel.privacy.clipping.head import HeadLoss


class Scaled(nn.Module):
    """A layer of one's own with a parameter that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.inner(x)


class FakeRMSNorm(nn.Module):
    """Has the name and the attributes of an RMSNorm, but squares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(2 * torch.ones(4)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight**2 * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def shared_linears() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), Scaled()), "'1.scale'.*Scaled"),
        (lambda: nn.Sequential(nn.Conv1d(4, 4, 1)), "'0.weight'.*Conv1d"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "'1' \\(BatchNorm1d\\)"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "'1' \\(BatchNorm1d\\)"),
        (lambda: nn.Sequential(nn.Linear(4, 4), FakeRMSNorm()), "'1' \\(FakeRMSNorm\\)"),
        (lambda: nn.MultiheadAttention(4, 2), "'in_proj_weight'.*MultiheadAttention"),
        (lambda: nn.Sequential(nn.Embedding(4, 4, max_norm=1.0)), "'0'.*max_norm"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "ParametrizedLinear"),
        (shared_linears, "'0', '1'"),
    ],
)
def test_unsupported_layer_is_refused_by_name_in_one_line(make: Callable[[], nn.Module], named: str) -> None:
    with pytest.raises(UnsupportedLayerError, match=named) as caught:
        PerSampleClipper(make(), 1.0)
    assert "\n" not in str(caught.value)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))


def test_module_called_twice_is_refused(x: Tensor) -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(UnsupportedLayerError, match="called twice"), PerSampleClipper(model, 1.0).capture(3):
        model(model(x))
    assert model.weight.requires_grad


def test_weight_used_outside_its_module_is_refused(x: Tensor) -> None:
    model = nn.Linear(4, 4)
    with (
        pytest.raises(UnsupportedLayerError, match="'weight'"),
        PerSampleClipper(model, 1.0).capture(3),
    ):
        F.linear(model(x), model.weight)
    with (
        pytest.raises(UnsupportedLayerError, match="'weight'"),
        PerSampleClipper(model, 1.0).capture(3),
    ):
        model(x) @ model.weight.T


def test_input_changed_in_place_is_refused(x: Tensor) -> None:
    model = nn.Linear(4, 4)
    with (
        pytest.raises(UnsupportedLayerError, match="inplace=False"),
        PerSampleClipper(model, 1.0).capture(3),
    ):
        out = model(x)
        x.add_(1.0)
        out.sum().backward()


@pytest.mark.parametrize("position", [1, 3])
def test_output_changed_in_place_is_refused(position: int) -> None:
    """Autograd would rebuild the graph without the place where the gradient is observed."""
    layers = [nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)]
    layers[position] = nn.ReLU(inplace=True)
    batch = {"x": torch.randn(4, 3, 4)}
    with pytest.raises(UnsupportedLayerError, match="inplace=False"):
        clipped(nn.Sequential(*layers), batch, 1.0, losses=lambda model, batch: model(batch["x"]).sum((1, 2)))


def test_rows_not_first_is_refused(x: Tensor) -> None:
    model = nn.Linear(4, 4)
    with (
        pytest.raises(UnsupportedLayerError, match="first dimension"),
        PerSampleClipper(model, 1.0).capture(3),
    ):
        model(x.flatten(0, 1))
    embedding = nn.Embedding(4, 4)
    with (
        pytest.raises(UnsupportedLayerError, match="embedding"),
        PerSampleClipper(embedding, 1.0).capture(3),
    ):
        embedding(torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_bound_must_be_positive(bound: float) -> None:
    with pytest.raises(ValueError, match="max_grad_norm"):
        PerSampleClipper(nn.Linear(2, 2), bound)


def test_head_loss_of_other_rows_is_refused(x: Tensor) -> None:
    head = nn.Linear(4, 5)
    with (
        pytest.raises(UnsupportedLayerError, match="2 .*3"),
        PerSampleClipper(head, 1.0).capture(3),
    ):
        HeadLoss(head)(x[:2], torch.zeros(2, 2, dtype=torch.long))


def test_a_head_used_plainly_and_fused_is_refused(x: Tensor) -> None:
    head, labels = nn.Linear(4, 5), torch.zeros(3, 2, dtype=torch.long)
    for first_is_fused in (True, False):
        with (
            pytest.raises(UnsupportedLayerError, match="called twice"),
            PerSampleClipper(head, 1.0).capture(3),
        ):
            for is_fused in (first_is_fused, not first_is_fused):
                if is_fused:
                    HeadLoss(head)(x, labels)
                else:
                    head(x)
