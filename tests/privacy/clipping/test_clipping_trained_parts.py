"""Partly frozen models and LoRA adapters: the norm covers just what is trained."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from clipping_reference import (
    Losses,
    assert_close,
    assert_equal_to_naive,
    build,
    clipped,
    head_losses,
    make_batch,
    mean_losses,
    median_bound,
    naive,
)
from peft import LoraConfig, get_peft_model, inject_adapter_in_model
from torch import nn

from doppel.privacy.clipping import UnsupportedLayerError

WAYS: list[Losses] = [mean_losses, head_losses()]


def assert_every_way_is_exact(model: nn.Module, rows_per_unit: int = 1, ways: list[Losses] = WAYS) -> None:
    batch = make_batch(6)
    bound, expected = median_bound(model, batch, rows_per_unit)
    for losses in ways:
        assert_close(clipped(model, batch, bound, rows_per_unit, (1,), losses), expected)
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


# ------------------------------------------------------------------------------ partly frozen
@pytest.mark.parametrize(
    "trainable",
    [
        "h.1.",
        "attn",
        "c_attn.bias",
        "ln_",
        "wpe",
        "ln_f.weight",
        "mlp.c_fc.weight",
        "bias",
        "wte",
        "h.0.ln_1.bias",
    ],
)
def test_partly_frozen_gpt2_is_exact(trainable: str) -> None:
    """Only the last block, only attention, only biases, …"""
    model = build("gpt2-tied")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable in name)
    assert_every_way_is_exact(model)


@pytest.mark.parametrize("trains", ["all but the embedding", "the head", "all but the head"])
def test_partly_frozen_llama_is_exact(trains: str) -> None:
    """With the head alone, its input is a constant of the graph."""
    model = build("llama-untied")
    for name, parameter in model.named_parameters():
        is_head, is_embedding = "lm_head" in name, "embed_tokens" in name
        parameter.requires_grad_(
            {"all but the embedding": not is_embedding, "the head": is_head, "all but the head": not is_head}[trains]
        )
    assert_every_way_is_exact(model, rows_per_unit=2)


def test_frozen_layer_without_a_rule_is_skipped() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(3, 3, 1), nn.Linear(4, 2)).double()
    model[1].requires_grad_(False)
    batch = {"x": torch.randn(3, 3, 4, dtype=torch.float64)}
    assert_equal_to_naive(model, batch, losses=lambda model, batch: model(batch["x"]).square().sum((1, 2)))


# ------------------------------------------------------------------------------ LoRA
def with_adapters(name: str, dropout: float = 0.0, **options: object) -> nn.Module:
    """A frozen model with adapters, whose B is not zero (else A would have no gradient)."""
    model = build(name)
    targets = ["c_attn", "c_fc", "c_proj"] if "gpt2" in name else ["q_proj", "v_proj", "down_proj"]
    is_conv1d = "gpt2" in name
    config = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=dropout, fan_in_fan_out=is_conv1d, **{"target_modules": targets, **options}
    )  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = inject_adapter_in_model(config, model)
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            parameter.data.normal_(std=0.2)
    return model.double().train()


@pytest.mark.parametrize("rows_per_unit", [1, 3])
@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied", "llama-tied"])
def test_lora_is_exact(name: str, rows_per_unit: int) -> None:
    model = with_adapters(name)
    assert all("lora_" in key for key, p in model.named_parameters() if p.requires_grad)
    assert_every_way_is_exact(model, rows_per_unit)


def test_lora_by_get_peft_model_and_trained_norms_is_exact() -> None:
    """The wrapper, and layers that are trained beside the adapters (``modules_to_save``)."""
    model = build("llama-untied")
    config = LoraConfig(r=4, target_modules=["q_proj", "o_proj"], modules_to_save=["norm"])
    wrapped = get_peft_model(model, config).double().train()
    for key, parameter in wrapped.named_parameters():
        if "lora_B" in key:
            parameter.data.normal_(std=0.2)
    assert any("norm" in key for key, p in wrapped.named_parameters() if p.requires_grad)
    assert_every_way_is_exact(wrapped, ways=[mean_losses])


def test_lora_with_dropout_is_the_gradient_of_the_same_masks() -> None:
    model, batch = with_adapters("gpt2-tied", dropout=0.3), make_batch(5)
    torch.manual_seed(3)
    expected = torch.autograd.grad(mean_losses(model, batch).sum(), [p for p in model.parameters() if p.requires_grad])
    for losses in (mean_losses, head_losses()):
        torch.manual_seed(3)
        found, norms = clipped(model, batch, math.inf, losses=losses)
        assert_close((found, norms), (list(expected), norms))


def test_lora_leaves_the_norm_of_the_frozen_part_out() -> None:
    """The whole model's norm is much larger: a frozen layer that is counted would be noticed."""
    model, batch = with_adapters("llama-untied"), make_batch(4)
    _, norms = naive(model, batch, math.inf)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    _, whole = naive(model, batch, math.inf)
    assert (whole[[0, 2, 3]] > 1.1 * norms[[0, 2, 3]]).all()


def test_adapters_of_embeddings_are_exact() -> None:
    """Their weights are in no module that is called: the layer around them has the generic rule."""
    assert_every_way_is_exact(with_adapters("llama-untied", target_modules=["embed_tokens", "q_proj"]), 3)


def test_adapters_that_compute_with_whole_weights_are_refused_by_name() -> None:
    model, batch = with_adapters("llama-untied", use_dora=True), make_batch(3)
    with pytest.raises(UnsupportedLayerError, match="lora_") as caught:
        clipped(model, batch, 1.0)
    assert "\n" not in str(caught.value)
