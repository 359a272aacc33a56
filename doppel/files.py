"""Whole files that are there or not, readable by their owner alone; and files of JSON lines."""

from __future__ import annotations

import gzip
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from doppel.errors import DataError


@contextmanager
def whole_file(path: str | Path, remedy: str = "give another path, or free some space there") -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of ``path`` when the block ends, and not before.

    The content is on disk (fsync) before the name changes, and the mode is 0600. A block that raises leaves what was
    there. Of several processes that write one path, the last one wins, with a whole file.

    Args:
        path: The file; its folder is made if need be.
        remedy: What the user can do if the file cannot be written.

    Raises:
        DataError: The file cannot be written: the folder is missing and cannot be made, is read-only or is full.
    """
    path, is_of_another = Path(path), False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                try:
                    yield file
                except OSError as error:
                    is_of_another = error.filename is not None  # writing to an open file names none
                    raise
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        if is_of_another:
            raise
        raise DataError(f"{path} cannot be written ({error.strerror or error}): {remedy}") from None


def write_text(path: str | Path, text: str) -> None:
    """Write a text in UTF-8, see :func:`whole_file`."""
    with whole_file(path) as file:
        file.write(text.encode())


def write_json(path: str | Path, value: object) -> None:
    """Write one indented JSON value, see :func:`whole_file`.

    Raises:
        ValueError: The value holds NaN or an infinity, which JSON cannot say.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_json_lines(path: str | Path, records: Iterable[object]) -> None:
    """Write one JSON value a line, see :func:`whole_file`."""
    with whole_file(path) as file:
        file.writelines(f"{json.dumps(record, ensure_ascii=False)}\n".encode() for record in records)


def append_json_line(path: Path, record: object) -> None:
    """Append one JSON value to a file that its owner alone may read; it is on disk (fsync) when this returns."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
        file.write(f"{json.dumps(record, ensure_ascii=False)}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def cut_torn_line(path: Path) -> None:
    """Cut off a last line without its end, which a crash tore from a file that is appended to."""
    content = path.read_bytes()
    whole, newline, torn = content.rpartition(b"\n")
    if torn:
        os.truncate(path, len(whole) + len(newline))


def read_json_lines(path: str | Path, content: bytes | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of a file of JSON lines, with the number of their line from 1; blank lines are skipped.

    Args:
        path: A file in UTF-8, plain, compressed as ``.gz``, or a ``.zip`` that holds exactly one ``.jsonl``.
        content: Its bytes, if they are at hand: then no file is opened.

    Raises:
        DataError: The file, or a line of it, cannot be read; the message names both and never quotes the content.
    """
    for number, line in read_lines(path, content=content):
        if not line.isspace():
            yield number, _parse(line, f"{path}:{number}")


def read_lines(path: str | Path, kind: str = ".jsonl", content: bytes | None = None) -> Iterator[tuple[int, bytes]]:
    """Read the lines of a file as bytes, ends of lines included, with their numbers from 1.

    Args:
        path: A file, plain, compressed as ``.gz``, or a ``.zip``.
        kind: What a ``.zip`` must hold exactly one file of: the end of its name.
        content: As for :func:`read_json_lines`.

    Raises:
        DataError: The file cannot be read; the message says where it ends.
    """
    with _open(Path(path), kind, content) as lines:
        number = 0
        while True:
            number += 1
            try:
                line = lines.readline()
            except (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error):
                raise DataError(
                    "the compressed file is damaged here: fetch it again", about=f"{path}:{number}"
                ) from None
            if not line:
                return
            yield number, line


def as_text(line: bytes, where: str) -> str:
    """Bytes as UTF-8.

    Raises:
        DataError: They are in another encoding.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start + 1} is not UTF-8: convert the file to UTF-8", about=where) from None


@contextmanager
def _open(path: Path, kind: str, content: bytes | None) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file for reading lines of bytes, decompressed by its suffix."""
    source = path if content is None else io.BytesIO(content)
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(source) as archive:
                members = [n for n in archive.namelist() if n.endswith(kind) and not n.startswith("__MACOSX")]
                if len(members) != 1:
                    raise DataError(f"{path} holds {len(members)} {kind} files: it must hold exactly one")
                with archive.open(members[0]) as member:
                    yield member
        elif path.suffix == ".gz":
            with gzip.open(source, "rb") as lines:
                yield lines
        else:
            with path.open("rb") if content is None else io.BytesIO(content) as lines:
                yield lines
    except zipfile.BadZipFile:
        raise DataError(f"{path} is no readable zip file: fetch it again") from None
    except PermissionError:
        raise DataError(f"{path} may not be read by this user: change its permissions or its owner") from None
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"no file {path}: correct the path, or run first what writes it") from None


def _parse(line: bytes, where: str) -> dict[str, Any]:
    text = as_text(line, where)
    try:
        record = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise DataError(
            f"broken JSON at column {error.colno} ({error.msg}): each line must be one JSON object", about=where
        ) from None
    except RecursionError:
        raise DataError("JSON nested too deeply: each line must be one flat record or dialogue", about=where) from None
    if not isinstance(record, dict):
        raise DataError(
            f"a JSON {type(record).__name__}, not an object: each line must be one JSON object", about=where
        )
    return record
