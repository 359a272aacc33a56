"""The privacy card of a folder of weights, ``privacy_card.json``: what it says of the training behind the weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from doppel.errors import UserError
from doppel.files import sha256_of, write_json

CARD = "privacy_card.json"


def not_private_card(is_public: bool | None, origins: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the card of a training without privacy.

    Args:
        is_public: Whether its data were declared public; None where nothing says so.
        origins: What its weights came from.
    """
    of_whom = ", on data that were declared public" if is_public else ""
    statement = f"NOT PRIVATE: the weights were trained without a guarantee{of_whom}"
    return {"private": False, "is_public": bool(is_public), "origins": list(origins), "statement": statement}


def write_card(folder: Path, card: dict[str, Any]) -> None:
    """Put a card beside the weights that it tells of, with their digest: under other weights it does not hold."""
    write_json(folder / CARD, {**card, "weights": _weights_digest(folder)})


def origins_of(folder: Path) -> list[dict[str, Any]]:
    """Return what the weights in a folder come from, as their cards say: see ``LogicalBatchModule.origins``.

    A card without ``is_public`` is one of data that nobody declared public. A folder without a card tells nothing, as a
    hub's name does, and counts as public.

    Raises:
        UserError: A card cannot be read.
    """
    if not (folder / CARD).is_file():
        return []
    card = _read(folder / CARD)
    is_private = card.get("private") is True
    unpaid = {"num_steps": card.get("num_steps", 0), "scope": str(card.get("scope")), "sha256": ""}
    origin = {
        "path": str(folder),
        "private": (card.get("paid") or unpaid) if is_private else None,
        "is_public": None if is_private else bool(card.get("is_public", False)),
        "caveats": list(card.get("caveats") or ()),
        "is_changed": "weights" in card and card["weights"] != _weights_digest(folder),
    }
    return [origin, *(card.get("origins") or ())]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read ({type(error).__name__}): write the folder again", about=path) from error
    if not isinstance(content, dict):
        raise UserError("is no JSON object: write the folder again", about=path)
    return content


def _weights_digest(folder: Path) -> str:
    """SHA-256 of the files of weights, names and content."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        digest.update(file.name.encode() + bytes.fromhex(sha256_of(file)))
    return digest.hexdigest()
