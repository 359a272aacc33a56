"""How much memory a training will take, before it takes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

_MEMINFO = Path("/proc/meminfo")
#: Numbers that a trained weight brings: its gradient, and the two means of Adam.
_OF_TRAINED = 3
_ROWS = 2


def bytes_of_a_step(
    model: nn.Module, losses: Callable[[int], Tensor], row_length: int, max_tokens: int, is_half: bool
) -> int:
    """Estimate the memory of steps on top of the weights: gradients, Adam's state, copies of weights, a micro-batch.

    What autograd keeps of one made-up row and of three is counted, and the difference, which has no weights in it, is
    multiplied. What grows with the square of the length is counted at that of these rows.

    Formal guarantees:
        Weights, made-up rows and settings go in, and nothing of the data.

    Args:
        model: On its device.
        losses: Computes the losses of so many made-up rows as a training does, without a backward pass.
        row_length: Tokens of each.
        max_tokens: ``max_tokens_per_micro_batch``.
        is_half: Whether it trains under autocast to half precision, which copies the weights of linear layers.
    """
    one, more = _bytes_kept(losses, 1), _bytes_kept(losses, 1 + _ROWS)
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    linear = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)}
    of_tokens = (more - one) * max_tokens // (_ROWS * row_length)
    return _OF_TRAINED * trained + (2 * sum(linear.values()) if is_half else 0) + of_tokens


def _bytes_kept(losses: Callable[[int], Tensor], num_rows: int) -> int:
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no address is given out twice

    def note(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        alive.append(x)
        return x

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        losses(num_rows)
    return sum(kept.values())


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device now; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", _MEMINFO.read_text(), re.M)
    except OSError:
        return None
    return None if found is None else 1024 * int(found[1])


def shortage(needed: int, device: torch.device, max_tokens: int) -> str | None:
    """Warn that a training may not find its memory; None where it may."""
    free = free_bytes(device)
    if free is None or needed <= free:
        return None
    return (
        f"a step of {max_tokens:,} tokens at a time takes about {needed / 1e9:.1f} GB on top of the weights, and "
        f"{free / 1e9:.1f} GB are free: lower data.max_tokens_per_micro_batch, which changes neither the result nor ε, "
        "or train LoRA only (model.lora)"
    )
