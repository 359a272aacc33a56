"""A table whose attributes public models have read in its texts, each row by itself."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm import tqdm

from commands.lightning.trained_model import value_chooser
from commands.run_folder.ownership import hold
from commands.run_folder.private_files import learnt_from
from datamodules.guards.overlap import refuse_private
from datamodules.guards.redaction import NO_COUNT
from datamodules.reading.attribute_codes import AttributeCodes
from datamodules.reading.columns import Columns
from datamodules.reading.embedded import is_embedded
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest, expand_path
from datamodules.reading.records import head_of, read_records
from doppel.errors import DataError, UserError
from doppel.files import (
    append_json_line,
    cut_torn_line,
    kind_of,
    read_json_lines,
    refuse_existing,
    try_folder,
    write_json_lines,
)
from doppel.tables.schema import OTHER, Column, Schema


def fill(
    table: str,
    *,
    schema: Path,
    out: Path,
    parser: Path | None = None,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Fill columns of a table with what public models read in its texts.

    A column of the schema that is `{made: model, by: FOLDER, values: […]}` gets, in each row, the value that the causal
    language model in the folder finds likeliest after a fixed prompt. With --parser a row without a tree gets the
    parser's, from which functions and numbers of calls are made. Filled cells stay. `metadata`, and `run` with
    attributes.schema, take the file that is written, which is as private as the table. Each row goes through public
    models alone, so a neighbour of the table becomes a neighbour of the filled one, and ε is what it would be if people
    had filled the columns; a model that learnt from these rows without privacy would carry them into others. Given
    again, the command goes on where it was interrupted.

    Example:
        python cli.py fill private.csv --schema values.yaml --out filled.jsonl

    Args:
        table: The private table, or dialogues.
        schema: YAML file with the public values of each column.
        out: File to write, JSON lines.
        parser: Checkpoint of a public semantic parser.
        columns: What the columns are called.

    Raises:
        UserError: A file, a model or the schema cannot be used, or the parser has read the table.
    """
    if out.suffix != ".jsonl":
        raise UserError("rows are written as JSON lines: give a name that ends in .jsonl", about=f"--out {out}")
    refuse_existing(out)
    known = Schema.read(schema)
    AttributeCodes(known, schema)  # what a prompt could not say is found out before the long work
    if not known.filled and parser is None:
        raise UserError(
            "no column of it is filled by a model: give one {made: model, by: FOLDER, values: […]}, or --parser for "
            "trees",
            about=schema,
        )
    path = expand_path(table)
    refuse_private(learnt_from("--parser", parser), [(path, columns)])
    terms = {
        "table": content_digest(path),
        "columns": [[c.name, str(c.by), c.ask, c.values] for c in known.filled],
        "named": columns.key,
        "parser": None if parser is None else content_digest(str(parser)),
    }
    rows = list(_rows(path, columns))
    for where, row in rows:
        _text_of(row, where, columns)
    head = {"fills": hashlib.sha256(json.dumps(terms).encode()).hexdigest()}
    try_folder(out.parent)
    part = out.with_name(f"{out.name}.part")
    lock = hold(out.parent, out.name)  # a second command would mix its rows with these
    try:
        refuse_existing(out)
        models = {by: value_chooser(by) for by in dict.fromkeys(str(c.by) for c in known.filled)}
        parse = None if parser is None else _parse_alone(parser)
        num_done = _begin(part, head)
        left = rows[num_done:]
        for where, row in tqdm(left, "filled", len(rows), initial=num_done, bar_format=NO_COUNT, disable=None):
            append_json_line(part, _plain(_filled(row, where, columns, known.filled, models, parse)))
        write_json_lines(out, (row for number, row in read_json_lines(part) if number > 1))
        part.unlink()
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
    names = [column.name for column in known.filled] + ([] if parser is None else ["trees"])
    print(f"{out}: filled {', '.join(names)}; as private as {table}")


def _begin(part: Path, head: dict[str, Any]) -> int:
    """Rows that an interrupted command has filled.

    Raises:
        UserError: They are of another table, schema or parser.
    """
    found = []
    if part.exists():
        cut_torn_line(part)
        found = [line for _, line in read_json_lines(part)]
    if len(found) < 2:  # no row
        part.unlink(missing_ok=True)
        append_json_line(part, head)
        return 0
    if found[0] != head:
        raise UserError(
            "it was begun with another table, schema or parser: delete it to begin anew, or give another --out",
            about=part,
        )
    return len(found) - 1


def _rows(path: str, columns: Columns) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a table with their places; turns of dialogues are rows."""
    records = iter([] if is_embedded(path) else read_records(path))
    first = next(records, None)
    if first is not None and not columns.is_dialogue(first[1]):
        yield from chain([first], records)
        return
    for turn in read_examples(path, "dialogue", unit_names="exact"):  # which are written as they are
        yield path, {"text": turn.utterance, "parse": turn.parse, "label": turn.label, "unit": turn.unit}


def _filled(
    row: dict[str, Any],
    where: str,
    columns: Columns,
    wanted: list[Column],
    models: dict[str, Any],
    parse: Callable[[str], str] | None,
) -> dict[str, Any]:
    """A row with its values: a function of this row, of public weights and of the schema."""
    text, made = _text_of(row, where, columns), {}
    for column in wanted:
        if row.get(str(column.source)) in (None, ""):
            values = [value for value in column.values if value != OTHER]
            made[str(column.source)] = models[str(column.by)].likeliest(text, values, column.ask) or OTHER
    (tree,) = columns.of("parse", row) or ["parse"]
    if parse is not None and text.strip() and not row.get(tree):
        made[tree] = parse(text)
    return {**row, **made}


def _text_of(row: dict[str, Any], where: str, columns: Columns) -> str:
    (name,) = columns.of("text", row) or ["text"]
    if name not in row:
        raise DataError(
            f"no text under {name!r}: name the column of what was said as --columns.text", about=head_of(where)
        )
    if not isinstance(row[name], str | None):
        raise DataError(f"{name!r} is {kind_of(row[name])}: give a text", about=where)
    return row[name] or ""


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: dates of Parquet are texts, what is no number is null."""
    plain: dict[str, Any] = json.loads(json.dumps(row, ensure_ascii=False, default=str))
    return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in plain.items()}


def _parse_alone(parser: Path) -> Callable[[str], str]:
    """A parser that is asked one text at a time."""
    from lightning_modules.semantic_parser import load_parser

    loaded = load_parser(parser)
    return lambda text: loaded.annotate([text])[0]
