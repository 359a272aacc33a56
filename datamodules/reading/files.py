"""What a path names, and what identifies it: files, folders, data sets of the hub, and the embedded grammar."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from datamodules.reading.columns import Columns
from datamodules.reading.example import Example, Unit
from datamodules.reading.hub import hub_files, is_on_hub
from doppel.errors import DataError
from doppel.grammar import generate

#: Arguments of an ``embedded:`` path, with their types.
_EMBEDDED_ARGUMENTS = {"num": int, "seed": int, "skew": float}

#: SHA-256 of what this process has read: of each state of a file, and of the files of each path of the hub.
_digests: dict[Hashable, bytes] = {}


class Keyed(Protocol):
    """What is made of the turns of a file, such as a :class:`~datamodules.guards.selection.Selection`."""

    @property
    def key(self) -> str:
        """Names it in fingerprints; empty where it changes nothing."""


def read_files(path: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of a path that holds rows, in order.

    Whoever has read them has paid for their digest: :func:`content_digest` of the same path then opens nothing. So one
    reading serves the rows and the fingerprint, and both are of the same bytes.

    Raises:
        DataError: A file is missing or may not be read; a folder is no data set; the hub cannot be reached.
    """
    if is_on_hub(path):
        digests = b""
        for name, content in hub_files(path):
            digests += hashlib.sha256(content).digest()
            yield name, content
        _digests[path] = digests
        return
    for file in data_files(path):
        with _plain_errors(file):
            state, content = _state(file), file.read_bytes()
        _digests[state] = hashlib.sha256(content).digest()
        yield str(file), content


def file_digest(file: Path) -> bytes:
    """Return the SHA-256 of a file, read once by a process as it is now; never to be shown.

    Raises:
        DataError: The file is missing or may not be read.
    """
    with _plain_errors(file):
        state = _state(file)
        if state not in _digests:
            with file.open("rb") as stream:
                _digests[state] = hashlib.file_digest(stream, "sha256").digest()
    return _digests[state]


def content_digest(path: str, selection: Keyed | None = None, columns: Columns | None = None) -> str:
    """Return the SHA-256 of a path's bytes, or of the turns of an ``embedded:`` path; never to be shown.

    The same rows written in another form are another data set: what they cost is added up, never shared. Whatever
    folder the files lie in, the digest is the same; :func:`~doppel.privacy.fingerprint.keyed_fingerprint` makes of it
    what may be written down.

    Args:
        path: The file, or a folder, whose files with rows count.
        selection: What is made of its turns; part of the digest where it changes anything.
        columns: Which columns are read, likewise.

    Raises:
        DataError: As for :func:`read_files`.
    """
    digest = hashlib.sha256()
    if is_embedded(path):
        for turn in embedded_examples(path, "dialogue"):
            digest.update(json.dumps([turn.utterance, turn.parse, turn.unit, turn.label]).encode())
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
    if is_on_hub(path):
        return path
    with _plain_errors(Path(path)):
        return tuple(_state(file) for file in data_files(path))


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


def is_embedded(path: str) -> bool:
    """Return whether a path names the embedded grammar rather than a file."""
    return path.startswith("embedded:")


def embedded_examples(path: str, unit: Unit) -> list[Example]:
    """Return the turns of the embedded grammar for a path such as ``embedded:train?num=4000&seed=1&skew=1.0``.

    Raises:
        DataError: An argument is unknown or out of range, or the unit is a user, of whom the grammar has none.
    """
    arguments: dict[str, Any] = {}
    for name, value in parse_qsl(urlsplit(path).query, keep_blank_values=True):
        try:
            arguments[name] = _EMBEDDED_ARGUMENTS[name](value)
        except KeyError:
            known = ", ".join(_EMBEDDED_ARGUMENTS)
            raise DataError(f"unknown argument {name!r}; known are {known}", about=path) from None
        except ValueError:
            raise DataError(f"{name}={value!r} is not a number", about=path) from None
    if unit == "user":
        raise DataError("the embedded grammar has no users: train with unit=dialogue or unit=utterance", about=path)
    if arguments.setdefault("num", 4000) < 1:
        raise DataError(f"num is {arguments['num']}; it must be at least 1", about=path)
    if arguments.setdefault("skew", 1.0) < 0:
        raise DataError(f"skew is {arguments['skew']}; it must not be negative", about=path)
    turns = generate(arguments["num"], seed=arguments.get("seed", 1), skew=arguments["skew"])
    return [
        Example(t.utterance, t.parse, t.unit if unit == "dialogue" else str(i), t.domain, path)
        for i, t in enumerate(turns)
    ]


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
