"""What this machine can do: checks what the configuration asks of it, and chooses the precision where that is open."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.benchmark import Timer

from doppel.errors import UserError

#: Numbers that products of a model are over.
_SIZES = ("vocab_size", "hidden_size", "intermediate_size")
_CPU_BF16 = ("amx_bf16", "avx512_bf16", "bf16")  # on x86, x86 and ARM


def settled_precision(accelerator: str, precision: str, mixing: str | None = None) -> str:
    """Return the precision to run in, which is said where it was left open; warns of one that is slow here.

    Args:
        accelerator: ``trainer.accelerator``.
        precision: ``trainer.precision``; ``auto`` is ``bf16-mixed`` on a GPU or CPU with bfloat16 instructions,
            ``16-mixed`` on another CUDA GPU, such as a V100, and ``32-true`` elsewhere, and where rows would mix. In
            16-mixed a private run trains under a constant loss scale and skips no step.
        mixing: As of :func:`mixing_size`, of a private training on a CPU.
    """
    on_cpu = uses_cpu(accelerator)
    if precision != "auto":
        if on_cpu and "16" in precision and not cpu_bf16():
            rank_zero_warn(
                f"precision {precision} on a CPU without bfloat16 instructions: matrix products take up to fifty times "
                "as long as in 32-true; set trainer.precision to auto or 32-true"
            )
        return precision
    if on_cpu:
        found = cpu_bf16()
        why = f"this CPU has bfloat16 instructions ({found})" if found else "this CPU has no bfloat16 instructions"
        if found and mixing is not None:
            found, why = "", f"this CPU's products in bfloat16 mix rows, one of which is nan, over {mixing}"
    elif torch.cuda.is_available():
        found = "cuda" if torch.cuda.is_bf16_supported(including_emulation=False) else ""
        why = f"{torch.cuda.get_device_name()} has {'' if found else 'no '}bfloat16"
    else:
        found, why = "", "this is no CUDA GPU"
    half = "32-true" if on_cpu or not torch.cuda.is_available() else "16-mixed"
    chosen = "bf16-mixed" if found else half
    rank_zero_info(f"precision: {chosen}, for {why}")
    return chosen


def mixing_size(model: Any, privacy: Any) -> str | None:
    """Return over which size of a language model this CPU's products in bfloat16 mix rows, in words; None over none.

    Its kernels take some numbers at a time, and past an end that is none of their bounds the first ones of the next
    row: times zero, but a nan times zero is one. A private training, whose rows may then move others, is refused. It
    is tried with products of made-up numbers, for which sizes are concerned depends on the processor.

    Args:
        model: Key ``model`` of a configuration; None, or one of another model, has none.
        privacy: Key ``privacy``; without one no row is protected.
    """
    from commands.lightning.trained_model import place_of
    from doppel.models.hub import gives
    from doppel.models.load import load_config

    given = (model or {}).get("init_args") or {}
    base, sizes = given.get("base_model"), {"lora.rank": (given.get("lora") or {}).get("rank")}
    if base is None or privacy is None:
        return None
    with suppress(UserError):  # which building the model says better
        if place_of(base).is_dir() or gives(base, "config.json"):  # a hub that does not answer is asked once
            config = load_config(place_of(base)).get_text_config()
            sizes |= {f"{name} of {base}": getattr(config, name, None) for name in _SIZES}
    return next((f"{size:,}, the {name}" for name, size in sizes.items() if size and _mixes_rows(size)), None)


def _mixes_rows(size: int) -> bool:
    """Whether a nan in one row of a product over so many numbers is in another."""
    left, right = torch.ones(32, size, dtype=torch.bfloat16), torch.ones(size, 64, dtype=torch.bfloat16)
    left[1::2] = torch.nan
    return not bool((left @ right)[::2].isfinite().all())


def what_auto_saves(accelerator: str, precision: str) -> str | None:
    """Say what a training on a GPU in float32 gives away, by a product that is timed; None where it does not.

    Formal guarantees:
        Two products of made-up matrices are timed, and no row is read.

    Args:
        accelerator: ``trainer.accelerator``.
        precision: ``trainer.precision``, settled.
    """
    if precision != "32-true" or uses_cpu(accelerator) or not torch.cuda.is_available():
        return None
    half = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    device, name = torch.device("cuda"), "bf16-mixed" if half is torch.bfloat16 else "16-mixed"
    times = seconds_of_product(device, torch.float32) / seconds_of_product(device, half)
    return (
        f"precision 32-true on {torch.cuda.get_device_name()}: a matrix product takes {times:.1f} times as long as in "
        f"{name}, and activations twice the memory: set trainer.precision to auto, which takes {name} here"
    )


def seconds_of_product(device: torch.device, dtype: torch.dtype, size: int = 4096) -> float:
    """Return the seconds of a product of two square matrices."""
    left, right = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    timer = Timer("left @ right", globals={"left": left, "right": right})  # which waits for the device
    return float(timer.timeit(3).median)


def training_precision(precision: str) -> Callable[[], AbstractContextManager[None]]:
    """Return the context of a training's forward passes on this machine; says nothing.

    Args:
        precision: ``trainer.precision``.
    """
    half = training_half(precision)
    return nullcontext if half is None else partial(torch.autocast, _device(), half)


def training_half(precision: str) -> torch.dtype | None:
    """Return the type of autocast of a training on this machine; None for none."""
    from doppel.models.footprint import half_of  # and transformers

    device = _device()
    has_bf16 = bool(cpu_bf16()) if device == "cpu" else torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "auto":
        precision = "bf16-mixed" if has_bf16 else "32-true" if device == "cpu" else "16-mixed"
    return half_of(precision) if precision.endswith("mixed") else None


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def uses_cpu(accelerator: str) -> bool:
    """Return whether a trainer with this ``accelerator`` computes on the CPU."""
    return accelerator == "cpu" or not (torch.cuda.is_available() or torch.backends.mps.is_available())


def cpu_bf16() -> str:
    """Name of the instructions with which this CPU multiplies bfloat16; empty where PyTorch has or uses none."""
    if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return ""
    capabilities = torch.cpu.get_capabilities()
    return next((name for name in _CPU_BF16 if capabilities.get(name)), "")


def check_hardware(accelerator: str, precision: str) -> None:
    """Refuse a GPU that is not there or that PyTorch has no code for, and bfloat16 where there is none.

    Args:
        accelerator: ``trainer.accelerator``.
        precision: ``trainer.precision``.

    Raises:
        UserError: The machine, the installation or the precision does not fit.
    """
    is_there = torch.cuda.is_available() or torch.backends.mps.is_available()
    if accelerator in ("gpu", "cuda") and not is_there:
        built = "" if torch.version.cuda else f"; torch {torch.__version__} is built without CUDA"
        raise UserError(
            f"trainer.accelerator is {accelerator}, but PyTorch finds no GPU here{built}: run on a node that has one "
            "(`nvidia-smi` lists them), or set --trainer.accelerator=cpu"
        )
    if not torch.cuda.is_available() or accelerator == "cpu":
        return
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if not supports(capability, torch.cuda.get_arch_list()):
        raise UserError(
            f"torch {torch.__version__} has no code for {name} (sm_{capability[0]}{capability[1]}), only for "
            f"{', '.join(torch.cuda.get_arch_list())}: install another build of the same release, for a V100 "
            f"`pip install --index-url https://download.pytorch.org/whl/cu126 torch=={torch.__version__.split('+')[0]}`"
        )
    if "bf16" in precision and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError(
            f"precision {precision!r}: {name} has no bfloat16; set trainer.precision to auto (here 16-mixed) "
            "or to 32-true"
        )


def supports(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether a build for ``architectures`` runs on a GPU.

    Machine code (``sm_XY``) runs on GPUs of the same major number and at least this minor one; intermediate code
    (``compute_XY``) is compiled at start for any newer GPU.

    Args:
        capability: Major and minor compute capability of the GPU.
        architectures: What ``torch.cuda.get_arch_list()`` gives, such as ``["sm_70", "compute_90"]``.
    """
    for architecture in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", architecture)
        if found is None:
            continue
        built = (int(found[2]), int(found[3]))
        if built <= capability and (found[1] == "compute" or built[0] == capability[0]):
            return True
    return False
