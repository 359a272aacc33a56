"""The files of a path, as they are now, and what identifies them: files, folders, and data sets of the hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from datamodules.reading.embedded import embedded_turns, is_embedded
from datamodules.reading.hub import hub_files, is_on_hub
from doppel.errors import DataError

#: SHA-256 of what this process has read: of each state of a file, and of the files of each path of the hub.
_digests: dict[Hashable, bytes] = {}


class Keyed(Protocol):
    """What decides how a path is read, such as :class:`~datamodules.reading.columns.Columns`."""

    @property
    def key(self) -> str:
        """Names it in fingerprints; empty where it changes nothing."""


class Files(NamedTuple):
    """The files of a path that hold rows, opened one by one.

    Attributes:
        state: As of :func:`state_of`.
        is_folder: Whether the path is a folder of them.
        contents: Name and content of each, in order. Whoever has read them has paid for their digest:
            :func:`content_digest` of the same path then opens nothing. So one reading serves the rows and the
            fingerprint, and both are of the same bytes.
    """

    state: Hashable
    is_folder: bool
    contents: Iterator[tuple[str, bytes]]


def open_files(path: str) -> Files:
    """Look at a path as it is now, and read its files as they are asked for.

    Raises:
        DataError: A file is missing or may not be read; a folder is no data set; the hub cannot be reached.
    """
    state = state_of(path)
    if not is_on_hub(path):
        return Files(state, Path(path).is_dir(), _of_disk(path))
    return Files(state, False, _of_hub(path))


def _of_hub(path: str) -> Iterator[tuple[str, bytes]]:
    digests = b""
    for name, content in hub_files(path):
        digests += hashlib.sha256(content).digest()
        yield name, content
    _digests[path] = digests


def _of_disk(path: str) -> Iterator[tuple[str, bytes]]:
    for file in data_files(path):
        state = _state(file)
        with _plain_errors(file):
            content = file.read_bytes()
        _digests[state] = hashlib.sha256(content).digest()
        yield str(file), content


def file_digest(file: Path) -> bytes:
    """Return the SHA-256 of a file, read once by a process as it is now; never to be shown.

    Raises:
        DataError: The file is missing or may not be read.
    """
    state = _state(file)
    if state not in _digests:
        with _plain_errors(file), file.open("rb") as stream:
            _digests[state] = hashlib.file_digest(stream, "sha256").digest()
    return _digests[state]


def content_digest(path: str, selection: Keyed | None = None, columns: Keyed | None = None) -> str:
    """Return the SHA-256 of a path's bytes, or of the turns of an ``embedded:`` path; never to be shown.

    The same rows written in another form are another data set: what they cost is added up, never shared. Whatever
    folder the files lie in, the digest is the same; :func:`~doppel.privacy.fingerprint.keyed_fingerprint` makes of it
    what may be written down.

    Args:
        path: The file, or a folder, whose files with rows count.
        selection: What is made of its turns; part of the digest where it changes anything.
        columns: Which columns are read, likewise.

    Raises:
        DataError: As for :func:`open_files`.
    """
    digest = hashlib.sha256()
    if is_embedded(path):
        for turn in embedded_turns(path):
            digest.update(json.dumps([turn.utterance, turn.parse, turn.unit, turn.domain]).encode())
    elif is_on_hub(path):
        if path not in _digests:
            _digests[path] = b"".join(hashlib.sha256(content).digest() for _, content in hub_files(path))
        digest.update(_digests[path])
    else:
        for file in data_files(path):
            digest.update(file_digest(file))
    digest.update("".join(part.key for part in (selection, columns) if part is not None).encode())
    return digest.hexdigest()


def state_of(path: str) -> Hashable:
    """Return a key of a path, under whatever name, in this state of its files; the path itself on the hub.

    Raises:
        DataError: The file is missing or may not be read.
    """
    return path if is_on_hub(path) else tuple(_state(file) for file in data_files(path))


def expand_path(path: str) -> str:
    """Replace ``~`` and ``$VARIABLE`` or ``${VARIABLE}`` in a path of a configuration.

    Raises:
        DataError: A variable is not set.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    unset = re.search(r"\$\{?(\w+)", expanded)
    if unset:
        raise DataError(f"the environment variable {unset[1]} is not set: export it, or write the path out", about=path)
    return expanded


def data_files(path: str) -> list[Path]:
    """Return the files of a path that hold rows, in order; the file itself, if it is one.

    Raises:
        DataError: It is a folder, but no data set, or several.
    """
    folder = Path(path)
    if not folder.is_dir():
        return [folder]
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = _named(splits, lambda told: [str(name) for name in told["splits"]])
        raise DataError(f"{path} holds the splits {', '.join(names)}: name the folder of one, {folder / names[0]}")
    state = folder / "state.json"
    if state.is_file():
        return [folder / name for name in _named(state, lambda told: [f["filename"] for f in told["_data_files"]])]
    parquet = sorted(folder.glob("*.parquet"))
    names = sorted({file.stem.rpartition("-of-")[0].rpartition("-")[0] or file.stem for file in parquet})
    if len(names) == 1:
        return parquet
    what = f"Parquet files of {len(names)} names ({', '.join(names)})" if names else "no data set that is known"
    raise DataError(f"{path} is a folder with {what}: name one file, or a folder of Hugging Face's save_to_disk")


def _named(path: Path, names: Callable[[Any], list[str]]) -> list[str]:
    """The names in a file of a data set."""
    try:
        found = names(json.loads(path.read_text(encoding="utf-8")))
        if found:
            return found
    except (ValueError, KeyError, TypeError, OSError):
        pass
    raise DataError("is damaged, or names no files: copy the data set again", about=path)


def _state(file: Path) -> Hashable:
    """What tells a file, under whatever name, and this state of it from others."""
    with _plain_errors(file):
        status = file.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


@contextmanager
def _plain_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError:
        raise DataError(f"{file} may not be read by this user: change its permissions or its owner") from None
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(
            f"no file {file}: put a .csv, .jsonl, .parquet or .txt file of utterances there (compressed, too), or set "
            "another path (docs/reproduce.md says where published data are)"
        ) from None
