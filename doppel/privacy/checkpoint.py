"""What a checkpoint says of the privacy that its weights were trained under. Who goes on from one, starts from one,
samples from one or vouches for one reads it here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppel.errors import UserError

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
