"""Tokenise once: encoded turns on disk under a key, readable by their owner alone."""

from __future__ import annotations

import hashlib
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock

from datamodules.encoded_turns import EncodedTurns
from doppel.errors import DataError
from doppel.files import whole_file

log = logging.getLogger(__name__)

#: Raise it when the arrays, the readers or the text format change.
_FORMAT_VERSION = 2

_ARRAYS = {"ids": np.int32, "offsets": np.int64, "num_prompt": np.int32, "unit_index": np.int32}


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
        with np.load(entry, allow_pickle=False) as arrays:
            loaded = {name: arrays[name] for name in _ARRAYS}
            encoded = EncodedTurns(
                **loaded,
                num_over_long=int(arrays["num_over_long"]),
                rows_per_turn=int(arrays["rows_per_turn"]),
                weights=arrays["weights"] if len(arrays["weights"]) else None,
            )
        sound = (
            all(loaded[name].dtype == dtype for name, dtype in _ARRAYS.items())
            and len(encoded.unit_index) == len(encoded) == len(encoded.offsets) - 1
            and encoded.offsets[-1] == len(encoded.ids)
            and (encoded.weights is None or len(encoded.weights) == len(encoded))
        )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        sound = False
    if not sound:
        log.warning("the cache entry %s is damaged and is built anew", entry)
        return None
    return encoded


def _save(entry: Path, encoded: EncodedTurns) -> None:
    arrays = {name: getattr(encoded, name) for name in _ARRAYS}
    arrays["num_over_long"] = np.int64(encoded.num_over_long)
    arrays["rows_per_turn"] = np.int64(encoded.rows_per_turn)
    arrays["weights"] = np.zeros(0, np.float32) if encoded.weights is None else encoded.weights
    remedy = "free some space there, or set DOPPEL_CACHE or cache_dir to another folder"
    with whole_file(entry, remedy) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
