"""Bytes of every known form become rows, and rows become turns."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from datamodules.attribute_codes import AttributeCodes, codes_in, refuse_missing
from datamodules.columns import Columns, ReferenceColumns, control_code, listed
from datamodules.sources import embedded_turns, is_embedded, read_files, state_of
from datamodules.turn import Field, Placed, Turn, Unit, unit_name
from datamodules.utterances import Utterances, noted, remembered
from doppel.errors import DataError
from doppel.files import kind_of, parse_json, read_bytes, read_json_lines, read_lines
from doppel.lispress import first_error
from doppel.tables.schema import OTHER, as_word

#: A place such as ``reviews.csv:7``, and what stands there by column.
Record = tuple[str, dict[str, Any]]
#: What to do about a turn without a field that the model needs.
_WAYS_OUT = {
    "utterance": "add one, or drop the line",
    "parse": "add the tree, drop the line, let a semantic parser write the trees, or do without: systems=[labels] "
    "learns from labels, systems=[one_stage] from utterances alone",
    "label": "add one, drop the line, or train a model without labels (systems=[one_stage])",
}
#: Which of the columns holds a field.
_COLUMN_OF = {"utterance": "text", "parse": "parse", "label": "label"}
#: And which key of a published dialogue.
_IN_DIALOGUES = {"utterance": "original_text", "parse": "lispress", "label": "domain"}

csv.field_size_limit(2**31 - 1)  # a cell may hold a whole story
#: Forms that are known and not read, and what to do about them.
_NOT_READ = {".xlsx": "save the sheet as .csv", ".xls": "save the sheet as .csv", ".arrow": "name its folder"}


class _BadRowError(DataError):
    """A row of a table that does not keep its form; the rows after it can still be read."""


def read_turns(
    path: str, unit: Unit | None, with_trees: bool = True, needs: Sequence[Field] = (), columns: Columns | None = None
) -> list[Turn]:
    """Read all user turns of a file, in order.

    Names of dialogues and users are normalised (:func:`~datamodules.turn.unit_name`). Two dialogues of one id are
    refused: they would be one unit, and adding one of them would change the other's. As utterances their turns are
    units of their own, whatever their names.

    Three inputs are known:

    * rows of any form that :func:`read_records` knows, with the columns ``utterance`` (or
      ``text``), ``parse``, ``unit`` and ``label``, unless ``columns`` says otherwise; only
      the text is always needed, and ``unit`` wherever the unit is a dialogue or a user;
    * published dialogue lines (SMCalFlow 2.0, TreeDST), one dialogue a line, every user turn including those
      marked ``skip``, without context: ``{"dialogue_id", "turns": [{"turn_index", "lispress",
      "user_utterance": {"original_text"}, "tags": {"domain"}}]}``;
    * ``embedded:NAME?num=4000&seed=1&skew=1.0``: turns of the embedded grammar (the name is free: say
      ``train``).

    Formal guarantees:
        Every turn is a function of its own row, and a row without text is no turn whatever the others hold. So adding
        or removing the rows of one unit adds or removes the turns of this unit alone, in every form. How many rows have
        no text is a private number: no message, log or record tells it. An error names a line, to whoever holds the
        file and sees the console; it never quotes the line, nor the name of a unit.

    Args:
        path: A file or a folder in one of these forms, or an ``embedded:`` path.
        unit: ``"utterance"``: every turn is a unit of its own; ``"dialogue"``: all turns of a dialogue (or,
            in rows, all rows with the same ``unit``) are one; ``"user"``: all rows with the same
            ``unit`` are one, which only rows can say. None: nobody has said, so an utterance, and a file where
            several turns are of one dialogue, or of one name in a column that seems to say whose a row is, is refused.
        with_trees: Whether rows are read with their trees; False neither needs nor checks any, and keeps rows without
            text, as for samples, which are what a model wrote.
        needs: Fields that every turn must have, such as ``parse`` for a model of trees.
        columns: What the columns are called; None for the usual names.

    Returns:
        The turns, at least one.

    Raises:
        DataError: The file is missing, empty or unreadable, or a row of it is; the message says which one.
    """
    placed = place_turns(path, unit, with_trees, needs, columns)
    turns = [row.turn for row in placed if row.turn is not None]
    if not turns:
        raise DataError(f"{path} holds no user turn: give a file with at least one")
    return _told_apart(turns) if unit in (None, "utterance") else turns


def place_turns(
    path: str, unit: Unit | None, with_trees: bool = True, needs: Sequence[Field] = (), columns: Columns | None = None
) -> Iterator[Placed]:
    """The turns of a file with their places, and the places of rows without text; as :func:`read_turns` reads them.

    Whoever has read them all has paid for :func:`utterances_of` the same path, which then opens nothing.
    """
    if unit is not None and unit not in get_args(Unit):
        raise DataError(f"unit is {unit!r}: it must be one of {', '.join(map(repr, get_args(Unit)))}")
    columns = columns or Columns()
    if is_embedded(path):
        codes = codes_in(columns, ())
        turns = (_with_attributes(turn, codes, path) for turn in embedded_turns(path, unit or "utterance"))
        if codes is not None:
            refuse_missing(codes, (), columns, path)
        return (Placed(path, turn) for turn in turns)
    return noted(_file_turns(path, unit, with_trees, needs, columns), (state_of(path), columns.key))


def utterances_of(path: str, columns: Columns | None = None) -> Utterances:
    """The distinct utterances of a file, which is opened only if this process has not read it as it is now.

    Raises:
        DataError: As for :func:`read_turns`.
    """
    key = state_of(path), (columns or Columns()).key
    if remembered(key) is None:
        for _ in place_turns(path, "utterance", with_trees=False, columns=columns):
            pass
    found = remembered(key)
    assert found is not None
    return found


def _told_apart(turns: list[Turn]) -> list[Turn]:
    """Turns as units of their own: a name that came before gets its place, and more until nobody is called so.

    Formal guarantees:
        No two turns have one name, whatever the file calls them: N counts turns, and each is clipped by itself.
    """
    taken, seen = {turn.unit for turn in turns}, set[str]()
    for place, turn in enumerate(turns):
        name = turn.unit
        if name in seen:
            while name in taken:
                name = f"{name}#{place}"
            taken.add(name)
            turns[place] = replace(turn, unit=name)
        seen.add(name)
    return turns


def _file_turns(
    path: str, given: Unit | None, with_trees: bool, needs: Sequence[Field], columns: Columns
) -> Iterator[Placed]:
    """Rows and dialogues of a file as turns, with their places."""
    unit: Unit = given or "utterance"
    dialogues: dict[str, str] = {}  # where each stands
    if kind(path) == ".txt":
        columns = replace(columns, text=None, label=None, unit=None, parse=None)  # its lines have no names
    records: Iterable[Record] = read_records(path)
    present: dict[str, None] = {}
    if isinstance(columns, ReferenceColumns):
        records = list(records)  # any row may have a column that the first lacks
        present = dict.fromkeys(name for _, record in records for name in record)
    codes = codes_in(columns, present)
    columns = columns.in_file(present)
    owners = _Owners(columns)
    missing = {name for names in columns.named.values() for name in names}
    for number, (where, record) in enumerate(records, 1):
        missing -= record.keys()
        present |= dict.fromkeys(record)
        is_dialogue = "turns" in record and not record.keys() & set(columns.of("text", record))
        if is_dialogue:
            missing.clear()  # the columns of rows
            if unit == "dialogue" and record.get("dialogue_id") is not None:
                first = dialogues.setdefault(_name(record, "dialogue_id", where), where)
                if first != where:
                    raise DataError(
                        f"the dialogue_id of line {first.rpartition(':')[2]} again, so that two dialogues "
                        "would be one unit: give every dialogue an id of its own, or drop the line",
                        about=where,
                    )
            turns = _dialogue_turns(record, unit, where, number, with_trees, codes)
        else:
            turns = iter([_row_turn(record, unit, where, number, with_trees, columns, codes)])
        for turn in turns:
            if with_trees and not turn.utterance.strip():
                yield Placed(where, None)
                continue
            if given is None:
                owners.refuse_again(record, where)
            for field in needs:
                if getattr(turn, field) is None:
                    own = [_IN_DIALOGUES[field]] if is_dialogue else columns.of(_COLUMN_OF[field], record)
                    wanted = " and ".join(map(repr, own)) or repr(field)
                    raise DataError(
                        f"no {wanted}, which this model needs: {_WAYS_OUT[field]} ({listed(record, columns)})",
                        about=where if record.keys() & set(own) else head_of(where),
                    )
            yield Placed(where, turn, owners.column(record))
    if missing and present:
        raise DataError(
            f"no row has {' or '.join(map(repr, sorted(missing)))}, which data.columns names: name a column that "
            f"there is ({listed(present, columns)})",
            about=path,
        )
    if codes is not None and present:
        refuse_missing(codes, present, columns, path)


class _Owners:
    """Whose the turns of a file are, for whoever has not said what the guarantee protects."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._places: dict[tuple[str, str], str] = {}  # of the first turn of each
        self._names: dict[tuple[str, ...], list[str]] = {}  # of the columns of a row

    def column(self, record: Mapping[str, Any]) -> str | None:
        """The first column that seems to say whose a turn is."""
        return next(iter(self._columns(record)), None)

    def refuse_again(self, record: Mapping[str, Any], where: str) -> None:
        """Refuse a turn of whom, or of a dialogue of which, there was one before.

        Raises:
            DataError: There was one; the message does not quote the name.
        """
        is_row = "turns" not in record
        for column in self._columns(record):
            value = record.get(column, None if is_row else where)
            try:
                key = column, unit_name(value)
            except ValueError:  # it names nobody
                continue
            first = self._places.get(key)
            if first is None:
                self._places[key] = where
                continue
            together = "data.unit=user (or dialogue)" if is_row else "data.unit=dialogue"
            if is_row and column not in self.columns.of("unit", record):
                together += f" and data.columns.unit={column}"
            line = first.rpartition(":")[2]
            raise DataError(
                f"another turn of whom {column!r} names at {f'line {line}' if line.isdigit() else first}, and nothing "
                f"says what is protected: set {together}, so that all turns of one name are protected together, or "
                "data.unit=utterance, so that each is protected by itself",
                about=where,
            )

    def _columns(self, record: Mapping[str, Any]) -> list[str]:
        if "turns" in record:
            return ["dialogue_id"]
        names = tuple(record)
        if names not in self._names:
            self._names[names] = self.columns.owners(names)
        return self._names[names]


