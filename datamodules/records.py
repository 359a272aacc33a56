"""Files of every known form as records: where each stands, and what it holds by the names of its columns."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from datamodules.hub import hub_files, is_on_hub
from doppel.errors import DataError
from doppel.files import as_text, read_json_lines, read_lines
from doppel.thingtalk import is_program

#: Columns of the published files of Schema2QA, which do not name them.
_SCHEMA2QA = ("id", "utterance", "parse", "domain", "typed_template", "template")
#: A place such as ``reviews.csv:7``, and what stands there by column.
Record = tuple[str, dict[str, Any]]


class _BadRowError(DataError):
    """A row of a table that does not keep its form; the rows after it can still be read."""


def read_records(path: str, on_bad_row: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Read a file row by row, in order.

    ==============================  ====================================================================================
    ``.jsonl``, ``.ndjson``         one JSON object a line; also any name without a known ending
    ``.json``                       a JSON list of objects or of texts; or JSON lines
    ``.csv``, ``.tsv``              first line: the columns. Commas, semicolons where the first line has no comma, or
                                    tabs. An empty cell is null. The published files of Schema2QA have no such line
    ``.txt``                        one text a line, as the column ``text``; blank lines are passed over
    ``.parquet``                    rows by column
    a folder                        a data set of Hugging Face's ``save_to_disk``, or Parquet files of one name
    ``hf:NAME?split=train``         Parquet files of the Hugging Face hub, read into memory alone
                                    (:mod:`datamodules.hub`)
    ==============================  ====================================================================================

    Text is in UTF-8, with or without a byte order mark; files may be compressed as ``.gz``, or as ``.zip`` of one file.
    Nothing is written anywhere: there is no cache of the text.

    Args:
        path: The file.
        on_bad_row: Called with what would be raised for a row of a text table (``.csv``, ``.tsv``) whose cells are too
            few, too many or badly quoted, and the row is passed over; None raises.

    Raises:
        DataError: The file, or a row of it, cannot be read; the message names the line (the row of a table that has no
            lines) and never quotes the content.
    """
    if is_on_hub(path):
        for name, content in hub_files(path):
            yield from _parquet(content, name)
    elif Path(path).is_dir():
        for file in data_files(path):
            read = _arrow if file.suffix == ".arrow" else _parquet
            yield from read(file.read_bytes(), str(file))
    elif (form := _FORMS.get(kind(path), _json_lines)) is _table:
        yield from _table(path, on_bad_row)
    else:
        yield from form(path)


def kind(path: str) -> str:
    """The end of a file's name that tells its form, without that of its compression: ``.csv`` of ``a.csv.gz``."""
    name = Path(path)
    return (Path(name.stem) if name.suffix in (".gz", ".zip") else name).suffix.lower()


def data_files(path: str) -> list[Path]:
    """The files of a path that hold rows, in order; the file itself, if it is one.

    Raises:
        DataError: It is a folder, but no data set, or several.
    """
    folder = Path(path)
    if not folder.is_dir():
        return [folder]
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = json.loads(splits.read_text(encoding="utf-8"))["splits"]
        raise DataError(f"{path} holds the splits {', '.join(names)}: name the folder of one, {folder / names[0]}")
    state = folder / "state.json"
    if state.is_file():
        files = json.loads(state.read_text(encoding="utf-8"))["_data_files"]
        return [folder / file["filename"] for file in files]
    found = sorted(folder.glob("*.parquet"))
    names = sorted({file.stem.rpartition("-of-")[0].rpartition("-")[0] or file.stem for file in found})
    if len(names) == 1:
        return found
    what = f"Parquet files of {len(names)} names ({', '.join(names)})" if names else "no data set that is known"
    raise DataError(f"{path} is a folder with {what}: name one file, or a folder of Hugging Face's save_to_disk")


def _json_lines(path: str) -> Iterator[Record]:
    if kind(path) not in ("", ".jsonl", ".ndjson", ".json"):
        _refuse_other_forms(path)
    for number, record in read_json_lines(path):
        yield f"{path}:{number}", record


def _refuse_other_forms(path: str) -> None:
    known = {".xlsx": "save the sheet as .csv", ".xls": "save the sheet as .csv", ".arrow": "name its folder"}
    if kind(path) in known:
        raise DataError(f"{path} is in a form that is not read: {known[kind(path)]}")


