"""How far each ledger has come, noted outside of all run folders, so that an older copy of one is known for what it is.

The notes are files of one line in the folder ``<key>.ledgers`` beside the key of fingerprints
(:func:`doppel.privacy.fingerprint.key_path`): for each ledger, under its name, the number of its lines and its newest
chain. A chain is a hash of public lines; it tells nothing of the data."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from doppel.privacy.fingerprint import key_path

log = logging.getLogger(__name__)

_has_warned = False


def line_of(num_lines: int, chain: str) -> bytes:
    """What a note, or the head of a ledger, says; always of one length, so that it is overwritten whole."""
    return f"{num_lines:12d} {chain}\n".encode()


def noted_chain(identity: str | None) -> str | None:
    """The newest chain that was noted of a ledger; None where there is no note that can be read."""
    if identity is None:
        return None
    try:
        words = _place(identity).read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return None
    return words[1] if len(words) == 2 else None  # a crash may leave it empty


def note(identity: str, num_lines: int, chain: str) -> None:
    """Note how far a ledger has come. Its lock must be held; where nothing can be written, a warning says so once."""
    path = _place(identity)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line_of(num_lines, chain))
        finally:
            os.close(descriptor)
    except OSError as error:
        global _has_warned
        if not _has_warned:
            _has_warned = True
            log.warning(
                "%s cannot be written (%s), so that a copy of this ledger in another folder is not noticed: let "
                "DOPPEL_KEY be in a folder that can be written to",
                path.parent,
                error.strerror or error,
            )


def unnoted(identity: str) -> str:
    """What follows where the newest line of a ledger was not noted, in words for a card, which names no folder."""
    return (
        f"whether another copy of ledger {identity} was spent from: beside the key of fingerprints (DOPPEL_KEY) "
        "nothing says how far it has come"
    )


def _place(identity: str) -> Path:
    key = key_path()
    return key.with_name(f"{key.name}.ledgers") / identity
