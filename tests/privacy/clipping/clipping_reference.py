"""Small models, batches with every awkward feature, and the naive loop that the clipping engine must equal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.head import HeadLoss, ScaledLogits

VOCAB = 97
Batch = dict[str, Tensor]
Losses = Callable[[nn.Module, Batch], Tensor]


# ------------------------------------------------------------------------------ models
def gpt2(tied: bool, dropout: float = 0.0) -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=VOCAB, n_layer=2, n_embd=32, n_head=4, n_positions=64, tie_word_embeddings=tied, use_cache=False,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama(tied: bool, kind: type[LlamaForCausalLM] = LlamaForCausalLM) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
        use_cache=False, attention_bias=True,
    )  # fmt: skip
    return kind(config)


def qwen3(tied: bool) -> PreTrainedModel:
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, head_dim=8, num_key_value_heads=2,
        max_position_embeddings=64, tie_word_embeddings=tied, use_cache=False,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


class CappedLlama(LlamaForCausalLM):
    """Caps its logits softly, far below what the head gives, as Gemma 2 does, whose norms are too coarse for 1e-12."""

    capped = ScaledLogits(scale=1.5, cap=2.0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = self.capped(output.logits)
        return output


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2-tied": lambda: gpt2(True),
    "gpt2-untied": lambda: gpt2(False),
    "gpt2-dropout": lambda: gpt2(True, dropout=0.2),
    "llama-untied": lambda: llama(False),
    "llama-tied": lambda: llama(True),
    "qwen3-tied": lambda: qwen3(True),
    "llama-capped": lambda: llama(True, CappedLlama),
}


def build(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    """A small model with random weights, whose vectors (biases, norm weights) are moved off 0 and 1."""
    torch.manual_seed(seed)
    model = MODELS[name]()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        else:
            parameter.data.mul_(4.0)
    return model.to(dtype).train()


# ------------------------------------------------------------------------------ batches
def make_batch(num_rows: int, length: int = 12, seed: int = 1) -> Batch:
    """Rows with repeated tokens, right padding and masked prompts of all lengths; row 1 has no loss."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (num_rows, length), generator=generator)
    ids[:, ::3] = ids[:, :1] % 7
    lengths = torch.randint(length // 2, length + 1, (num_rows, 1), generator=generator)
    prompts = torch.randint(1, length // 3, (num_rows, 1), generator=generator)
    position = torch.arange(length)[None]
    mask = (position < lengths).long()
    labels = ids.masked_fill((mask == 0) | (position < prompts), -100)
    if num_rows > 2:
        labels[1] = -100
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, "labels": labels}


def rows_of(batch: Batch, rows: slice | list[int]) -> Batch:
    return {key: value[rows] for key, value in batch.items()}


# ------------------------------------------------------------------------------ losses
def mean_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Mean token loss of each row over its labelled positions; zero where there are none."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
    return losses.view(labels.shape).sum(1) / (labels != -100).sum(1).clamp(min=1)


def summed_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Summed token loss of each row, divided by a constant."""
    num_labels = (batch["labels"][:, 1:] != -100).sum(1)
    return mean_losses(model, batch) * num_labels / 16


def head_losses(divisor: float | None = None) -> Losses:
    """The same losses by :class:`HeadLoss`; with a divisor, :func:`summed_losses`."""

    def losses(model: nn.Module, batch: Batch) -> Tensor:
        trunk = getattr(model, model.base_model_prefix)  # type: ignore[call-overload]
        hidden = trunk(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        labels = F.pad(batch["labels"][:, 1:], (0, 1), value=-100)
        head, function = model.get_output_embeddings(), getattr(model, "capped", None)  # type: ignore
        return HeadLoss(head, divisor, function)(hidden, labels)

    return losses


def toy_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Losses of a model from ``x`` to [rows, …]."""
    return model(batch["x"]).square().flatten(1).sum(1)


# ------------------------------------------------------------------------------ the naive loop and the engine
def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def naive(
    model: nn.Module,
    batch: Batch,
    bound: float,
    rows_per_unit: int = 1,
    losses: Losses = mean_losses,
) -> tuple[list[Tensor], Tensor]:
    """Σ clip(gᵢ) and the norms by one autograd call a unit."""
    parameters = trained(model)
    totals, norms = [torch.zeros_like(p) for p in parameters], []
    num_rows = len(next(iter(batch.values())))
    for start in range(0, num_rows, rows_per_unit):
        loss = losses(model, rows_of(batch, slice(start, start + rows_per_unit))).sum()
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
        norm = norm_of(filled)
        norms.append(norm)
        for total, grad in zip(totals, filled, strict=True):
            total.add_(grad, alpha=min(1.0, bound / norm) if norm else 1.0)
    return totals, torch.tensor(norms, dtype=torch.float64)


def clipped(
    model: nn.Module,
    batch: Batch,
    bound: float,
    rows_per_unit: int = 1,
    cuts: tuple[int, ...] = (),
    losses: Losses = mean_losses,
    loss_scale: float = 1.0,
) -> tuple[list[Tensor], Tensor]:
    """The same by the engine, with the batch cut into micro-batches at the unit numbers ``cuts``."""
    clipper = PerSampleClipper(model, bound)
    num_units = len(next(iter(batch.values()))) // rows_per_unit
    norms = []
    for parameter in model.parameters():
        parameter.grad = None
    for start, stop in zip((0, *cuts), (*cuts, num_units), strict=True):
        part = rows_of(batch, slice(start * rows_per_unit, stop * rows_per_unit))
        with clipper.capture(stop - start, rows_per_unit):
            (loss_scale * losses(model, part)).sum().backward()
        norms.append(clipper.accumulate(loss_scale))
    clipper.close()
    return grads_of(model), torch.cat(norms)


def grads_of(model: nn.Module) -> list[Tensor]:
    """A copy of what was accumulated."""
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in trained(model)]


def norm_of(grads: list[Tensor]) -> float:
    return math.sqrt(sum(g.double().square().sum().item() for g in grads))


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    return norm_of([f.double() - e.double() for f, e in zip(found, expected, strict=True)]) / norm_of(expected)


def assert_close(
    found: tuple[list[Tensor], Tensor], expected: tuple[list[Tensor], Tensor], tolerance: float = 1e-12
) -> None:
    """Sums and norms agree relative to their size."""
    assert relative_error(found[0], expected[0]) <= tolerance
    assert torch.allclose(found[1].double(), expected[1].double(), rtol=tolerance, atol=0.0)


def median_bound(
    model: nn.Module, batch: Batch, rows_per_unit: int = 1, losses: Losses = mean_losses
) -> tuple[float, tuple[list[Tensor], Tensor]]:
    """A bound under which some units are clipped and some are not, and the naive clipped sum and norms for it."""
    _, norms = naive(model, batch, math.inf, rows_per_unit, losses)
    bound = norms[norms > 0].median().item()
    return bound, naive(model, batch, bound, rows_per_unit, losses)


def assert_equal_to_naive(
    model: nn.Module,
    batch: Batch,
    rows_per_unit: int = 1,
    cuts: tuple[int, ...] = (),
    losses: Losses = mean_losses,
    tolerance: float = 1e-12,
) -> None:
    bound, expected = median_bound(model, batch, rows_per_unit, losses)
    assert_close(clipped(model, batch, bound, rows_per_unit, cuts, losses), expected, tolerance)
