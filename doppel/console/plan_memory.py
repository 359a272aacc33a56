"""What a training holds on a GPU, from the configuration of its base alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from doppel.errors import UserError

if TYPE_CHECKING:
    from doppel.models.footprint import Footprint, Micro

#: Families of GPUs that have no bfloat16.
_WITHOUT_BF16 = re.compile(r"^(v100|t4|p100|p40|rtx20|gtx)")


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU.

    Args:
        name: Such as ``h100``.
        gigabytes: Of memory.
    """

    name: str
    gigabytes: int

    @classmethod
    def of(cls, text: str) -> Gpu:
        """Read ``h100-80``.

        Raises:
            UserError: It has no such form.
        """
        found = re.fullmatch(r"([a-z][a-z0-9]*)-([1-9][0-9]{0,3})", text.lower())
        if found is None:
            raise UserError(f"--gpu is {text!r}: give the name and the gigabytes of a GPU, such as h100-80 or l4-24")
        return cls(found[1], int(found[2]))

    @property
    def has_bf16(self) -> bool:
        """Whether it computes in bfloat16."""
        return _WITHOUT_BF16.match(self.name) is None


def memory_of(
    base: str,
    gpu: Gpu,
    num_gpus: int,
    lora: int | None,
    quantization: Literal["nf4"] | None = None,
    batch_size: int | None = None,
    bands: int = 1,
) -> dict[str, Any]:
    """Count what a private training holds on each GPU, and choose its micro-batch. No weight is read.

    Args:
        base: Folder or hub name.
        gpu: On which it trains.
        num_gpus: How many; each holds the whole model.
        lora: Rank of adapters; None: all weights are trained.
        quantization: How the frozen base is packed.
        batch_size: Expected units of a step; None: not known.
        bands: Steps over which noise is correlated.

    Returns:
        Bytes by part, whether they fit, and the settings to take; JSON-ready.

    Raises:
        UserError: The base has no configuration there, or its memory cannot be told.
    """
    import torch

    from doppel.models.adapters import LoraArguments
    from doppel.models.footprint import LONG, USABLE, Micro, budget, footprint
    from doppel.models.heads import head_loss
    from doppel.models.shell import shell

    half = torch.bfloat16 if gpu.has_bf16 else torch.float16
    adapters = None if lora is None else LoraArguments(rank=lora)
    model = shell(base, half, adapters)
    micro = Micro(LONG, half=half, device="cuda", longest=2**20, is_packed=quantization is not None)
    micro = replace(micro, moments=1 if bands > 1 else 2, bands=bands, num_ranks=num_gpus)
    free = gpu.gigabytes * 10**9
    loss = head_loss(model, 1.0)
    micro = budget(model, micro, free, loss)
    found = footprint(model, micro, loss)
    if found is None:
        raise UserError(f"what a step of {base} holds cannot be told from its configuration: try one on the GPU")
    return _told(found, micro, gpu, num_gpus, found.peak <= USABLE * free, batch_size)


def _told(
    found: Footprint, micro: Micro, gpu: Gpu, num_gpus: int, fits: bool, batch_size: int | None
) -> dict[str, Any]:
    from doppel.models.footprint import LONG

    parts = ("base", "trained", "optimizer", "noise", "activations", "head", "kept", "peak", "checkpoint")
    result: dict[str, Any] = {f"{name}_bytes": getattr(found, name) for name in parts}
    result |= {"gpu": gpu.name, "gpu_bytes": gpu.gigabytes * 10**9, "num_gpus": num_gpus, "fits": fits}
    result |= {"num_weights": found.num_weights, "num_trained": found.num_trained}
    result |= {"is_packed": micro.is_packed, "moments": micro.moments}
    result |= {"max_tokens_per_micro_batch": micro.max_tokens, "max_units_per_micro_batch": micro.max_units}
    if batch_size is not None:
        result["num_micro_batches"] = math.ceil(batch_size / num_gpus / micro.units(LONG))
    return result


def memory_table(memory: dict[str, Any]) -> str:
    """Render what :func:`memory_of` returns for people."""

    def size(name: str) -> str:
        return f"{memory[name + '_bytes'] / 1e9:8.2f} GB"

    tokens, units = memory["max_tokens_per_micro_batch"], memory["max_units_per_micro_batch"]
    micro = f"{tokens:,} tokens" + ("" if units is None else f" and {units:,} units at most")
    is_adapted = memory["num_trained"] < memory["num_weights"]
    means = "two means of Adam" if memory["moments"] == 2 else "mean of DPAdam"
    rows = [
        ("base", size("base"), f"{memory['num_weights'] - memory['num_trained']:,} frozen weights"),
        ("LoRA" if is_adapted else "weights", size("trained"), f"{memory['num_trained']:,} trained"),
        ("optimiser", size("optimizer"), f"their gradients and the {means}"),
        ("earlier noise", size("noise"), "of the steps that bands take back"),
        ("activations", size("activations"), f"of a micro-batch of {micro}"),
        ("head", size("head"), "the logits of its labels"),
        ("kept gradients", size("kept"), "one of each unit; they come as activations go"),
        ("at the peak", size("peak"), f"of {memory['gpu_bytes'] / 1e9:.0f} GB on each {memory['gpu']}"),
        ("checkpoint", size("checkpoint"), f"trained weights and the {means}"),
    ]
    lines = [f"{name:<14} {value}  {about}" for name, value, about in rows if not value.strip().startswith("0.00")]
    settings = f"data.max_tokens_per_micro_batch={tokens}"
    settings += "" if units is None else f" data.max_units_per_micro_batch={units}"
    step = memory.get("num_micro_batches")
    each = "" if step is None else f": {step:,} micro-batches a step on each GPU, of rows of 64 tokens"
    less = "" if is_adapted else "LoRA alone (--lora 16), or "
    less += "" if memory["is_packed"] or not is_adapted else "--quantization nf4, or "
    lines.append(f"it fits; take {settings}{each}" if memory["fits"] else f"it does not fit: {less}a larger GPU")
    return "\n".join(lines)
