"""One user turn, the record that every reader produces and every data module consumes."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Literal

Field = Literal["utterance", "parse", "label"]
Unit = Literal["utterance", "dialogue", "user"]


@dataclass(frozen=True, slots=True)
class Turn:
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


@dataclass(frozen=True)
class Placed:
    """A turn and where it stands, such as ``reviews.csv:7``; None for a row without text, which is no turn.

    ``owner`` is the column of the file that seems to say whose a row is.
    """

    where: str
    turn: Turn | None
    owner: str | None = None


def unit_name(value: object) -> str:
    """The name of a unit: NFC and without outer spaces, so that two spellings of a name are one person.

    Raises:
        ValueError: It is empty, or neither a text nor a whole number; the message does not quote it.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"is a {type(value).__name__}: give a text or a whole number")
    name = unicodedata.normalize("NFC", str(value)).strip()
    if not name:
        raise ValueError("is empty, so that strangers would be one unit: give everybody a name")
    return name
