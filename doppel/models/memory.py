"""How much memory a device has left, and what says so where it is too little."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from doppel.errors import UserError
from doppel.models.footprint import Footprint
from doppel.models.load import dtype_of
from doppel.models.lora_folder import base_of

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


def described(found: Footprint, device: torch.device) -> str:
    """Tell what a training holds, by part, and what is free on a device that holds nothing of it yet."""
    parts = {"base": found.base, "LoRA" if found.base > found.trained else "weights": found.trained}
    parts |= {"optimiser": found.optimizer, "earlier noise": found.noise, "activations": found.activations}
    parts |= {"head": found.head, "kept gradients": found.kept}
    told = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items() if size >= 5e6)
    free = free_bytes(device)
    room = "" if free is None else f"; {free / 1e9:.1f} are free on this machine's {device.type}"
    room += "" if free is None or found.peak <= free else ", too little"
    return f"{found.peak / 1e9:.2f} GB at the peak of a step ({told}), a checkpoint {found.checkpoint / 1e9:.2f}{room}"


def refuse_shortage(name: str, dtype: torch.dtype, device: torch.device, needed: int | None = None) -> None:
    """Refuse a base for which a device has not the memory, before it is loaded there.

    Args:
        name: Folder of the base, or its name on a hub.
        dtype: In which it will be held.
        device: Where.
        needed: Bytes that it takes; None: what its files tell, in the dtype that their folder names.

    Raises:
        UserError: The device has not.
    """
    needed = weights_bytes(Path(name)) if needed is None else needed
    free = free_bytes(device)
    if free is None or needed <= free:
        return
    less = "model.dtype: bfloat16" if dtype is torch.float32 else "a smaller base"
    raise UserError(
        f"the base {name} takes {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, and {free / 1e9:.1f} GB "
        f"of memory are free on {device.type}: nothing was loaded; give {less}, or a machine with more"
    )


def weights_bytes(folder: Path) -> int:
    """Return the size of a model's files of weights, of LoRA weights that of their base; 0 where none is a folder."""
    folder = Path(base_of(folder) or folder)
    files = [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    return sum(file.stat().st_size for file in files)


def host_bytes(base: Path, is_adapted: bool, processes: int) -> tuple[int, int]:
    """Return the bytes that the base of a training takes on a machine with GPUs, and those of it in a checkpoint.

    Below adapters it is a memory map of its files, one for all processes; each casts for itself what is not in bfloat16
    there, and no checkpoint holds it. Where every weight is trained, each process has it in float32 until its GPU does,
    and a checkpoint holds it and two moments of Adam.

    Args:
        base: Folder; 0 bytes where it is none, as a name on a hub.
        is_adapted: Whether LoRA alone is trained.
        processes: On the machine.
    """
    size = weights_bytes(base)
    if not size:
        return 0, 0
    is_half = dtype_of(base) != "float32"
    if is_adapted:
        return size if is_half else size + processes * size // 2, 0
    full = 2 * size if is_half else size
    return processes * full, 3 * full


def shortage(found: Footprint, device: torch.device) -> str | None:
    """Warn that a training may not find its memory beside the weights, which lie there already; None where it may."""
    free, needed = free_bytes(device), found.peak - found.base - found.trained
    if free is None or needed <= free:
        return None
    less = "data.max_tokens_per_micro_batch"
    if found.kept > found.activations:
        less = "data.max_units_per_micro_batch (each unit's gradient is held), or " + less
    return (
        f"a step of {found.micro.max_tokens:,} tokens at a time takes about {needed / 1e9:.1f} GB on top of the "
        f"weights, and {free / 1e9:.1f} GB are free: lower {less}, which changes neither the result nor ε, or train "
        "LoRA only (model.lora)"
    )
