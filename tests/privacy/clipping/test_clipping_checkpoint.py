"""Activation checkpointing stays exact.

Hugging Face's RMSNorm computes in float32, whose rounding differs between the runs of a checkpointed block; where
1e-12 is asked for, it is replaced by ``torch.nn.RMSNorm``.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from clipping_reference import (
    VOCAB,
    Losses,
    assert_close,
    build,
    clipped,
    head_losses,
    make_batch,
    mean_losses,
    median_bound,
    naive,
    norm_of,
    rows_of,
    toy_losses,
    trained,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from doppel.privacy.clipping import UnsupportedLayerError


def enable(model: PreTrainedModel) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": False})


def exact(name: str) -> PreTrainedModel:
    """A model without float32 inside."""
    model = build(name)
    for parent in list(model.modules()):
        for key, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.numel(), eps=1e-6, dtype=torch.float64)  # type: ignore[union-attr, arg-type]
                norm.weight = child.weight  # type: ignore[assignment]
                setattr(parent, key, norm)
    return model


# ------------------------------------------------------------------------------ exact
@pytest.mark.parametrize("name", ["gpt2-tied", "gpt2-untied", "llama-untied", "llama-tied", "qwen3-tied"])
def test_checkpointing_is_exact(name: str) -> None:
    model, batch = exact(name), make_batch(6)
    for rows_per_unit in (1, 3):
        bound, expected = median_bound(model, batch, rows_per_unit)
        enable(model)
        for losses in (mean_losses, head_losses()):
            assert_close(clipped(model, batch, bound, rows_per_unit, (1,), losses), expected)
        model.gradient_checkpointing_disable()


def test_checkpointing_every_other_block_and_huggingface_norms() -> None:
    model, batch = build("llama-tied"), make_batch(5)
    bound, expected = median_bound(model, batch)
    model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=2)
    assert_close(clipped(model, batch, bound), expected, 1e-7)


def test_a_tied_weight_inside_a_checkpointed_block_is_exact() -> None:
    model, batch = build("gpt2-tied"), make_batch(4)
    model.transformer.h[0].mlp.c_fc = nn.Linear(32, VOCAB, dtype=torch.float64)
    model.transformer.h[0].mlp.c_fc.weight = model.transformer.wte.weight
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    model.transformer.h[0].mlp.c_proj = nn.Linear(VOCAB, 32, dtype=torch.float64)
    bound, expected = median_bound(model, batch)
    enable(model)
    assert_close(clipped(model, batch, bound), expected)


@pytest.mark.parametrize("frozen", ["wte|wpe", "h.0", "mlp", "h.0.attn.c_attn.weight"])
def test_checkpointing_a_partly_frozen_model_is_exact(frozen: str) -> None:
    """Embeddings that need no gradient, a block without any trained parameter, …"""
    model, batch = build("gpt2-untied"), make_batch(5)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in frozen.split("|")))
    bound, expected = median_bound(model, batch)
    enable(model)
    for losses in (mean_losses, head_losses()):
        assert_close(clipped(model, batch, bound, losses=losses), expected)


@pytest.mark.parametrize("losses", [mean_losses, head_losses()])
def test_checkpointing_with_dropout_uses_the_same_masks_in_both_runs(losses: Losses) -> None:
    """Σ gᵢ is that of the masks drawn first; and a unit alone stays within the bound, which it would not if its norm
    belonged to other masks than its gradient."""
    model, batch = build("gpt2-dropout"), make_batch(4)
    enable(model)
    torch.manual_seed(3)
    found, norms = clipped(model, batch, math.inf, losses=losses)
    after = torch.rand(1)
    torch.manual_seed(3)
    model.gradient_checkpointing_disable()
    expected = torch.autograd.grad(losses(model, batch).sum(), trained(model))
    assert_close((found, norms), (list(expected), norms))
    assert torch.equal(after, torch.rand(1))  # the second run draws nothing

    enable(model)
    bound = 0.3 * norms[norms > 0].min().item()
    for unit in (0, 2, 3):
        alone, norm = clipped(model, rows_of(batch, slice(unit, unit + 1)), bound, losses=losses)
        assert norm.item() > bound
        assert norm_of(alone) == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_nonfinite_unit_inside_checkpointed_blocks_contributes_zero(factor: float) -> None:
    model, batch = build("gpt2-tied"), make_batch(4)
    expected, rest = naive(model, rows_of(batch, [0, 1, 3]), 1.0)
    enable(model)
    weights = torch.tensor([1.0, 1.0, factor, 1.0], dtype=torch.float64)
    for losses in (mean_losses, head_losses()):
        found, norms = clipped(model, batch, 1.0, losses=lambda m, b, losses=losses: weights * losses(m, b))  # type: ignore[misc]
        assert torch.isfinite(norms).tolist() == [True, True, False, True]
        assert_close((found, norms[[0, 1, 3]]), (expected, rest))


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e200])
def test_nonfinite_activation_inside_checkpointed_blocks_contributes_zero(value: float) -> None:
    """A unit whose hidden state is spoilt before the first block."""
    model, batch = build("gpt2-tied"), make_batch(4)

    def spoil(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        is_whole = len(output) == 4
        return torch.cat([output[:2], output[2:3] * value, output[3:]]) if is_whole else output

    expected, rest = naive(model, rows_of(batch, [0, 1, 3]), 1.0)
    enable(model)
    with model.transformer.drop.register_forward_hook(spoil):
        for losses in (mean_losses, head_losses()):
            found, norms = clipped(model, batch, 1.0, losses=losses)
            assert all(torch.isfinite(grad).all() for grad in found)
            if not math.isfinite(value):
                assert torch.isfinite(norms).tolist() == [True, True, False, True]
                assert_close((found, norms[[0, 1, 3]]), (expected, rest))


# ------------------------------------------------------------------------------ refused
class Checkpointed(nn.Module):
    """Two Linears inside a checkpoint of torch's, between two outside."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)
        self.inside = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 5))
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.inside, self.first(x), use_reentrant=self.use_reentrant))


@pytest.mark.parametrize("name", ["gpt2-tied", "llama-untied"])
def test_reentrant_checkpointing_of_blocks_is_refused(name: str) -> None:
    model = build(name)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(UnsupportedLayerError):
        clipped(model, make_batch(3), 1.0)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_other_checkpointing_is_exact_and_refused_if_reentrant() -> None:
    torch.manual_seed(0)
    batch = {"x": torch.randn(4, 3, 4, dtype=torch.float64)}
    model = Checkpointed(use_reentrant=False).double()
    bound, expected = median_bound(model, batch, losses=toy_losses)
    assert_close(clipped(model, batch, bound, losses=toy_losses), expected)
    model.use_reentrant = True
    for frozen in (False, True):
        model.first.requires_grad_(not frozen)
        with pytest.raises(UnsupportedLayerError, match="use_reentrant=False"):
            clipped(model, batch, bound, losses=toy_losses)
        assert all(p.requires_grad for p in model.inside.parameters())
