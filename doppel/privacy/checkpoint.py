"""What a checkpoint says of the privacy that its weights were trained under, and which weights these are. Who goes on
from one, starts from one, samples from one or vouches for one reads it here."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppel.errors import UserError

#: Under which the callback ``DifferentialPrivacy`` keeps its state.
KEY = "DifferentialPrivacy"


def privacy_state(checkpoint: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The state of a private training: ``spec``, ``scope``, ``mechanism_id`` and ``num_steps``. None for a training
    without privacy."""
    state: Mapping[str, Any] | None = (checkpoint.get("callbacks") or {}).get(KEY)
    return state if state and state.get("spec") else None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint, whose weights stay on disk until they are used.

    Raises:
        UserError: It cannot be read.
    """
    import pickle

    import torch

    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise UserError(f"{path} cannot be read as a checkpoint ({error.strerror})") from error
    except (
        RuntimeError,
        EOFError,
        pickle.UnpicklingError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:
        raise UserError(
            f"{path} cannot be read as a checkpoint: it is damaged, or a file of something else, which is never run; "
            "give the checkpoints/last.ckpt of a training"
        ) from error
    if not isinstance(checkpoint, dict):
        raise UserError(f"{path} is no checkpoint: it holds {type(checkpoint).__name__}")
    return checkpoint


def weights_fingerprint(state_dict: Mapping[str, Any]) -> str:
    """SHA-256 of names, shapes, types and values, 64 hexadecimal digits.

    Args:
        state_dict: Tensors, and what a module keeps beside them (``get_extra_state``): numbers and
            texts, in lists and dictionaries, as a checkpoint that is read with ``weights_only`` may hold.

    Raises:
        UserError: It holds something else.
    """
    digest = hashlib.sha256()
    for name, value in sorted(state_dict.items()):
        _add(digest, name, value)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, value: Any) -> None:
    if (tensor := _shape_type_bytes(value)) is not None:
        shape, dtype, content = tensor
        digest.update(f"{name} {shape} {dtype}\0".encode())
        digest.update(content)
    elif isinstance(value, Mapping | list | tuple):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        digest.update(f"{name} {len(value)}\0".encode())
        for key, part in parts:
            _add(digest, f"{name}[{key!r}]", part)
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        digest.update(f"{name} {value!r}\0".encode())
    else:
        raise UserError(
            f"{name} in the state_dict is a {type(value).__name__}, which no fingerprint can tell from another: keep "
            "tensors, numbers and texts there"
        )


def _shape_type_bytes(value: Any) -> tuple[tuple[int, ...], str, Any] | None:
    """Of a tensor; None for anything else. Where PyTorch was never imported nothing is a tensor of it."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    values = value.detach().cpu().contiguous().reshape(-1)
    return tuple(value.shape), str(value.dtype), values.view(torch.uint8).numpy()
