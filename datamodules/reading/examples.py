"""Rows and published dialogues become turns: each of its own row alone, whatever the form of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, get_args

from datamodules.reading.attribute_codes import AttributeCodes, codes_in, refuse_missing
from datamodules.reading.columns import Columns, Layout, ReferenceColumns, control_code, listed, unit_of
from datamodules.reading.conversations import user_turns
from datamodules.reading.example import Example, Field, Placed, Unit, named_before, with_distinct_units
from datamodules.reading.files import embedded_examples, is_embedded, state_of
from datamodules.reading.records import Record, head_of, kind, read_records
from datamodules.reading.unit_names import NameRule, UnitNames, check_rule
from datamodules.reading.utterances import Utterances, known, remembering
from doppel.errors import DataError
from doppel.files import kind_of
from doppel.garbage import no_collection
from doppel.lispress import first_error
from doppel.tables.schema import OTHER, as_word

#: What to do about a turn without a field that the model needs.
_WAYS_OUT = {
    "utterance": "add one, or drop the line",
    "parse": "add the tree, drop the line, let a semantic parser write the trees, or do without: systems=[labels] "
    "learns from labels, systems=[one_stage] from utterances alone",
    "label": "add one, drop the line, or train a model without labels (systems=[one_stage])",
}
#: Which key of a published dialogue holds a field.
_IN_DIALOGUES = {"utterance": "original_text", "parse": "lispress", "label": "domain"}


@no_collection()
def read_examples(
    path: str,
    unit: Unit | None,
    with_trees: bool = True,
    needs: Sequence[Field] = (),
    columns: Columns | None = None,
    unit_names: NameRule | None = None,
) -> list[Example]:
    """Read all user turns of a file, in order.

    Known are rows of :func:`~datamodules.reading.records.read_records` with the columns ``utterance`` (or ``text``),
    ``parse``, ``unit`` and ``label``, or as ``columns`` says; published dialogue lines (SMCalFlow 2.0, TreeDST), every
    user turn, also one marked ``skip``, without context; and ``embedded:NAME?num=4000&seed=1&skew=1.0``, the embedded
    grammar. Names of units are read by one rule (:class:`~datamodules.reading.unit_names.UnitNames`). Two dialogues of
    one id are refused where dialogues are units: adding one of them would change the other's.

    Formal guarantees:
        Every turn is a function of its own row, and a row without text is no turn whatever the others hold. So adding
        or removing the rows of one unit adds or removes the turns of this unit alone, in every form. How many rows have
        no text is a private number: no message, log or record tells it. An error names a line, to whoever holds the
        file and sees the console; it never quotes the line, nor the name of a unit.

    Args:
        path: A file or a folder in one of these forms, or an ``embedded:`` path.
        unit: ``"utterance"``: every turn is a unit of its own; ``"dialogue"``: all turns of a dialogue (or,
            in rows, all rows with the same ``unit``) are one; ``"user"``: all rows with the same
            ``unit`` are one, which only rows can say. None: nobody has said, so an utterance, or what
            :func:`~datamodules.reading.columns.unit_of` says of conversations, and a file where several of them
            are of one dialogue, or of one name in a column that seems to say whose a row is, is refused.
        with_trees: Whether rows are read with their trees; False neither needs nor checks any, and keeps rows without
            text, as for samples, which are what a model wrote.
        needs: Fields that every turn must have, such as ``parse`` for a model of trees.
        columns: What the columns are called; None for the usual names.
        unit_names: Whether names of units that differ in spelling alone are one (``folded``) or not (``exact``); None:
            nobody has said, and a file with such names is refused.

    Returns:
        The turns, at least one.

    Raises:
        DataError: The file is missing, empty or unreadable, or a row of it is; the message says which one.
    """
    placed = place_examples(path, unit, with_trees, needs, columns, unit_names)
    turns = [row.turn for row in placed if row.turn is not None]
    if not turns:
        raise DataError(f"{path} holds no request: give a file with at least one")
    return with_distinct_units(turns) if unit_of(unit, columns or Columns()) == "utterance" else turns


def place_examples(
    path: str,
    unit: Unit | None,
    with_trees: bool = True,
    needs: Sequence[Field] = (),
    columns: Columns | None = None,
    unit_names: NameRule | None = None,
) -> Iterator[Placed]:
    """Yield the turns of a file with their places, and places of rows without text; see :func:`read_examples`.

    Whoever has read them all has paid for :func:`utterances_of` the same path, which then opens nothing.
    """
    if unit is not None and unit not in get_args(Unit):
        raise DataError(f"unit is {unit!r}: it must be one of {', '.join(map(repr, get_args(Unit)))}")
    check_rule(unit_names)
    columns = columns or Columns()
    if is_embedded(path):
        codes = codes_in(columns, ())
        turns = (_with_attributes(turn, codes, path) for turn in embedded_examples(path, unit or "utterance"))
        if codes is not None:
            refuse_missing(codes, (), columns, path)
        return (Placed(path, turn) for turn in turns)
    return remembering(
        _file_examples(path, unit, with_trees, needs, columns, unit_names), (state_of(path), columns.key)
    )


def utterances_of(path: str, columns: Columns | None = None) -> Utterances:
    """Read the distinct utterances of a file, unless this process has read it as it is now.

    Raises:
        DataError: As for :func:`read_examples`.
    """
    key = state_of(path), (columns or Columns()).key
    if key not in known:
        for _ in place_examples(path, "utterance", with_trees=False, columns=columns):
            pass
    return known[key]


def _file_examples(
    path: str,
    unit: Unit | None,
    with_trees: bool,
    needs: Sequence[Field],
    columns: Columns,
    unit_names: NameRule | None,
) -> Iterator[Placed]:
    """Rows and dialogues of a file as turns, with their places."""
    records: Iterable[Record] = read_records(path)
    first = next(iter(records), None)
    records = records if first is None else chain((first,), records)
    if first is not None and kind(first[0].rpartition(":")[0]) == ".txt" and first[1].keys() == {"text"}:
        columns = replace(columns, text=None, label=None, unit=None, parse=None, messages=None)  # lines have no names
    names: dict[str, None] = {}
    if isinstance(columns, ReferenceColumns):
        records = list(records)  # any row may have a column that the first lacks
        names = {name: None for _, record in records for name in record}
    codes, columns = codes_in(columns, names), columns.in_file(names)
    if columns.messages is not None:
        records = user_turns(records, columns.messages, unit_of(unit, columns), columns.unit)
    reader = _Reader(path, unit, with_trees, needs, columns, codes, UnitNames(unit_names))
    for number, (where, record) in enumerate(records, 1):
        yield from reader.placed(record, where, number)
    reader.finish()


class _Reader:
    """Makes turns of the rows and dialogues of one file; which columns hold what is asked once for each header.

    Args:
        path: The file, for errors.
        unit: As for :func:`read_examples`; likewise ``with_trees`` and ``needs``.
        columns: What the columns of this file are called.
        codes: How its attributes are written; None: labels are those of its columns.
        names: Reads the names of its units.
    """

    def __init__(
        self,
        path: str,
        unit: Unit | None,
        with_trees: bool,
        needs: Sequence[Field],
        columns: Columns,
        codes: AttributeCodes | None,
        names: UnitNames,
    ) -> None:
        self.path, self.unit, self.with_trees, self.needs = path, unit_of(unit, columns), with_trees, needs
        self.is_guess = unit is None and not (columns.messages is not None and self.unit == "user")  # who is named
        self.columns, self.codes, self.names = columns, codes, names
        self.reads_trees = with_trees or (codes is not None and codes.schema.needs_trees)
        self.reads_labels = codes is None or codes.schema.needs_label
        self._layouts: dict[tuple[str, ...], Layout] = {}  # of each header
        self._dialogues: dict[str, str] = {}  # where each stands
        self._owners: dict[tuple[str, str], str] = {}  # where the first turn of each stands, by the column and the name

    def placed(self, record: dict[str, Any], where: str, number: int) -> Iterator[Placed]:
        """The turns of a row, or of a dialogue, by its cells, place and number in the file, from 1."""
        header = tuple(record)
        layout = self._layouts.get(header)
        if layout is None:
            layout = self._layouts[header] = self.columns.layout(header)
        if layout.is_dialogue:
            turns = self._dialogue_examples(record, where, number)
        else:
            turns = iter((self._row_example(record, layout, where, number),))
        for turn in turns:
            if self.with_trees and not turn.utterance.strip():
                yield Placed(where, None)
                continue
            if self.is_guess:
                self._refuse_again(record, layout, where)
            for field in self.needs:
                if getattr(turn, field) is None:
                    raise self._lacking(field, record, layout, where)
            yield Placed(where, turn, next(iter(layout.owners), None))

    def finish(self) -> None:
        """Refuse a file that has been read: no row has a column that is named, or one name may be a placeholder."""
        present = {name: None for header in self._layouts for name in header}
        missing = {name for names in self.columns.named.values() for name in names} - present.keys()
        is_table = present and not any(layout.is_dialogue for layout in self._layouts.values())
        if missing and is_table:
            raise DataError(
                f"no row has {' or '.join(map(repr, sorted(missing)))}, which data.columns names: name a column that "
                f"there is ({listed(present, self.columns)})",
                about=self.path,
            )
        if self.codes is not None and present:
            refuse_missing(self.codes, present, self.columns, self.path)
        if is_table and self.columns.messages is None:
            self.names.refuse_heavy(repr(self.columns.layout(present).unit), self.path)

    def _row_example(self, record: dict[str, Any], layout: Layout, where: str, number: int) -> Example:
        if layout.text not in record:
            how = "name the column of what was said as data.columns.text"
            if isinstance(record.get("messages"), list):
                how = "of conversations in OpenAI's form give data.columns.messages=messages"
            raise DataError(f"no {layout.text!r} ({listed(record, self.columns)}): {how}", about=head_of(where))
        utterance = "" if record[layout.text] is None else _text(record, layout.text, where)
        parse = None
        if self.reads_trees and layout.parse is not None and record.get(layout.parse) is not None:
            parse = _tree(_text(record, layout.parse, where), where, layout.parse)
        label = _label({name: record.get(name) for name in layout.labels}, where) if self.reads_labels else None
        if self.codes is not None:
            label = self.codes.of_row(record, where, utterance, parse, label)
        if self.unit == "utterance":  # every row is a unit of its own, whatever name it carries
            owner = record.get(layout.unit)
            return Example(utterance, parse, str(number) if owner is None else f"{owner}/{number}", label)
        if layout.unit not in record:
            raise DataError(
                f"no {layout.unit!r}, which says whose line this is ({listed(record, self.columns)}): name the column "
                "as data.columns.unit, add one to every line, or train with unit=utterance (each line protected by "
                "itself)",
                about=head_of(where),
            )
        return Example(utterance, parse, self._name(record, layout.unit, where), label)

    def _dialogue_examples(self, dialogue: dict[str, Any], where: str, number: int) -> Iterator[Example]:
        owner, called = self._dialogue_name(dialogue, where), dialogue.get("dialogue_id")
        called = number if called is None else called
        if not isinstance(dialogue["turns"], list):
            raise DataError("'turns' is not a list: give the turns of the dialogue as a JSON list", about=where)
        for position, turn in enumerate(dialogue["turns"]):
            at = f"{where}, turn {position}"
            if not isinstance(turn, dict) or not isinstance(turn.get("user_utterance"), dict):
                raise DataError("no 'user_utterance' object: every turn needs one with 'original_text'", about=at)
            utterance = _text(turn["user_utterance"], "original_text", at)
            tags = turn.get("tags")
            label = _label({"domain": tags.get("domain")}, at) if isinstance(tags, dict) else None
            has_tree = self.reads_trees and turn.get("lispress") is not None
            tree = _tree(_text(turn, "lispress", at), at, "lispress") if has_tree else None
            name = owner or f"{called}/{turn.get('turn_index', position)}"
            yield _with_attributes(Example(utterance, tree, name, label), self.codes, at)

    def _dialogue_name(self, dialogue: dict[str, Any], where: str) -> str | None:
        """The name of a dialogue that is a unit; None where its turns are units of their own."""
        if self.unit == "user":
            raise DataError(
                "a published dialogue does not say which user held it: give plain lines "
                '{"utterance", "parse", "unit"} whose "unit" names the user, or train with unit=dialogue',
                about=where,
            )
        if self.unit != "dialogue":
            return None
        if dialogue.get("dialogue_id") is None:
            raise DataError(
                "no 'dialogue_id', which names the privacy unit: add one to every dialogue, "
                "or train with unit=utterance (each request protected by itself)",
                about=where,
            )
        name = self._name(dialogue, "dialogue_id", where)
        first = self._dialogues.setdefault(name, where)
        if first != where:
            raise DataError(
                f"the dialogue_id of line {first.rpartition(':')[2]} again, so that two dialogues "
                "would be one unit: give every dialogue an id of its own, or drop the line",
                about=where,
            )
        return name

    def _name(self, record: dict[str, Any], key: str, where: str) -> str:
        try:
            return self.names.read(record[key], where, repr(key))
        except ValueError as error:
            raise DataError(f"{key!r} {error}", about=where) from None

    def _lacking(self, field: Field, record: dict[str, Any], layout: Layout, where: str) -> DataError:
        """That a turn has no field which the model needs."""
        of_rows = {"utterance": (layout.text,), "parse": (layout.parse,), "label": layout.labels}
        own = [name for name in ((_IN_DIALOGUES[field],) if layout.is_dialogue else of_rows[field]) if name is not None]
        wanted = " and ".join(map(repr, own)) or repr(field)
        return DataError(
            f"no {wanted}, which this model needs: {_WAYS_OUT[field]} ({listed(record, self.columns)})",
            about=where if record.keys() & set(own) else head_of(where),
        )

    def _refuse_again(self, record: dict[str, Any], layout: Layout, where: str) -> None:
        """Refuse a turn of whom, or of a dialogue of which, there was one before; nobody has said what is protected."""
        row = {"dialogue_id": where} | record if layout.is_dialogue else record
        is_conversation = self.columns.messages is not None
        owners = [name for name in layout.owners if not is_conversation or name != layout.unit]
        before = named_before(self._owners, owners, row, where)
        if before is None or (is_conversation and before[1] == where):  # another turn of the same one
            return
        column, first = before
        together = "data.unit=dialogue" if layout.is_dialogue else "data.unit=user (or dialogue)"
        if not layout.is_dialogue and column != layout.unit:
            together = f"{together} and data.columns.unit={column}"
        alone = "utterance, so that each"
        if is_conversation:
            together, alone = f"data.columns.unit={column}", "dialogue, so that each conversation"
        line = first.rpartition(":")[2]
        raise DataError(
            f"the same {column!r} as at {f'line {line}' if line.isdigit() else first}, and nothing "
            f"says what is protected: set {together}, so that all requests of one name are protected together, or "
            f"data.unit={alone} is protected by itself",
            about=where,
        )


def _with_attributes(turn: Example, codes: AttributeCodes | None, where: str) -> Example:
    """A turn that is no row of a table, whose attributes are all made of itself."""
    if codes is None:
        return turn
    return replace(turn, label=codes.of_row({}, where, turn.utterance, turn.parse, turn.label))


def _label(cells: Mapping[str, object], where: str) -> str | None:
    """The label that the cells of some columns make; None where one of them is empty."""
    words: dict[str, str] = {}
    for name, cell in cells.items():
        if not isinstance(cell, str | int | float | None):
            raise DataError(f"{name!r} is {kind_of(cell)}: a label must be a text or a number", about=where)
        words[name] = as_word(cell)
        if words[name] == OTHER and str(cell).strip() != OTHER:
            return None
    return control_code(words) if len(words) > 1 else next(iter(words.values()), None)


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
