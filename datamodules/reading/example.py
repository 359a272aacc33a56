"""One user turn, the record that every reader produces and every data module consumes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from doppel.files import kind_of

Field = Literal["utterance", "parse", "label"]
Unit = Literal["utterance", "dialogue", "user"]
#: What tables say where they know nothing, in one case and without signs.
_NOBODY = {"", "null", "nan", "none", "na", "n/a", "nat", "undefined", "\\n"}


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


def unit_name(value: object) -> str:
    """Normalise the name of a unit: NFC and without outer blanks, so that two spellings are one person.

    Formal guarantees:
        Two names are one unit only where their letters are the same: nothing but blanks is taken away, and a name that
        is said to be missing, or has a control character, which tables and terminals leave out, is refused. Strangers
        in one unit would be clipped together, so that one of them could change a sum by more than a unit may.

    Raises:
        ValueError: It is empty or says so, as ``NULL`` does, has a control character, or is neither a text nor a whole
            number; the message does not quote it.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise ValueError(f"is {kind_of(value)}: give a text or a whole number")
    name = unicodedata.normalize("NFC", "" if value is None else str(value)).strip(" \t\r\n")
    if re.search(r"[\0-\x1f\x7f-\x9f]", name):
        raise ValueError("has a control character, so that two names may look like one: write it without")
    name = name.strip()
    if name.casefold().strip("<>()[]#-._?*'\" ") in _NOBODY:
        raise ValueError(
            "is empty, or says that nothing is known (such as NULL, NaN, None, n/a), so that strangers would be one "
            "unit: give everybody a name"
        )
    return name


def named_before(
    places: dict[tuple[str, str], str], owners: Iterable[str], row: Mapping[str, object], where: str
) -> tuple[str, str] | None:
    """Note whose a row is; return the column by which it is somebody's of whom there was one before, and where that is.

    Args:
        places: Where the first row of each stands, by the column and the name; this row's are added.
        owners: Columns that seem to say whose a row is.
        row: Its cells.
        where: Its place.
    """
    for column in owners:
        try:
            key = column, unit_name(row.get(column))
        except ValueError:  # it names nobody
            continue
        if key in places:
            return column, places[key]
        places[key] = where
    return None
