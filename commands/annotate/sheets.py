"""Sheets for annotators, and what comes back of them."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands.privacy.embedded_parts import trees_of
from datamodules.reading.columns import USUAL
from datamodules.reading.records import head_of, read_records
from doppel.compressed import ending
from doppel.errors import DataError
from doppel.files import refuse_existing, write_json_lines, write_text

#: Columns of a sheet; annotators fill the last.
COLUMNS = ("id", "utterance", "parse", "confidence", "template", "correction")
RIGHT, USELESS = "ok", "drop"
#: How a cell begins that a spreadsheet may compute, with the ``'`` that says that it is text.
_FORMULA = re.compile(r"^'('*[=+\-@\t\r\n＝＋－＠])")
_STRING, _CURLY = re.compile(r'"(?:[^"\\]|\\.)*"'), re.compile("[\u201c-\u201f\xab\xbb]")


def write_sheet(file: Path, sheet: Path, parser: Path | None = None) -> str:
    """Write rows as a sheet for annotators, those first that are worth most; see :func:`by_value`.

    Args:
        file: Rows with utterances, and with trees unless there is a parser.
        sheet: .csv, else JSON lines.
        parser: Checkpoint of a public parser, which predicts the trees.

    Returns:
        What was written, for people.

    Raises:
        DataError: The file cannot be read, or a row has no utterance, or no tree and there is no parser.
        UserError: The parser cannot be loaded.
    """
    refuse_existing(sheet, "--to-sheet")  # it may be filled in
    rows = []
    for number, (where, record) in enumerate(read_records(str(file)), 1):
        text = next((record[name] for name in USUAL["text"] if record.get(name)), None)
        tree = next((record[name] for name in (*USUAL["parse"], "program") if record.get(name)), None)
        if not isinstance(text, str) or not text.strip():
            raise DataError("no utterance: leave such rows out (`choose --num … --skip-bad-rows` does)", about=where)
        if parser is None and not isinstance(tree, str):
            raise DataError("no tree: give --parser, which predicts it", about=where)
        cells = (record.get("id", number), text, tree, _confidence(record.get("confidence"), where), "", "")
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    if parser is not None:
        read = trees_of(parser, [row["utterance"] for row in rows], None)
        for row in rows:
            tree, nats = read[row["utterance"]]
            row |= {"parse": tree, "confidence": math.exp(-nats)}
    rows = by_value(rows)
    if ending(sheet) == ".csv":
        table = io.StringIO()
        writer = csv.DictWriter(table, COLUMNS)
        writer.writeheader()
        writer.writerows({name: _as_text(cell) for name, cell in row.items()} for row in rows)
        write_text(sheet, "\ufeff" + table.getvalue())  # the mark tells spreadsheets that it is UTF-8
    else:
        write_json_lines(sheet, rows)
    kinds = len({row["template"] for row in rows})
    return f"{len(rows)} rows of {kinds} templates in {sheet}: the first {kinds} show each template once"


def by_value(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with their templates, those first that are worth annotating first.

    They come in rounds: one of each template, then a second of each that has two, and so on. Of a template, and inside
    a round, those come first whose tree is least sure; rows whose tree cannot be read are a template of their own.

    Args:
        rows: Rows with ``parse`` and ``confidence`` (None counts as no confidence at all); equal ones keep their order.
    """
    from doppel.selection import ProgramError, template

    templated = []
    for row in rows:
        try:
            templated.append(row | {"template": template(row["parse"])})
        except ProgramError:
            templated.append(row | {"template": ""})
    templated.sort(key=lambda row: row["confidence"] or 0.0)
    seen: Counter[str] = Counter()
    rounds = []
    for row in templated:
        rounds.append(seen[row["template"]])
        seen[row["template"]] += 1
    return [templated[place] for place in sorted(range(len(templated)), key=rounds.__getitem__)]


def read_sheet(sheet: Path, out: Path, skip_bad_rows: bool = False) -> str:
    """Write what annotators filled in as rows to train a parser on.

    Of the column `correction`: `ok` keeps the row's tree, `drop` leaves the row out, a tree takes the place of the
    predicted one, and an empty cell is a row that nobody has looked at. Trees are checked.

    Args:
        sheet: .csv, .tsv or JSON lines.
        out: JSON lines with utterance and parse.
        skip_bad_rows: Whether rows with a broken tree are named and passed over.

    Returns:
        How many rows were right, corrected, …, for people.

    Raises:
        DataError: The sheet cannot be read, a row of it is broken, two say different things of one, nothing is filled
            in, or there is such a file: it may be what came back of another sheet.
    """
    refuse_existing(out)
    counts: Counter[str] = Counter()
    rows = []
    said: dict[tuple[str, str, str], tuple[str, str]] = {}  # row of the sheet as it was written → place, and correction
    for where, record in read_records(str(sheet)):
        if ending(sheet) in (".csv", ".tsv"):
            record = {name: cell and re.sub(_FORMULA, r"\1", cell) for name, cell in record.items()}
        lacking = [name for name in ("utterance", "parse", "correction") if name not in record]
        if lacking:
            raise DataError(
                f"no column {lacking[0]}: give the sheet that `choose --to-sheet` wrote, filled in",
                about=head_of(where),
            )
        correction = str(record["correction"] or "").strip()
        word = "corrected" if correction else "not looked at"
        if correction.lower() in (RIGHT, USELESS):
            word = correction.lower()
        tree = str(record["parse"] or "") if word == RIGHT else correction
        problem = _problem(tree) if word in (RIGHT, "corrected") else ""
        if word in (RIGHT, "corrected") and not str(record["utterance"] or "").strip():
            problem = "no utterance"
        if record.get("id") and word != "not looked at":
            row = str(record["id"]), str(record["utterance"]), str(record["parse"])
            first, before = said.setdefault(row, (where, correction))
            if before != correction:
                problem = f"the same row as {first}, with another correction"
        if problem and not skip_bad_rows:
            raise DataError(f"{problem}: correct the cell, or pass over such rows with --skip-bad-rows", about=where)
        if problem:
            sys.stderr.write(f"skipped {where}: {problem}\n")
            word = "skipped"
        counts[word] += 1
        if word in (RIGHT, "corrected"):
            rows.append({"utterance": record["utterance"], "parse": tree})
    if not rows:
        raise DataError(
            f"no row is annotated: fill in the column correction with {RIGHT}, {USELESS} or a tree", about=sheet
        )
    write_json_lines(out, rows)
    numbers = ", ".join(f"{counts[word]} {word}" for word in (RIGHT, "corrected", USELESS, "skipped", "not looked at"))
    return f"{numbers}; {len(rows)} rows in {out}"


def _as_text(cell: object) -> object:
    """A cell that no spreadsheet computes: whoever typed ``=HYPERLINK(…)`` runs nothing on an annotator's machine."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(f"'{cell}") else cell


def _confidence(value: object, where: str) -> float | None:
    """A confidence, which a table of text holds as text."""
    try:
        return None if value is None else float(str(value))
    except ValueError:
        raise DataError("confidence is no number: leave the column out, or correct it", about=where) from None


def _problem(tree: str) -> str:
    """Why nothing can be trained on a tree; empty if it can."""
    from doppel.lispress import first_error

    error = first_error(tree)
    if _CURLY.search(_STRING.sub("", tree)):
        return 'a tree with typographic quotes, where a string stands between two of "'
    if error is None and "(" in tree:
        return ""
    return f"neither {RIGHT}, {USELESS} nor a tree" if "(" not in tree else f"a broken tree ({error})"
