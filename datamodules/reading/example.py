"""One user turn, the record that every reader produces and every data module consumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from datamodules.reading.unit_names import folded_name, unit_name

Field = Literal["utterance", "parse", "label"]
Unit = Literal["utterance", "dialogue", "user"]


@dataclass(frozen=True, slots=True)
class Example:
    """What a user said, what it means, and whose it is.

    Attributes:
        utterance: The text that the user typed or spoke.
        parse: The Lispress tree of the utterance, or None where the data has none.
        unit: Name of the privacy unit the turn belongs to; all turns of a unit are clipped together.
        label: Its intent, topic or any other label, for models of utterances given a label.
    """

    utterance: str
    parse: str | None
    unit: str
    label: str | None = None


class Placed(NamedTuple):
    """A turn and where it stands, such as ``reviews.csv:7``; None for a row without text, which is no turn.

    ``owner`` is the column of the file that seems to say whose a row is.
    """

    where: str
    turn: Example | None
    owner: str | None = None


def named_before(
    places: dict[tuple[str, str], str], owners: Iterable[str], row: Mapping[str, object], where: str
) -> tuple[str, str] | None:
    """Note whose a row is; return the column by which it is somebody's of whom there was one before, and where that is.

    Args:
        places: Where the first row of each stands, by the column and the name, folded
            (:func:`~datamodules.reading.unit_names.folded_name`); this row's are added.
        owners: Columns that seem to say whose a row is.
        row: Its cells.
        where: Its place.
    """
    for column in owners:
        try:
            key = column, folded_name(unit_name(row.get(column)))
        except ValueError:  # it names nobody
            continue
        if key in places:
            return column, places[key]
        places[key] = where
    return None


def with_distinct_units(turns: list[Example]) -> list[Example]:
    """Make turns units of their own: a name that came before gets its place, and more until nobody is called so.

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