def _dialogue_turns(
    dialogue: dict[str, Any], unit: Unit, where: str, number: int, with_trees: bool, codes: AttributeCodes | None
) -> Iterator[Turn]:
    with_trees = with_trees or (codes is not None and codes.schema.needs_trees)
    if unit == "user":
        raise DataError(
            "a published dialogue does not say which user held it: give plain lines "
            '{"utterance", "parse", "unit"} whose "unit" names the user, or train with unit=dialogue',
            about=where,
        )
    dialogue_id = dialogue.get("dialogue_id")
    if dialogue_id is None:
        if unit == "dialogue":
            raise DataError(
                "no 'dialogue_id', which names the privacy unit: add one to every dialogue, "
                "or train with unit=utterance (each turn protected by itself)",
                about=where,
            )
        dialogue_id = number
    turns = dialogue["turns"]
    if not isinstance(turns, list):
        raise DataError("'turns' is not a list: give the turns of the dialogue as a JSON list", about=where)
    for position, turn in enumerate(turns):
        at = f"{where}, turn {position}"
        if not isinstance(turn, dict) or not isinstance(turn.get("user_utterance"), dict):
            raise DataError("no 'user_utterance' object: every turn needs one with 'original_text'", about=at)
        utterance = _text(turn["user_utterance"], "original_text", at)
        tags = turn.get("tags")
        label = tags.get("domain") if isinstance(tags, dict) else None
        index = turn.get("turn_index", position)
        name = _name(dialogue, "dialogue_id", where) if unit == "dialogue" else f"{dialogue_id}/{index}"
        has_tree = with_trees and turn.get("lispress") is not None
        tree = _tree(_text(turn, "lispress", at), at, "lispress") if has_tree else None
        yield _with_attributes(Turn(utterance, tree, name, label), codes, at)


