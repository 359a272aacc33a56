"""Tokenise once: encoded turns on disk under a key, readable by their owner alone."""

from __future__ import annotations

import hashlib
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from datamodules.encoded_turns import EncodedTurns
from doppel.errors import DataError
from doppel.files import whole_file

log = logging.getLogger(__name__)

#: Raise it when the arrays, the readers or the text format change.
_FORMAT_VERSION = 6


def cached(parts: Sequence[str], build: Callable[[], EncodedTurns], cache_dir: str | None = None) -> EncodedTurns:
    """Encoded turns from the cache, or built and cached.

    Processes that want the same entry wait for the first of them. A damaged entry is built anew.

    Args:
        parts: Everything that the turns depend on: they are the key.
        build: Makes the turns.
        cache_dir: Folder of the cache; ``$DOPPEL_CACHE`` if None, ``~/.cache/doppel`` if that is unset too.

    Raises:
        DataError: The cache folder cannot be written.
    """
    folder = _private_folder(cache_dir)
    key = hashlib.blake2b("\0".join([str(_FORMAT_VERSION), *parts]).encode(), digest_size=16).hexdigest()
    entry = folder / f"{key}.npz"
    with FileLock(folder / f"{key}.lock", mode=0o600):
        encoded = _load(entry)
        if encoded is None:
            encoded = build()
            _save(entry, encoded)
    return encoded


def _private_folder(cache_dir: str | None) -> Path:
    default = os.environ.get("DOPPEL_CACHE") or "~/.cache/doppel"
    folder = Path(cache_dir or default).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise DataError(
            f"the cache folder {folder} cannot be made readable by you alone ({error.strerror}): "
            "set DOPPEL_CACHE or cache_dir to a folder of your own"
        ) from None
    return folder


def _load(entry: Path) -> EncodedTurns | None:
    if not entry.is_file():
        return None
    try:
        with np.load(entry, allow_pickle=False) as file:
            arrays: dict[str, Any] = dict(file)
        found = EncodedTurns(**arrays)
        num_rows = {len(found), len(found.unit_index), len(found.offsets) - 1}
        if len(num_rows) == 1 and found.offsets[-1] == len(found.ids):
            return found
    except (OSError, TypeError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        pass
    log.warning("the cache entry %s is damaged and is built anew", entry)
    return None


def _save(entry: Path, encoded: EncodedTurns) -> None:
    arrays: dict[str, Any] = {field.name: getattr(encoded, field.name) for field in fields(encoded)}
    remedy = "free some space there, or set DOPPEL_CACHE or cache_dir to another folder"
    with whole_file(entry, remedy) as file:
        np.savez(file, **arrays)
