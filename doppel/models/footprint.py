"""What a training holds in memory, before it does: counted on shapes, without a weight or a row."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from doppel.models.activations import attention_for, checkpoint_activations, is_checkpointed
from doppel.models.quantized import packable, saved_by_packing
from doppel.models.shapes import LiveBytes
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.head import HeadLoss

#: Tokens of the long and of the short rows that a micro-batch is tried with; a request has about 12.
LONG, SHORT = 64, 12
#: Bytes of a checkpoint beside tensors.
_BESIDE = 2**20
#: Share of a device that tensors may take: the rest is the device's own, and lost between them.
USABLE = 0.9
_MOST_TOKENS = 2**15
#: What an operation ends in whose result no shape tells.
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)
#: What was counted in this process, by all that it depends on.
_KNOWN: dict[Hashable, Footprint] = {}


@dataclass(frozen=True)
class Micro:
    """A micro-batch and how it is computed.

    Args:
        max_tokens: ``data.max_tokens_per_micro_batch``.
        max_units: ``data.max_units_per_micro_batch``.
        half: Type of autocast; None for none.
        device: Type of the device, ``cpu`` or ``cuda``.
        longest: Longest text of the model, which decides how it attends.
        is_private: Whether the gradients are clipped.
        is_packed: Whether frozen linear layers will be packed into 4 bits, of a model in which they are not yet.
        moments: Numbers that the optimiser keeps of each trained weight: 2 of Adam, 1 of ``DPAdam`` in a private run.
        bands: ``privacy.bands``.
        num_ranks: Processes, which share earlier noise out.
    """

    max_tokens: int
    max_units: int | None = None
    half: torch.dtype | None = None
    device: str = "cpu"
    longest: int = LONG
    is_private: bool = True
    is_packed: bool = False
    moments: int = 2
    bands: int = 1
    num_ranks: int = 1

    def units(self, length: int) -> int:
        """How many rows of a length it holds, each a unit."""
        units = max(1, self.max_tokens // length)
        return units if self.max_units is None else min(units, self.max_units)


@dataclass(frozen=True)
class Footprint:
    """Bytes that a training holds on a device, by what they are.

    Attributes:
        base: Frozen weights.
        trained: Trained weights: adapters, or all.
        optimizer: Their gradients, and the means of the optimiser.
        noise: Of earlier steps, which bands take back.
        activations: What the forward pass keeps of a micro-batch for the backward pass, below the head.
        head: The logits of its labels.
        kept: Per-unit gradients that the clipper holds until it knows their norms.
        peak: The most that is alive at once; less than the sum, for per-unit gradients come as activations go.
        micro: The micro-batch.
        num_weights: Numbers of the model, adapters included.
        num_trained: Those that are trained.
    """

    base: int
    trained: int
    optimizer: int
    noise: int
    activations: int
    head: int
    kept: int
    peak: int
    micro: Micro
    num_weights: int
    num_trained: int

    @property
    def resident(self) -> int:
        """Bytes held from step to step."""
        return self.base + self.trained + self.optimizer + self.noise

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint: trained weights and the means of the optimiser."""
        return (1 + self.micro.moments) * self.trained + _BESIDE


def half_of(precision: str) -> torch.dtype | None:
    """Return the type of autocast under a ``trainer.precision``."""
    if precision.startswith("bf16"):
        return torch.bfloat16
    return torch.float16 if precision.startswith("16") else None