def _row_turn(
    record: dict[str, Any],
    unit: Unit,
    where: str,
    number: int,
    with_trees: bool,
    columns: Columns,
    codes: AttributeCodes | None,
) -> Turn:
    (column,) = columns.of("text", record) or ["text"]
    if column not in record:
        raise DataError(
            f"no {column!r} ({listed(record, columns)}): name the column of what was said as data.columns.text",
            about=head_of(where),
        )
    utterance = "" if record[column] is None else _text(record, column, where)
    with_trees = with_trees or (codes is not None and codes.schema.needs_trees)
    trees = columns.of("parse", record) if with_trees else []
    parse = next((_tree(_text(record, c, where), where, c) for c in trees if record.get(c) is not None), None)
    label = _label(record, columns, where) if codes is None or codes.schema.needs_label else None
    if codes is not None:
        label = codes.of_row(record, where, utterance, parse, label)
    (owner,) = columns.of("unit", record) or ["unit"]
    if unit == "utterance":  # every row is a unit of its own, whatever name it carries
        name = record.get(owner)
        return Turn(utterance, parse, str(number) if name is None else f"{name}/{number}", label)
    if owner not in record:
        raise DataError(
            f"no {owner!r}, which says whose line this is ({listed(record, columns)}): name the column as "
            "data.columns.unit, add one to every line, or train with unit=utterance (each line protected by itself)",
            about=head_of(where),
        )
    return Turn(utterance, parse, _name(record, owner, where), label)


