"""What a checkpoint says of the privacy that its weights were trained under, and which weights these are. Who goes on
from one, starts from one, samples from one or vouches for one reads it here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppel.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

#: Under which the callback ``DifferentialPrivacy`` keeps its state.
KEY = "DifferentialPrivacy"


def privacy_state(checkpoint: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The state of a private training: ``spec``, ``scope``, ``mechanism_id``, ``num_steps`` and ``ledger`` (the anchor
    of the ledger that paid for the steps). None for a training without privacy."""
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
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"{path} cannot be read as a checkpoint ({str(error).splitlines()[0]})") from error
    if not isinstance(checkpoint, dict):
        raise UserError(f"{path} is no checkpoint: it holds {type(checkpoint).__name__}")
    return checkpoint


def weights_fingerprint(state_dict: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, shapes, types and values, shortened to 16 hexadecimal digits."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(state_dict.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\0".encode())
        values: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(values)
    return digest.hexdigest()[:16]