def _json(path: str) -> Iterator[Record]:
    """A list, or lines."""
    lines = [line for _, line in read_lines(path, ".json")]
    if not b"".join(lines[:20]).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        yield from _json_lines(path)
        return
    text = "".join(as_text(line, f"{path}:{number}") for number, line in enumerate(lines, 1))
    try:
        entries = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: broken JSON at column {error.colno} ({error.msg}): the file must be one list, or "
            "one object a line"
        ) from None
    except RecursionError:
        raise DataError(f"{path}: JSON nested too deeply: give a list of flat records") from None
    for number, entry in enumerate(entries, 1):
        where = f"{path}, entry {number}"
        if not isinstance(entry, dict | str):
            raise DataError(f"{where}: a JSON {type(entry).__name__}: every entry must be an object, or a text")
        yield where, {"text": entry} if isinstance(entry, str) else entry


def _text(path: str) -> Iterator[Record]:
    for number, line in read_lines(path, ".txt"):
        where = f"{path}:{number}"
        text = as_text(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, where).rstrip("\r\n")
        if text.strip():
            yield where, {"text": text}


def _table(path: str, on_bad_row: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Rows of a table of text; each stands where it begins, for a quoted cell may hold ends of lines."""
    lines = (as_text(line, f"{path}:{number}") for number, line in read_lines(path, kind(path)))
    first = next(lines, "").removeprefix("\ufeff")
    delimiter = "\t" if kind(path) == ".tsv" else ";" if ";" in first and "," not in first else ","
    reader = csv.reader(_chain(first, lines), delimiter=delimiter, strict=True)
    header = _row(reader, path, 1) or []
    names = [name.strip() for name in header]
    is_row = delimiter == "\t" and 3 <= len(header) <= len(_SCHEMA2QA) and is_program(header[2])
    if is_row:
        names = list(_SCHEMA2QA[: len(header)])
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        places = [str(place) for place, name in enumerate(names, 1) if name == twice[0]]
        raise DataError(f"{path}:1: columns {' and '.join(places)} have one name: give every column its own")
    while True:
        start = 1 if is_row else reader.line_num + 1
        try:
            row = header if is_row else _row(reader, path, start)
            is_row = False
            if row is None:
                return
            if row and len(row) != len(names):
                raise _BadRowError(
                    f"{path}:{start}: {len(row)} cells in this row, {len(names)} in the first line, which names the "
                    "columns: put cells with separators in quotes (or give one utterance a line as .txt)"
                )
        except _BadRowError as error:
            if on_bad_row is None:
                raise
            on_bad_row(str(error))
            continue
        if row:
            yield f"{path}:{start}", {name: cell or None for name, cell in zip(names, row, strict=True)}


def _chain(first: str, lines: Iterable[str]) -> Iterator[str]:
    yield first
    yield from lines


def _row(reader: Any, path: str, start: int) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:  # its text never quotes a cell
        ends = f"; it ends in line {reader.line_num}" if reader.line_num > start else ""
        raise _BadRowError(
            f"{path}:{start}: the row that begins here is broken ({error}{ends}): a cell in quotes ends with a quote, "
            "and a quote inside it is written twice"
        ) from None


def _parquet_file(path: str) -> Iterator[Record]:
    return _parquet(b"".join(line for _, line in read_lines(path, ".parquet")), path)


def _parquet(content: bytes, path: str) -> Iterator[Record]:
    arrow = _pyarrow(path)
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        yield from _rows(file.schema_arrow, file.iter_batches(), path)
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(path, "Parquet", error) from None


def _arrow(content: bytes, path: str) -> Iterator[Record]:
    arrow = _pyarrow(path)
    try:
        stream = arrow.ipc.open_stream(content)
        yield from _rows(stream.schema, stream, path)
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(path, "Arrow", error) from None


def _rows(schema: Any, batches: Iterable[Any], path: str) -> Iterator[Record]:
    """Rows of Arrow tables; the classes of a Hugging Face data set by their names."""
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise DataError(f"{path}: two columns are called {twice[0]!r}: give every column a name of its own")
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features") or {}
    classes = {name: f["names"] for name, f in described.items() if isinstance(f, dict) and f.get("names")}
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            for name, known in classes.items():
                value = row.get(name)
                row[name] = known[value] if isinstance(value, int) and 0 <= value < len(known) else None
            yield f"{path}, row {number}", row


def _pyarrow(path: str) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise DataError(
            f"{path} is read by pyarrow, which is not installed: pip install --constraint constraints.txt pyarrow, or "
            "give .csv or .jsonl"
        ) from None
    return pyarrow


def _unreadable(path: str, form: str, error: Exception) -> DataError:
    return DataError(f"{path} is no readable {form} file ({type(error).__name__}): write it again, or give another")


_FORMS: dict[str, Callable[[str], Iterator[Record]]] = {
    ".json": _json,
    ".csv": _table,
    ".tsv": _table,
    ".txt": _text,
    ".parquet": _parquet_file,
}