def head_of(where: str) -> str:
    """The line that names the columns of a row: the first one of a table of text, else its own."""
    path, _, line = where.rpartition(":")
    return f"{path}:1" if line.isdigit() and kind(path) in (".csv", ".tsv") else where


def _with_attributes(turn: Turn, codes: AttributeCodes | None, where: str) -> Turn:
    """A turn that is no row of a table, whose attributes are all made of itself."""
    if codes is None:
        return turn
    return replace(turn, label=codes.of_row({}, where, turn.utterance, turn.parse, turn.label))


def _label(record: Mapping[str, Any], columns: Columns, where: str) -> str | None:
    """The label of a row; None where a column of it is empty."""
    names = columns.of("label", record)
    values: dict[str, str] = {}
    for name in names:
        value = record.get(name)
        if not isinstance(value, str | int | float | None):
            raise DataError(f"{name!r} is {kind_of(value)}: a label must be a text or a number", about=where)
        values[name] = as_word(value)
        if values[name] == OTHER and str(value).strip() != OTHER:
            return None
    return (control_code(values) if len(values) > 1 else values[names[0]]) if values else None


def _name(record: dict[str, Any], key: str, where: str) -> str:
    try:
        return unit_name(record[key])
    except ValueError as error:
        raise DataError(f"{key!r} {error}", about=where) from None


