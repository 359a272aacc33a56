"""One user turn, the record that every reader produces and every data module consumes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

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
        where: Where it stands, such as ``reviews.csv:7``; not compared.
        owner: The column of the file that seems to say whose it is; likewise.
    """

    utterance: str
    parse: str | None
    unit: str
    label: str | None = None
    where: str = field(default="", compare=False)
    owner: str | None = field(default=None, compare=False)

    @property
    def is_blank(self) -> bool:
        """Whether nothing was said."""
        return not self.utterance.strip()


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
