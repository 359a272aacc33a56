"""How much memory a device has left, and what says so where it is too little."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from doppel.models.footprint import Footprint, Micro

_MEMINFO = Path("/proc/meminfo")


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


def shortage(found: Footprint, device: torch.device, micro: Micro) -> str | None:
    """Warn that a training may not find its memory beside the weights, which lie there already; None where it may."""
    free, needed = free_bytes(device), found.peak - found.base - found.trained
    if free is None or needed <= free:
        return None
    less = "data.max_tokens_per_micro_batch"
    if found.kept > found.activations:
        less = "data.max_units_per_micro_batch (each unit's gradient is held), or " + less
    return (
        f"a step of {micro.max_tokens:,} tokens at a time takes about {needed / 1e9:.1f} GB on top of the weights, and "
        f"{free / 1e9:.1f} GB are free: lower {less}, which changes neither the result nor ε, or train LoRA only "
        "(model.lora)"
    )
