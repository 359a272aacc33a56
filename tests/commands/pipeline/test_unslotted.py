"""What the table of slots leaves in the trees of the reference is told."""

from __future__ import annotations

from commands.pipeline.unslotted import unslotted
from datamodules.turn import Turn
from doppel.grammar.slot_table import SHIPPED, slot_table


def test_names_without_a_kind_are_told_and_numbers_and_constants_are_not() -> None:
    """With their share and examples; nothing where the table has all, or little is left."""
    known = Turn("lunch at 2", '(& (Event.subject_? (?= "Lunch")) (x "2") (Path.apply "output"))', "u")
    unknown = Turn("fly Delta", '(Flight.airline_? (?= "Delta"))', "u")
    table = slot_table(SHIPPED)
    assert unslotted([known, Turn("hello", None, "u")], table) is None
    assert unslotted([known] * 30 + [unknown], table) is None
    told = unslotted([known, unknown], table)
    assert told is not None and told.startswith("50% of the quoted strings") and '"delta"' in told
