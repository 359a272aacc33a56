"""A release that is sealed on disk until the ledger has paid for it: both happen, or neither."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from doppel.files import whole_file

_NONCE = bytes(12)  # each key seals one release


class SealedRelease:
    """One file with what is about to be released, under a key that the ledger's line of the spend holds.

    Formal guarantees:
        A release leaves the process in two parts: the sealed file, and then the key, in the very line that pays for it
        (:meth:`doppel.privacy.ledger.Ledger.spend`). Before that line is on disk nobody can read the file: without the
        256-bit key it is noise, to the strength of ChaCha20-Poly1305. After it, whoever goes on reads the release that
        was drawn. So a process that is killed at any moment has either spent and released, or neither, and noise is
        never drawn a second time for one payment.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def seal(self, record: Mapping[str, Any]) -> str:
        """Write a release; its key, which is nowhere else, in hexadecimal digits."""
        key = secrets.token_bytes(32)
        with whole_file(self.path) as file:
            file.write(ChaCha20Poly1305(key).encrypt(_NONCE, json.dumps(record).encode(), None))
        return key.hex()

    def open(self, keys: Iterable[str]) -> dict[str, Any] | None:
        """The release, if one of the keys opens it; None if there is none, or nobody has paid for it."""
        if not self.path.is_file():
            return None
        content = self.path.read_bytes()
        for key in keys:
            try:
                record: dict[str, Any] = json.loads(ChaCha20Poly1305(bytes.fromhex(key)).decrypt(_NONCE, content, None))
            except (InvalidTag, ValueError):
                continue
            return record
        return None

    def discard(self) -> None:
        """Remove the file: its release is kept elsewhere, or nobody can read it."""
        self.path.unlink(missing_ok=True)
