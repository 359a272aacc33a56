"""Tokenise once: encoded turns on disk, keyed by content, readable by their owner alone."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np
from filelock import FileLock

from datamodules.codec import Codec
from datamodules.encoded_turns import EncodedTurns, encode_turns
from datamodules.readers import Unit, is_embedded, read_turns
from datamodules.selection import Selection
from doppel.errors import DataError
from doppel.files import whole_file

log = logging.getLogger(__name__)

#: Raise it when the arrays, the readers or the text format change.
_FORMAT_VERSION = 2

_ARRAYS = {"ids": np.int32, "offsets": np.int64, "num_prompt": np.int32, "unit_index": np.int32}


def data_fingerprint(path: str, selection: Selection | None = None) -> str:
    """SHA-256 of a file's content, or of the turns that an ``embedded:`` path stands for.

    Args:
        path: The file.
        selection: What is made of its turns; part of the digest where it changes anything.

    Raises:
        DataError: The file is missing or may not be read.
    """
    digest = hashlib.sha256()
    if is_embedded(path):
        for turn in read_turns(path, "dialogue"):
            digest.update(json.dumps([turn.utterance, turn.parse, turn.unit, turn.domain]).encode())
    else:
        try:
            with open(path, "rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError:
            # Its reader says best what is wrong.
            read_turns(path, "utterance")
            raise
    if selection is not None:
        digest.update(selection.key.encode())
    return digest.hexdigest()


def load_encoded(
    path: str, codec: Codec, unit: Unit, cache_dir: str | None = None, selection: Selection | None = None
) -> EncodedTurns:
    """Encoded turns of a file: from the cache, or read, tokenised and cached.

    The key covers the content of the file, the codec (tokenizer, fields, longest length), the unit and the selection.
    Processes that want the same entry wait for the first of them. A damaged entry is built anew.

    Args:
        path: As for :func:`datamodules.readers.read_turns`.
        codec: Text format of the model.
        unit: Privacy unit.
        cache_dir: Folder of the cache; ``$DOPPEL_CACHE`` if None, ``~/.cache/doppel`` if that is unset too.
        selection: What is made of the turns before they are tokenised.

    Raises:
        DataError: The input cannot be used, or the cache folder cannot be written.
    """
    folder = _private_folder(cache_dir)
    parts = [str(_FORMAT_VERSION), data_fingerprint(path, selection), codec.fingerprint(), unit]
    key = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    entry = folder / f"{key}.npz"
    with FileLock(folder / f"{key}.lock", mode=0o600):
        encoded = _load(entry)
        if encoded is None:
            turns = read_turns(path, unit)
            encoded = encode_turns(turns if selection is None else selection.apply(turns, path), codec)
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
