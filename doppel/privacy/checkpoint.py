"""What a checkpoint says of the privacy that its weights were trained under, and which weights these are. Who goes on
from one, starts from one, samples from one or vouches for one reads it here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppel.errors import UserError

#: Under which the callback ``DifferentialPrivacy`` keeps its state.
KEY = "DifferentialPrivacy"


def privacy_state(checkpoint: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Read the state of a private training: ``spec``, ``scope``, ``mechanism_id`` and ``num_steps``; else None."""
    state: Mapping[str, Any] | None = (checkpoint.get("callbacks") or {}).get(KEY)
    return state if state and state.get("spec") else None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, whose weights stay on disk until they are used.

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
            "put back a copy, or give another checkpoint of a training, STAGE/checkpoints/last.ckpt"
        ) from error
    if not isinstance(checkpoint, dict):
        raise UserError(f"{path} is no checkpoint: it holds {type(checkpoint).__name__}")
    return checkpoint


def weights_fingerprint(state_dict: Mapping[str, Any]) -> str:
    """Return the SHA-256 of names, shapes, types and values of tensors, and of what a module keeps beside them
    (``get_extra_state``): numbers and texts, in lists and dictionaries; 64 hexadecimal digits.

    Raises:
        UserError: The state holds something else.
    """
    digest = hashlib.sha256()
    for name, value in sorted(state_dict.items()):
        _add(digest, name, value)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, value: Any) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\0".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
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
