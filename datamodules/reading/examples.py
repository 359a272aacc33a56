"""Rows and published dialogues become turns: each of its own row alone, whatever the form of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, get_args

from datamodules.reading.attribute_codes import codes_in, refuse_missing
from datamodules.reading.columns import Columns, Layout, ReferenceColumns, listed, unit_of
from datamodules.reading.conversations import user_turns
from datamodules.reading.dialogues import KEYS, Dialogues, with_attributes
from datamodules.reading.example import Example, Field, Unit, with_distinct_units
from datamodules.reading.files import embedded_examples, is_embedded, state_of
from datamodules.reading.records import Record, head_of, read_records
from datamodules.reading.rows import Reading, row_example
from datamodules.reading.units import NameRule, Owners, UnitNames, check_rule
from datamodules.reading.utterances import Utterances, known, remembering
from doppel.compressed import ending
from doppel.errors import DataError
from doppel.garbage import no_collection

#: What to do about a turn without a field that the model needs.
_WAYS_OUT = {
    "utterance": "add one, or drop the line",
    "parse": "add the tree, drop the line, let a semantic parser write the trees, or do without: systems=[labels] "
    "learns from labels, systems=[one_stage] from utterances alone",
    "label": "add one, drop the line, or train a model without labels (systems=[one_stage])",
}


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
    grammar. Names of units are read by one rule (:class:`~datamodules.reading.units.UnitNames`). Two dialogues of
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
    found = iter_examples(path, unit, with_trees, needs, columns, unit_names)
    turns = [turn for turn in found if not with_trees or not turn.is_blank]
    if not turns:
        raise DataError(f"{path} holds no request: give a file with at least one")
    return with_distinct_units(turns) if unit_of(unit, columns or Columns()) == "utterance" else turns


def iter_examples(
    path: str,
    unit: Unit | None,
    with_trees: bool = True,
    needs: Sequence[Field] = (),
    columns: Columns | None = None,
    unit_names: NameRule | None = None,
) -> Iterator[Example]:
    """Yield the turns of a file with their places, and rows without text; see :func:`read_examples`.

    Whoever has read them all has paid for :func:`utterances_of` the same path, which then opens nothing.
    """
    if unit is not None and unit not in get_args(Unit):
        raise DataError(f"unit is {unit!r}: it must be one of {', '.join(map(repr, get_args(Unit)))}")
    check_rule(unit_names)
    columns = columns or Columns()
    if is_embedded(path):
        codes = codes_in(columns, ())
        if codes is not None:
            refuse_missing(codes, (), columns, path)
        return (with_attributes(turn, codes, path) for turn in embedded_examples(path, unit or "utterance"))
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
        for _ in iter_examples(path, "utterance", with_trees=False, columns=columns):
            pass
    return known[key]


def _file_examples(
    path: str,
    unit: Unit | None,
    with_trees: bool,
    needs: Sequence[Field],
    columns: Columns,
    unit_names: NameRule | None,
) -> Iterator[Example]:
    """Rows and dialogues of a file as turns."""
    records: Iterable[Record] = read_records(path)
    first = next(iter(records), None)
    records = records if first is None else chain((first,), records)
    if first is not None and ending(first[0].rpartition(":")[0]) == ".txt" and first[1].keys() == {"text"}:
        columns = replace(columns, text=None, label=None, unit=None, parse=None, messages=None)  # lines have no names
    names: dict[str, None] = {}
    if isinstance(columns, ReferenceColumns):
        records = list(records)  # any row may have a column that the first lacks
        names = {name: None for _, record in records for name in record}
    codes, columns = codes_in(columns, names), columns.in_file(names)
    if columns.messages is not None:
        records = user_turns(records, columns.messages, unit_of(unit, columns), columns.unit)
    how = Reading(unit_of(unit, columns), with_trees, columns, codes, UnitNames(unit_names))
    is_guess = unit is None and not (columns.messages is not None and how.unit == "user")  # who is named
    dialogues, owners = Dialogues(how), Owners(columns) if is_guess else None
    layouts: dict[tuple[str, ...], Layout] = {}  # what columns hold is asked once for each header
    for number, (where, record) in enumerate(records, 1):
        header = tuple(record)
        layout = layouts.get(header)
        if layout is None:
            layout = layouts[header] = columns.layout(header)
        of_dialogue = dialogues.examples(record, where, number) if layout.is_dialogue else None
        for turn in of_dialogue or (row_example(record, layout, where, number, how),):
            if not (with_trees and turn.is_blank):
                if owners is not None:
                    owners.refuse_again(record, layout, where)
                for field in needs:
                    if getattr(turn, field) is None:
                        raise _lacking(field, record, layout, where, columns)
            yield turn
    _refuse_whole(path, layouts, how)


def _lacking(field: Field, record: dict[str, Any], layout: Layout, where: str, columns: Columns) -> DataError:
    """That a turn has no field which the model needs."""
    of_rows = {"utterance": (layout.text,), "parse": (layout.parse,), "label": layout.labels}
    own = [name for name in ((KEYS[field],) if layout.is_dialogue else of_rows[field]) if name is not None]
    wanted = " and ".join(map(repr, own)) or repr(field)
    return DataError(
        f"no {wanted}, which this model needs: {_WAYS_OUT[field]} ({listed(record, columns)})",
        about=where if record.keys() & set(own) else head_of(where),
    )


def _refuse_whole(path: str, layouts: dict[tuple[str, ...], Layout], how: Reading) -> None:
    """Refuse a file that has been read: no row has a column that is named, or one name may be a placeholder."""
    columns, present = how.columns, {name: None for header in layouts for name in header}
    missing = {name for names in columns.named.values() for name in names} - present.keys()
    is_table = present and not any(layout.is_dialogue for layout in layouts.values())
    if missing and is_table:
        raise DataError(
            f"no row has {' or '.join(map(repr, sorted(missing)))}, which data.columns names: name a column that "
            f"there is ({listed(present, columns)})",
            about=path,
        )
    if how.codes is not None and present:
        refuse_missing(how.codes, present, columns, path)
    if is_table and columns.messages is None:
        how.names.refuse_heavy(repr(columns.layout(present).unit), path)
