"""The privacy card of a folder of weights, ``privacy_card.json``: what it says of the training behind the weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from doppel.errors import UserError
from doppel.files import sha256_of, write_json
from doppel.models.lora_folder import CONFIG, base_of, digests

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
    hub's name does, and counts as public. LoRA weights come from their base, too, whoever made them.

    Raises:
        UserError: A card cannot be read.
    """
    base = base_of(folder)
    below = [] if base is None else origins_of(Path(base))
    if not (folder / CARD).is_file():
        return below
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
    return [origin, *(card.get("origins") or ()), *below]


def check_card(folder: Path) -> tuple[str, list[str]] | None:
    """Return what the card of a folder of weights states, and why it does not hold, in words; None without such a card.

    The card is the word of who wrote it: the ledger that it tells of is asked by ``export`` alone.

    Raises:
        UserError: The card cannot be read.
    """
    card = _read(folder / CARD) if (folder / CARD).is_file() else {}
    if "weights" not in card:
        return None
    reasons = [] if card.get("private") is True else ["no ε holds for its weights"]
    reasons += [] if card["weights"] == _weights_digest(folder) else [f"its weights are not those that {CARD} tells of"]
    try:
        if (base := base_of(folder)) is not None:
            check_base(folder, base)
    except UserError as error:
        reasons.append(str(error))
    return str(card.get("statement")), reasons


def check_base(folder: Path, base: str) -> None:
    """Refuse LoRA weights whose base is another one than that which their card names; without a card nothing is said.

    Args:
        folder: Of the LoRA weights.
        base: Folder or hub name of the base that is taken.

    Raises:
        UserError: Its files have other digests.
    """
    told = (_read(folder / CARD).get("base") or {}) if (folder / CARD).is_file() else {}
    if (wanted := told.get("sha256")) and (found := digests(base)) and found != wanted:
        file = next((name for name, digest in wanted.items() if found.get(name) != digest), min(found))
        raise UserError(
            f"{folder} holds LoRA weights for another base than {base}: {file} of theirs has the SHA-256 "
            f"{wanted.get(file)}; give {CONFIG} the folder of that one as base_model_name_or_path"
        )


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