def footprint(model: PreTrainedModel, micro: Micro, head_loss: HeadLoss | None = None) -> Footprint | None:
    """Count what a training holds: one forward and backward pass is run on shapes alone.

    Of rows of 64 tokens and of 12 the micro-batch that takes more is told. What grows with the square of the length is
    counted at these lengths. Buffers inside an operation are not seen, nor what a device keeps for itself.

    Formal guarantees:
        Shapes of weights and settings go in, and nothing of the data.

    Args:
        model: As it is trained, adapters included, on any device; it is not changed. One of the device ``meta`` needs
            no memory.
        micro: The micro-batch.
        head_loss: What the training takes the loss with; None where it forms all logits.

    Returns:
        None for a model that asks for numbers, such as which expert a token goes to.
    """
    weights = ((name, p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters())
    told = None if head_loss is None else (head_loss.function,)
    key = (model.config.to_json_string(), *weights, is_checkpointed(model), told, micro)
    if key not in _KNOWN:
        try:
            _KNOWN[key] = _largest(model, micro, head_loss)
        except _FAILURES:
            return None
    return _KNOWN[key]


def _largest(model: PreTrainedModel, micro: Micro, head_loss: HeadLoss | None) -> Footprint:
    long, short = min(LONG, micro.longest), min(SHORT, micro.longest)
    found = _count(model, head_loss, micro, long)
    num_more = micro.units(short) - micro.units(long)
    if found.kept * (1 + num_more / micro.units(long)) < 0.8 * (found.peak - found.resident):
        return found
    other = _count(model, head_loss, micro, short)
    return other if other.peak > found.peak else found


def budget(model: PreTrainedModel, micro: Micro, free: int, head_loss: HeadLoss | None = None) -> Micro:
    """Choose the largest micro-batch, of a power of two tokens, that a device holds.

    Args:
        model: As of :func:`footprint`.
        micro: How it is computed; its bounds are not read.
        free: Bytes of the device.
        head_loss: As of :func:`footprint`.

    Returns:
        ``micro`` with its bounds; a micro-batch of one long row where even that may not fit.
    """
    row = min(LONG, micro.longest)
    num_rows = 16
    tried = _count(model, head_loss, replace(micro, max_tokens=num_rows * row, max_units=None), row)
    left = max(USABLE * free - tried.resident, 0)
    wanted = left * num_rows * row / max(tried.peak - tried.resident, 1)
    max_tokens = row
    while 2 * max_tokens <= min(wanted, _MOST_TOKENS):
        max_tokens *= 2
    each = tried.kept / num_rows
    max_units = None if not each else max(1, int(0.8 * left / each))
    is_bound = max_units is not None and max_units < max_tokens // (SHORT // 2)
    return replace(micro, max_tokens=max_tokens, max_units=max_units if is_bound else None)


def _count(model: PreTrainedModel, head_loss: HeadLoss | None, micro: Micro, length: int) -> Footprint:
    """Run a step's forward and backward pass on rows of one length."""
    num_units, weights = micro.units(length), list(model.parameters())
    trained = sum(p.nbytes for p in weights if p.requires_grad)
    base = sum(p.nbytes for p in weights) - trained + sum(b.nbytes for b in model.buffers())
    base -= saved_by_packing(model) if micro.is_packed else 0
    live = LiveBytes(micro.device == "cuda", length)
    copy, loss = live.copy((model, head_loss))
    if is_checkpointed(model):
        checkpoint_activations(copy, micro.longest, torch.device(micro.device))
    with live.running(micro.half):
        for parameter in copy.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        clipper = PerSampleClipper(copy, max_grad_norm=1.0) if micro.is_private else None
        ids = torch.zeros((num_units, length + 1), dtype=torch.int64, device="cpu")
        before = live.now
        live.most = before
        with nullcontext() if clipper is None else clipper.capture(num_units):
            with attention_for(torch.device(micro.device), micro.longest):
                if loss is None:
                    states = copy(input_ids=ids[:, :-1], use_cache=False).logits
                else:
                    states = copy.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
            below = live.now - before
            losses = _all_logits(states, ids) if loss is None else loss(states, ids[:, 1:])
            head = live.now - before - below
            del states
            losses.sum().backward()
        kept = 0 if clipper is None else clipper.num_bytes_kept
    num_trained = sum(p.numel() for p in weights if p.requires_grad)
    optimizer, noise = (1 + micro.moments) * trained, 8 * (micro.bands - 1) * num_trained // micro.num_ranks
    resident = base + trained + optimizer + noise
    # PyTorch's AdamW on a GPU takes all weights at once, with a temporary number for each
    unpacked = max((layer.weight.nbytes for layer in packable(model) if micro.is_packed), default=0)
    step = max(live.most - before + unpacked, trained if micro.device == "cuda" else 0)
    num_weights, peak = sum(p.numel() for p in weights), resident + step
    return Footprint(base, trained, optimizer, noise, below, head, kept, peak, micro, num_weights, num_trained)


def _all_logits(logits_BTV: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
