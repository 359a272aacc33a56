"""Rows and published dialogues become turns: each of its own row alone, whatever the form of the file."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import get_args

from datamodules.reading.cells import examples_of
from datamodules.reading.columns import Columns, codes_of, rows_of, unit_of
from datamodules.reading.conversations import user_turns
from datamodules.reading.dialogues import dialogue_turns
from datamodules.reading.embedded import embedded_records, is_embedded
from datamodules.reading.example import Example, Field, Unit, with_distinct_units
from datamodules.reading.files import open_files, state_of
from datamodules.reading.records import records_of
from datamodules.reading.units import NameRule, Units, check_rule
from datamodules.reading.utterances import Utterances, known, remembering
from doppel.errors import DataError
from doppel.garbage import no_collection


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
        state: Hashable = path
        records = embedded_records(path, unit or "utterance")
    else:
        files = open_files(path)
        state, records = files.state, records_of(files)
    here, records = columns.in_file(records)
    codes = codes_of(columns) if here.attributes is not None else None
    protected = unit_of(unit, here)
    rows = rows_of(records, here, codes, path)
    turns = user_turns(rows, protected) if here.messages is not None else dialogue_turns(rows, protected)
    examples = examples_of(turns, codes, Units(unit, protected, unit_names), with_trees, needs, path)
    yield from remembering(examples, (state, columns.key))


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
