"""Whole files that are there or not, readable by their owner alone; and the one reader of text: lines, JSON, YAML."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml

from doppel.compressed import DAMAGED, open_data, refuse_other
from doppel.errors import DataError

#: YAML whose values are all texts, as they are written: ``no``, ``01234``, ``1.10`` and ``9:30`` too.
_TextLoader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
#: Half of a surrogate pair, or a whole one, as JSON escapes it.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


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


def to_disk(path: Path) -> None:
    """Wait until a file, or what a folder calls its files, is on disk (fsync): a power cut leaves it whole."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        path: A file, plain or compressed (:func:`~doppel.compressed.open_data`).
        content: Its bytes, if they are at hand: then no file is opened.

    Raises:
        DataError: The file, or a line of it, cannot be read; the message names both and never quotes the content.
    """
    return json_objects(path, read_lines(path, content=content))


def json_objects(path: str | Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read numbered lines of a file as JSON objects; as for :func:`read_json_lines`."""
    for number, line in lines:
        if not line.isspace():
            record = parse_json(line.rstrip("\r\n"), path, number, "each line must be one JSON object")
            if not isinstance(record, dict):
                what = f"{kind_of(record)}, not an object: each line must be one JSON object"
                raise DataError(what, about=f"{path}:{number}")
            yield number, record


def read_lines(path: str | Path, kind: str = ".jsonl", content: bytes | None = None) -> Iterator[tuple[int, str]]:
    """Read the lines of a text file, as :func:`text_lines` does.

    Args:
        path: A file, plain or compressed (:func:`~doppel.compressed.open_data`).
        kind: The end of a name, for archives.
        content: As for :func:`read_json_lines`.

    Raises:
        DataError: The file cannot be read; the message says in which line.
    """
    with open_data(path, kind, content) as (_, stream):
        yield from text_lines(path, stream)


def text_lines(path: str | Path, stream: io.BufferedReader) -> Iterator[tuple[int, str]]:
    """Read the lines of a text, their ends included, with their numbers from 1.

    A line ends with LF, CR LF or CR. The text is in UTF-8, or in UTF-16 or UTF-32 as spreadsheets write it, with or
    without a byte order mark at its start, which is left out.

    Args:
        path: Its file, for errors.
        stream: Its bytes, decompressed.

    Raises:
        DataError: It cannot be read; the message says in which line.
    """
    number = 1
    try:
        encoding = json.detect_encoding(stream.peek(4)[:4]).removesuffix("-sig")
        # What does not fit becomes half of a surrogate pair, which no text holds: so its line is known.
        errors = "surrogateescape" if encoding == "utf-8" else "surrogatepass"
        for line in io.TextIOWrapper(stream, encoding, errors, newline=""):
            if not line.isascii():
                line.encode()
            yield number, line.removeprefix("\ufeff") if number == 1 else line  # later it is the text's own
            number += 1
    except UnicodeError as error:
        place = f"character {error.start + 1}" if isinstance(error, UnicodeEncodeError) else "a character"
        raise DataError(
            f"{place} is not in UTF-8: save the file in UTF-8 (of a spreadsheet as “CSV UTF-8”)",
            about=f"{path}:{number}",
        ) from None
    except DAMAGED as error:
        refuse_other(error)
        raise DataError("the compressed file is damaged here: fetch it again", about=f"{path}:{number}") from None


def read_text(path: str | Path) -> str:
    """Read a whole text; as for :func:`read_lines`."""
    return "".join(line for _, line in read_lines(path))


def read_list(path: str | Path) -> list[str]:
    """Read the lines of a text without blanks around them, but for empty ones."""
    return [text for _, line in read_lines(path, ".txt") if (text := line.strip())]


def whole_content(path: str | Path, stream: io.BufferedReader) -> bytes:
    """Read all bytes of a file that is no text; as for :func:`text_lines`."""
    try:
        return stream.read()
    except DAMAGED as error:
        refuse_other(error)
        raise DataError("the compressed file is damaged: fetch it again", about=path) from None


