"""Fingerprints of private data: the same for the same data, and no test of a guess for whoever lacks the key."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from filelock import FileLock

from doppel.errors import DataError


def keyed_fingerprint(digest: str) -> str:
    """Return HMAC-SHA256 of a digest, or of any other name of data, 32 hexadecimal digits.

    A plain hash of a private file is an exact membership test: who knows the other lines tries guesses of the last
    one. Under a random key it tells nothing (HMAC is a pseudorandom function), but that two files are equal. Whoever
    writes a fingerprint down calls this once: the ledger, the manifest, a report.

    Raises:
        DataError: The key cannot be made or read.
    """
    return hmac.digest(_key(), digest.encode(), "sha256").hex()[:32]


def key_path() -> Path:
    """Return the path of the key: ``$DOPPEL_KEY``, else ``~/.config/doppel/key``.

    It lies outside of all run folders and whatever the ledger, so that a run goes on under the key that it began under.
    It is made when it is first needed.
    """
    return Path(os.environ.get("DOPPEL_KEY") or "~/.config/doppel/key").expanduser()


def _key() -> bytes:
    path = key_path()
    if path.exists() and not path.is_file():  # such as a device, which a new key would replace
        raise DataError(f"the key of fingerprints {path} is no ordinary file: set DOPPEL_KEY to the path of one")
    try:
        if not path.is_file():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(path.with_name(f"{path.name}.lock"), mode=0o600):
                if not path.is_file():
                    draft = path.with_name(f".{path.name}.draft")
                    draft.touch(0o600)
                    draft.write_text(f"{secrets.token_hex(32)}\n", encoding="ascii")
                    draft.replace(path)
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise DataError(f"the key of fingerprints {path} cannot be used ({error}): set DOPPEL_KEY") from None
    if len(key) < 16:
        raise DataError(f"the key of fingerprints {path} is too short: delete it, and a new one is made")
    return key
