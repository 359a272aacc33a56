"""What has no exact rule is refused by name, in one line; nothing is left out of the norm in silence."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from clipping_reference import assert_equal_to_naive, clipped, toy_losses
from peft import PromptEncoderConfig, PromptTuningConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from transformers import GPT2Config, GPT2LMHeadModel

from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError
from doppel.privacy.clipping.head import HeadLoss


def with_prompt(kind: type[PromptTuningConfig | PromptEncoderConfig]) -> nn.Module:
    base = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2))
    return get_peft_model(base, kind(task_type="CAUSAL_LM", num_virtual_tokens=2))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "'1' \\(BatchNorm1d\\).*GroupNorm"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)), "'1' \\(BatchNorm1d\\)"),
        (
            lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
            "InstanceNorm1d.*track_running_stats=False",
        ),
        (lambda: nn.Sequential(nn.MultiheadAttention(4, 2)), "'0' \\(MultiheadAttention\\).*batch_first=True"),
        (lambda: nn.Sequential(nn.LSTM(4, 4, batch_first=True)), "'0' \\(LSTM\\).*LinearLSTM"),
        (lambda: nn.GRU(4, 4), "the model itself \\(GRU\\).*recurrence"),
        (lambda: nn.Sequential(nn.Embedding(4, 4, max_norm=1.0)), "'0'.*max_norm"),
        (lambda: nn.Sequential(nn.LazyLinear(4)), "'0' \\(LazyLinear\\).*call the model once"),
        (lambda: nn.ParameterList([torch.ones(2)]), "ParameterList"),
        (lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4))), "'0' .*without spectral_norm"),
        (lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4))), "'0' .*without spectral_norm"),
        (lambda: with_prompt(PromptTuningConfig), "'prompt_encoder.default' \\(PromptEmbedding\\).*LoRA"),
        (lambda: with_prompt(PromptEncoderConfig), "'prompt_encoder.default' \\(PromptEncoder\\).*LoRA"),
    ],
)
def test_unsupported_layer_is_refused_by_name_in_one_line(make: Callable[[], nn.Module], named: str) -> None:
    with pytest.raises(UnsupportedLayerError, match=named) as caught:
        PerSampleClipper(make(), 1.0)
    assert "\n" not in str(caught.value)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))


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


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_backward_pass_that_would_be_differentiated_is_refused(x: Tensor) -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(UnsupportedLayerError, match="create_graph"), PerSampleClipper(model, 1.0).capture(3):
        model(x).sum().backward(create_graph=True)


@pytest.mark.parametrize("position", [1, 3])
@pytest.mark.parametrize("first", [nn.Linear(4, 5), nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5))])
def test_output_changed_in_place_is_refused_or_exact(position: int, first: nn.Module) -> None:
    """An output that is a view could not be observed; after others the change is an operation like any."""
    layers = [first, nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)]
    layers[position] = nn.ReLU(inplace=True)
    model = nn.Sequential(*layers).double()
    for x in (torch.randn(4, 3, 4).double(), torch.randn(4, 4).double()):
        if x.dim() == 2 or (position == 1 and isinstance(first, nn.Sequential)):
            assert_equal_to_naive(model, {"x": x}, losses=toy_losses)
            continue
        with pytest.raises(UnsupportedLayerError, match="inplace=False"):
            clipped(model, {"x": x}, 1.0, losses=toy_losses)


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
        pytest.raises(UnsupportedLayerError, match="3 dimensions, but the first dimension"),
        PerSampleClipper(head, 1.0).capture(3),
    ):
        HeadLoss(head)(x[:2], torch.zeros(2, 2, dtype=torch.long))


def test_a_head_called_beside_its_loss_is_refused(x: Tensor) -> None:
    head, labels = nn.Linear(4, 5), torch.zeros(3, 2, dtype=torch.long)
    with pytest.raises(UnsupportedLayerError, match="called twice"), PerSampleClipper(head, 1.0).capture(3):
        (HeadLoss(head)(x, labels).sum() + head(x).sum()).backward()


def test_what_is_frozen_is_not_told_to_be_frozen() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3).requires_grad_(False), nn.Linear(3, 2))
    with pytest.raises(UnsupportedLayerError, match="GroupNorm or LayerNorm$"):
        PerSampleClipper(model, 1.0)