def read_yaml(path: str | Path, parse: Callable[[str], Any] | None = None) -> Any:
    """Read a YAML file.

    Args:
        path: The file.
        parse: Reads the text; None: all values are texts, as they are written.

    Raises:
        DataError: It cannot be read, or is no YAML; the message names the line.
    """
    text = read_text(path)
    try:
        return parse_yaml(text) if parse is None else parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        why = getattr(error, "problem", None) or " ".join(str(error).split())
        raise DataError(f"is no YAML ({why})", about=f"{path}{line}") from None


def mapping_of(content: Any, path: str | Path) -> dict[str, Any]:
    """Return what a file holds, if that is keys with values.

    Raises:
        DataError: It is something else, or empty.
    """
    if not isinstance(content, dict):
        what = "is empty" if content is None else f"holds {kind_of(content)}"
        raise DataError(f"{path} {what}, where keys with values are read: put back a copy, or write it again")
    return content


def parse_yaml(text: str, loader: Any = _TextLoader, prepare: Callable[[Any], None] | None = None) -> Any:
    """Parse a text as YAML in which no mapping says a key twice, of which the first would be dropped without a word.

    Args:
        text: The text.
        loader: Class that makes values of it.
        prepare: Called with the node of the whole text before.

    Raises:
        yaml.YAMLError: It is no YAML, or says a key twice.
    """
    loading = loader(text)
    try:
        node = loading.get_single_node()
        if node is None:
            return None
        _refuse_twice(node)
        if prepare is not None:
            prepare(node)
        return loading.construct_document(node)
    finally:
        loading.dispose()


def _refuse_twice(node: yaml.Node) -> None:
    seen = set()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
            why = f"the key {key.value!r} stands here a second time: keep one of the two"
            raise yaml.MarkedYAMLError(problem=why, problem_mark=key.start_mark)
        seen |= {key.value} if isinstance(key, yaml.ScalarNode) else set()
        _refuse_twice(value)
    for child in node.value if isinstance(node, yaml.SequenceNode) else ():
        _refuse_twice(child)


def parse_json(text: str, path: str | Path, number: int, form: str) -> Any:
    """Read a JSON value.

    Args:
        text: The value.
        path: Its file, for errors.
        number: The line that it begins in.
        form: What the file must be, in words.

    Raises:
        DataError: It is none, or a text in it ends within a character; the message never quotes the content.
    """
    where = f"{path}:{number}"
    try:
        value = json.loads(text)
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        about = f"{path}:{number + error.lineno - 1}"
        raise DataError(f"broken JSON at column {error.colno} ({error.msg}): {form}", about=about) from None
    except RecursionError:
        raise DataError(f"JSON nested too deeply: {form}", about=where) from None
    except UnicodeEncodeError:
        raise DataError("half of a character, such as \\ud83d: write it whole, or leave it out", about=where) from None
    return value


def kind_of(value: object) -> str:
    """Describe a JSON value for errors, which never quote it."""
    known = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    known |= {int: "a whole number", float: "a decimal number"}
    return known.get(type(value), f"a {type(value).__name__}")


def is_same_file(out: Path | str | None, read: Path | str | None) -> bool:
    """Return whether both name one file that is there."""
    try:
        return out is not None and read is not None and Path(out).is_file() and os.path.samefile(out, read)
    except (OSError, ValueError):  # a text that names no file
        return False


def refuse_existing(path: Path, option: str = "--out") -> None:
    """Refuse to write over a file that somebody may have worked on, or that took long.

    Raises:
        DataError: It is there.
    """
    if path.exists():
        raise DataError(f"it is there already, and would be overwritten: give another {option}", about=path)


def try_folder(folder: Path) -> None:
    """Make a folder, and find out whether it can be written to, before anything is spent.

    Raises:
        DataError: It cannot.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(f"cannot be written to ({error.strerror or error}): give another --out", about=folder) from None
