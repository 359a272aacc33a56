"""Checks that PyTorch can do on this GPU what the configuration asks of it, before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from doppel.errors import UserError


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
    if not torch.cuda.is_available():
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
            f"precision {precision!r}: {name} has no bfloat16; set trainer.precision: 16-mixed "
            "(configs/overlays/v100.yaml) or 32-true"
        )


def supports(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether a build for ``architectures`` runs on a GPU.

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