def _text(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        what = f"no {key!r}" if value is None else f"{key!r} is {kind_of(value)}, not a text"
        raise DataError(f"{what}: every record needs {key!r} as a text", about=where)
    return value


def _tree(text: str, where: str, column: str) -> str:
    error = first_error(text)
    if error is None and "(" in text:
        return text
    # The message of the parser may quote the tree, which is private: only the position is said.
    wrong = (
        "a word alone is no parse tree" if error is None else f"unreadable parse tree at character {error.position + 1}"
    )
    raise DataError(
        f"{wrong}: correct the tree or drop the line; if {column!r} holds labels, set "
        f"data.columns.label={column} and systems=[labels]",
        about=where,
    )


def read_records(path: str, on_bad_row: Callable[[str], None] | None = None) -> Iterator[Record]:
    """Read a file row by row, in order.

    ==============================  ====================================================================================
    ``.jsonl``, ``.ndjson``         one JSON object a line; also any name without a known ending
    ``.json``                       a JSON list of objects or of texts; or JSON lines
    ``.csv``, ``.tsv``              first line: the columns. Commas or tabs, as the name says, or what else the first
                                    line has of commas, semicolons and tabs. An empty cell is null
    ``.txt``                        one text a line, as the column ``text``; blank lines are passed over
    ``.parquet``                    rows by column
    a folder                        a data set of Hugging Face's ``save_to_disk``, or Parquet files of one name
    ``hf:NAME?split=train``         Parquet files of the Hugging Face hub, read into memory alone
                                    (:mod:`datamodules.hub`)
    ==============================  ====================================================================================

    Text is read by :func:`doppel.files.read_lines`; files may be compressed as ``.gz``, or as ``.zip`` of one file.
    Each file is opened once, and nothing is written anywhere.

    Args:
        path: The file.
        on_bad_row: Called with what would be raised for a row of a text table (``.csv``, ``.tsv``) whose cells are too
            few, too many or badly quoted, and the row is passed over; None raises.

    Raises:
        DataError: The file, or a row of it, cannot be read; the message names the line (the row of a table that has no
            lines) and never quotes the content.
    """
    is_folder = Path(path).is_dir()
    for name, content in read_files(path):
        if is_folder and kind(name) == ".arrow":
            yield from _arrow(name, content)
        elif kind(name) in (".csv", ".tsv"):
            yield from _table(name, content, on_bad_row)
        else:
            yield from _FORMS.get(kind(name), _json_lines)(name, content)


def kind(path: str) -> str:
    """The end of a file's name that tells its form, without that of its compression: ``.csv`` of ``a.csv.gz``."""
    name = Path(path)
    return (Path(name.stem) if name.suffix in (".gz", ".zip") else name).suffix.lower()


def _json_lines(path: str, content: bytes) -> Iterator[Record]:
    if kind(path) in _NOT_READ:
        raise DataError(f"{path} is in a form that is not read: {_NOT_READ[kind(path)]}")
    for number, record in read_json_lines(path, content):
        yield f"{path}:{number}", record


def _json(path: str, content: bytes) -> Iterator[Record]:
    """A list, or lines."""
    lines = [line for _, line in read_lines(path, ".json", content)]
    if not "".join(lines[:20]).lstrip().startswith("["):
        yield from _json_lines(path, content)
        return
    form = "the file must be one list, or one object a line"
    for number, entry in enumerate(parse_json("".join(lines), path, 1, form), 1):
        where = f"{path}, entry {number}"
        if not isinstance(entry, dict | str):
            raise DataError(f"{kind_of(entry)}: every entry must be an object, or a text", about=where)
        yield where, {"text": entry} if isinstance(entry, str) else entry


def _text_lines(path: str, content: bytes) -> Iterator[Record]:
    for number, line in read_lines(path, ".txt", content):
        if line.strip():
            yield f"{path}:{number}", {"text": line.rstrip("\r\n")}


def _table(path: str, content: bytes, on_bad_row: Callable[[str], None] | None) -> Iterator[Record]:
    """Rows of a table of text; each stands where it begins, for a quoted cell may hold ends of lines.

    Columns without a name are passed over. Behind the last one with a name their cells must be empty, as those are that
    a spreadsheet adds; a row may lack them.
    """
    lines = (line for _, line in read_lines(path, kind(path), content))
    first = next(lines, "")
    delimiter = _delimiter(first, "\t" if kind(path) == ".tsv" else ",")
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    header = _row(reader, path, 1) or []
    names = [name.strip() for name in header]
    while names and not names[-1]:
        names.pop()
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        places = [str(place) for place, name in enumerate(names, 1) if name == twice[0]]
        raise DataError(f"columns {' and '.join(places)} have one name: give every column its own", about=f"{path}:1")
    while True:
        start = reader.line_num + 1
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


def _delimiter(first: str, usual: str) -> str:
    """What stands between the cells of a first line: the usual sign, or another one where that splits nothing."""

    def num_cells(sign: str) -> int:
        try:
            cells = next(csv.reader([first], delimiter=sign, strict=True), [])
        except csv.Error:  # what is read then says so
            return 0
        return 0 if any('"' in cell for cell in cells) else len(cells)

    return usual if num_cells(usual) > 1 else max((usual, ";", "\t", ","), key=num_cells)


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


def _parquet(path: str, content: bytes) -> Iterator[Record]:
    arrow = _pyarrow(path)
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(read_bytes(path, ".parquet", content)))
        yield from _rows(file.schema_arrow, file.iter_batches(), path)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, "Parquet", error) from None


def _arrow(path: str, content: bytes) -> Iterator[Record]:
    arrow = _pyarrow(path)
    try:
        stream = arrow.ipc.open_stream(content)
        yield from _rows(stream.schema, stream, path)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, "Arrow", error) from None


def _rows(schema: Any, batches: Iterable[Any], path: str) -> Iterator[Record]:
    """Rows of Arrow tables; the classes of a Hugging Face data set by their names."""
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        places = [str(place) for place, name in enumerate(schema.names, 1) if name == twice[0]]
        raise DataError(f"columns {' and '.join(places)} have one name: give every column its own", about=path)
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


_FORMS: dict[str, Callable[[str, bytes], Iterator[Record]]] = {
    ".json": _json,
    ".txt": _text_lines,
    ".parquet": _parquet,
}
