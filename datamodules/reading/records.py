"""The rows of a file of any known form, one by one."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from datamodules.reading.files import Files, open_files
from doppel.compressed import ending, open_data
from doppel.errors import DataError
from doppel.files import json_objects, kind_of, parse_json, text_lines, whole_content

#: A place such as ``reviews.csv:7``, and what stands there by column.
Record = tuple[str, dict[str, Any]]
#: Lines of a text with their numbers.
_Lines = Iterator[tuple[int, str]]
#: Forms that are known and not read, and what to do about them.
_NOT_READ = {".xlsx": "save the sheet as .csv", ".xls": "save the sheet as .csv", ".arrow": "name its folder"}
#: How a file begins that holds no rows, and what to do about it.
_NO_ROWS = {
    rb"version https://git-lfs\.github\.com/": "is a pointer of Git LFS, not the file: `git lfs pull` fetches that",
    rb"\s*(<!doctype html|<html[\s>])": "is a web page, as a server sends in place of a file: fetch the file again",
    rb".{257}ustar": "is a tar archive: unpack it, and name one file",
    rb"\xd0\xcf\x11\xe0": "is a spreadsheet of an old form: save the sheet as .csv (“CSV UTF-8”)",
    rb"ARROW1": "is in Arrow's form: name the folder that save_to_disk made, or write .parquet",
    rb"SQLite format 3": "is a data base of SQLite: write the table as .csv",
    rb"%PDF-": "is a PDF: give its text as .txt or .csv",
}
#: What a spreadsheet writes ahead of the names, where its separator is not the usual one.
_SEPARATOR = re.compile(r'"?sep=([^\w"])"?\s*')
csv.field_size_limit(2**31 - 1)  # a cell may hold a whole story


class _BadRowError(DataError):
    """A row of a table that does not keep its form; the rows after it can still be read."""


def read_records(path: str, on_bad_row: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Read a file row by row, in order.

    JSON lines, one object a line; ``.json``: a list of objects or texts, or JSON lines; ``.csv``, ``.tsv``: columns in
    the first line, separated as it shows, with empty cells as None; ``.txt``: one text a line as the column ``text``,
    without blank lines; Parquet: by column; a folder: a data set of Hugging Face's ``save_to_disk`` or Parquet files;
    ``hf:OWNER/NAME?split=train``: Parquet files of the hub, read into memory (:mod:`datamodules.reading.hub`). Any may
    be compressed (:func:`~doppel.compressed.open_data`). What a file is decides, not its name: its first bytes tell a
    compression, Parquet and JSON lines, and what is no data; the name tells a table from lines of text. Each file is
    opened once, and nothing is written anywhere.

    Args:
        path: The file.
        on_bad_row: Called with what would be raised for a row of a text table (``.csv``, ``.tsv``) whose cells are too
            few, too many or badly quoted, and the row is passed over; None raises.

    Raises:
        DataError: The file, or a row of it, cannot be read; the message names the line (the row of a table that has no
            lines) and never quotes the content.
    """
    return records_of(open_files(path), on_bad_row)


