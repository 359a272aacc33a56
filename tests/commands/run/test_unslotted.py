"""What the table of slots leaves in the trees of the reference is told."""

from __future__ import annotations

from commands.run.unslotted import unslotted
from datamodules.turn import Turn
from doppel.grammar.slot_table import SHIPPED, slot_table


def test_names_without_a_kind_are_told_and_numbers_and_constants_are_not() -> None:
    """With their share and examples; nothing where the table has all, or little is left."""
    known = Turn("lunch at 2", '(& (Event.subject_? (?= "Lunch")) (x "2") (Path.apply "output"))', "u")
    unknown = Turn("fly Delta", '(Flight.airline_? (?= "Delta"))', "u")
    table = slot_table(SHIPPED)
    assert unslotted([known, Turn("hello", None, "u")], table) == []
    assert unslotted([known] * 30 + [unknown], table) == []
    (told,) = unslotted([known, unknown], table)
    assert told.startswith("50% of the quoted strings") and '"delta"' in told


def test_names_that_are_slots_of_the_tree_alone_are_counted() -> None:
    """Another form of a name is one, another spelling is not, nor what is said as a part of a longer name."""
    tree = '(& (Event.subject_? (?= "Lunch")) (PersonName.apply "José"))'
    turns = [Turn("Lunch with JOSE\u0301", tree, "u"), Turn("lunch with Joses boss", tree, "u")]
    turns.append(Turn("call Ana Lee", '(& (PersonName.apply "Ana") (PersonName.apply "Ana Lee"))', "u"))
    (told,) = unslotted(turns, slot_table(SHIPPED))
    assert told.startswith("1 of 6 names in the reference's trees") and '"José"' in told
