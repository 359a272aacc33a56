"""Fingerprints of private data: the same for the same data, and no test of a guess for whoever lacks the key."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from filelock import FileLock

from doppel.errors import DataError

_DIGITS = 64  # of a SHA-256 in hexadecimal


def sealed(digest: str) -> str:
    """The keyed hash of a SHA-256, 32 hexadecimal digits; what is no SHA-256, such as one that is sealed, stays.

    A plain hash of a private file is an exact membership test: who knows the other lines tries guesses of the last
    one. Under a random key it tells nothing (HMAC is a pseudorandom function), but that two files are equal.

    The key is a file outside of all run folders, made when it is first needed: ``$DOPPEL_KEY``, else beside the ledger
    that serves many runs (``$DOPPEL_LEDGER.key``), else ``~/.config/doppel/key``. Whoever shares a ledger shares the
    key. Without it, fingerprints of the same data differ.

    Raises:
        DataError: The key cannot be made or read.
    """
    return hmac.digest(_key(), bytes.fromhex(digest), "sha256").hex()[:32] if len(digest) == _DIGITS else digest


def _key() -> bytes:
    shared = os.environ.get("DOPPEL_LEDGER")
    own = f"{shared}.key" if shared else "~/.config/doppel/key"
    path = Path(os.environ.get("DOPPEL_KEY") or own).expanduser()
    try:
        if not path.is_file():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(path.with_name(f"{path.name}.lock"), mode=0o600):
                if not path.is_file():
                    draft = path.with_name(f".{path.name}.{os.getpid()}")
                    draft.touch(0o600)
                    draft.write_text(f"{secrets.token_hex(32)}\n", encoding="ascii")
                    draft.replace(path)
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise DataError(f"the key of fingerprints {path} cannot be used ({error}): set DOPPEL_KEY") from None
    if len(key) < 16:
        raise DataError(f"the key of fingerprints {path} is too short: delete it, and a new one is made")
    return key