def records_of(files: Files, on_bad_row: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Read the rows of files that have been looked at; as for :func:`read_records`."""
    for file, content in files.contents:
        with open_data(file, content=content) as (name, stream):
            form = ".arrow" if files.is_folder and ending(file) == ".arrow" else _form(file, name, stream.peek())
            if form in (".parquet", ".arrow"):
                yield from (_parquet if form == ".parquet" else _arrow)(name, stream)
                continue
            lines = text_lines(name, stream)
            first = list(islice(lines, 1))
            if form in (".csv", ".tsv", ".txt") and any(_is_object(line) for _, line in first):
                form = ".jsonl"
            read: Callable[[str, _Lines], Iterator[Record]] = _FORMS.get(form, _json)
            if form in (".csv", ".tsv"):
                read = partial(_table, on_bad_row=on_bad_row)
            yield from read(name, chain(first, lines))


def _form(path: str, name: str, head: bytes) -> str:
    """The form of a file, as an ending, by its first bytes and its name within its compression.

    Raises:
        DataError: It is known, and no file of rows.
    """
    if head.startswith(b"PAR1"):
        return ".parquet"
    for sign, told in _NO_ROWS.items():
        if re.match(sign, head, re.I | re.S):
            raise DataError(f"{path} {told}")
    form = ending(name)
    if form in _NOT_READ:
        raise DataError(f"{path} is in a form that is not read: {_NOT_READ[form]}")
    return form


def _is_object(line: str) -> bool:
    """Whether a line is a whole JSON object, which no header of a table is."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def head_of(where: str) -> str:
    """Return the line that names the columns of a row: the first one of a table of text, else its own."""
    path, _, line = where.rpartition(":")
    return f"{path}:1" if line.isdigit() and ending(path) in (".csv", ".tsv") else where


def _json_lines(path: str, lines: _Lines) -> Iterator[Record]:
    for number, record in json_objects(path, lines):
        yield f"{path}:{number}", record


def _json(path: str, lines: _Lines) -> Iterator[Record]:
    """A list, or lines."""
    said = ((number, line) for number, line in lines if line.strip())
    number, first = next(said, (1, ""))
    if not first.lstrip().startswith("["):
        yield from _json_lines(path, chain([(number, first)] if first else [], said))
        return
    text = first + "".join(line for _, line in lines)
    form = "the file must be one list, or one object a line"
    for place, entry in enumerate(parse_json(text, path, number, form), 1):
        where = f"{path}, entry {place}"
        if not isinstance(entry, dict | str):
            raise DataError(f"{kind_of(entry)}: every entry must be an object, or a text", about=where)
        yield where, {"text": entry} if isinstance(entry, str) else entry


def _text_lines(path: str, lines: _Lines) -> Iterator[Record]:
    for number, line in lines:
        if line.strip():
            yield f"{path}:{number}", {"text": line.rstrip("\r\n")}


def _table(path: str, numbered: _Lines, on_bad_row: Callable[[str], None] | None) -> Iterator[Record]:
    """Rows of a table of text; each stands where it begins, for a quoted cell may hold ends of lines.

    Columns without a name are passed over. Behind the last one with a name their cells must be empty, as those are that
    a spreadsheet adds; a row may lack them. A first line ``sep=;``, as a spreadsheet writes it, names the separator.
    """
    lines = (line for _, line in numbered)
    first = next(lines, "")
    said = _SEPARATOR.fullmatch(first)
    before = 0 if said is None else 1  # lines ahead of that which names the columns
    first = first if said is None else next(lines, "")
    delimiter = _delimiter(first, "\t" if ending(path) == ".tsv" else ",") if said is None else said[1]
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    header = _row(reader, path, before + 1) or []
    names = [name.strip() for name in header]
    while names and not names[-1]:
        names.pop()
    _refuse_twice(names, f"{path}:{before + 1}")
    while True:
        start = before + reader.line_num + 1
        try:
            row = _row(reader, path, start)
            if row is None:
                return
            if row and (not len(names) <= len(row) <= len(header) or any(map(str.strip, row[len(names) :]))):
                raise _BadRowError(
                    f"{len(row)} cells in this row, {len(names)} in the first line, which names the "
                    "columns: put cells with separators in quotes (or give one utterance a line as .txt)",
                    about=f"{path}:{start}",
                )
        except _BadRowError as error:
            if on_bad_row is None:
                raise
            on_bad_row(str(error))
            continue
        if any(row):
            yield f"{path}:{start}", {name: cell or None for name, cell in zip(names, row, strict=False) if name}


def _refuse_twice(names: Sequence[str], about: str) -> None:
    """Refuse columns of one name; the name, which may be somebody's cell, is not quoted."""
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice is not None:
        places = [str(place) for place, name in enumerate(names, 1) if name == twice]
        raise DataError(f"columns {' and '.join(places)} have one name: give every column its own", about=about)


def _delimiter(first: str, usual: str) -> str:
    """What stands between the cells of a first line: the usual sign, or another one where that splits nothing."""

    def num_cells(sign: str) -> int:
        try:
            cells = next(csv.reader([first], delimiter=sign, strict=True), [])
        except csv.Error:  # what is read then says so
            return 0
        return 0 if any('"' in cell for cell in cells) else len(cells)

    return usual if num_cells(usual) > 1 else max((usual, ";", "\t", ",", "|"), key=num_cells)


def _row(reader: Any, path: str, start: int) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error as error:  # its text never quotes a cell
        ends = f"; it ends in line {reader.line_num}" if reader.line_num > start else ""
        raise _BadRowError(
            f"the row that begins here is broken ({error}{ends}): a cell in quotes ends with a quote, "
            "and a quote inside it is written twice",
            about=f"{path}:{start}",
        ) from None


def _parquet(path: str, stream: io.BufferedReader) -> Iterator[Record]:
    arrow = _pyarrow(path)
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(whole_content(path, stream)))
        yield from _rows(file.schema_arrow, file.iter_batches(), path)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, "Parquet", error) from None


def _arrow(path: str, stream: io.BufferedReader) -> Iterator[Record]:
    arrow = _pyarrow(path)
    try:
        batches = arrow.ipc.open_stream(stream)
        yield from _rows(batches.schema, batches, path)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, "Arrow", error) from None


def _rows(schema: Any, batches: Iterable[Any], path: str) -> Iterator[Record]:
    """Rows of Arrow tables; the classes of a Hugging Face data set by their names."""
    _refuse_twice(schema.names, path)
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features") or {}
    classes = {name: f["names"] for name, f in described.items() if isinstance(f, dict) and f.get("names")}
    written: dict[str, Any] = {"halffloat": np.float16, "float": np.float32, "decimal128": str, "decimal256": str}
    types = {field.name: str(field.type).partition("(")[0] for field in schema}
    narrow = {name: written[kind] for name, kind in types.items() if kind in written}
    number = 0
    for batch in batches:
        for row in _values(batch):
            number += 1
            for name, known in classes.items():
                value = row.get(name)
                row[name] = known[value] if isinstance(value, int) and 0 <= value < len(known) else None
            for name, number_of in narrow.items():  # 4.3 is 4.3, not 4.300000190734863
                row[name] = None if row[name] is None else float(str(number_of(row[name])))
            yield f"{path}, row {number}", row


class UnreadTime:
    """A date or time whose year or zone Python does not know. Most are in columns that nobody reads; whoever does
    refuses it, for it is no text and no number."""

    def __str__(self) -> str:
        return "a time that cannot be read"


def _values(batch: Any) -> list[dict[str, Any]]:
    """Rows of a batch; a value that holds a time which Python cannot say is an :class:`UnreadTime`."""
    import pyarrow as arrow

    failing = (arrow.ArrowException, ValueError, OverflowError)

    def value(cell: Any) -> Any:
        try:
            return cell.as_py()
        except failing:
            return UnreadTime()

    try:
        return list(batch.to_pylist())
    except failing:
        columns = [[value(cell) for cell in column] for column in batch.columns]
        return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


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


_FORMS: dict[str, Callable[[str, _Lines], Iterator[Record]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".txt": _text_lines,
}
