"""Fingerprints of private data: the same for the same data, and no test of a guess for whoever lacks the key."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from pathlib import Path

from filelock import FileLock

from doppel.errors import DataError


class Sealed(str):
    """A fingerprint that was made with the key, and is not keyed again in this process."""

    __slots__ = ()


def sealed(fingerprint: str) -> Sealed:
    """The keyed hash of a fingerprint, 32 hexadecimal digits; what this function gave stays as it is.

    A plain hash of a private file is an exact membership test: who knows the other lines tries guesses of the last
    one. Under a random key it tells nothing (HMAC is a pseudorandom function), but that two files are equal. That holds
    whatever a data module calls its fingerprint, a SHA-256, an MD5 or a name: nothing but the type of what was returned
    here is taken as keyed.

    The key is a file outside of all run folders, see :func:`key_path`. Whoever shares a ledger shares the key. Without
    it, fingerprints of the same data differ.

    Raises:
        DataError: The key cannot be made or read.
    """
    if isinstance(fingerprint, Sealed):
        return fingerprint
    is_digest = re.fullmatch("[0-9a-fA-F]{64}", fingerprint) is not None
    told = bytes.fromhex(fingerprint) if is_digest else f"text {fingerprint}".encode()
    return Sealed(hmac.digest(_key(), told, "sha256").hex()[:32])


def key_path() -> Path:
    """Where the key is: ``$DOPPEL_KEY``, else ``~/.config/doppel/key``, whatever the ledger, so that a run which began
    under one key goes on under it. It is made when it is first needed."""
    return Path(os.environ.get("DOPPEL_KEY") or "~/.config/doppel/key").expanduser()


def _key() -> bytes:
    path = key_path()
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
