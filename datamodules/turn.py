"""One user turn, the record that every reader produces and every data module consumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Field = Literal["utterance", "parse", "domain"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user said, what it means, and whose it is.

    Attributes:
        utterance: The text that the user typed or spoke.
        parse: The Lispress tree of the utterance, or None where the data has none.
        unit: Name of the privacy unit the turn belongs to; all turns of a unit are clipped together.
        domain: Domain label of the turn, for domain-conditioned models.
        weight: How much the turn counts in training, in [0, 1]. A function of this turn alone, by public means: see
            :mod:`commands.data.upweight`.
    """

    utterance: str
    parse: str | None
    unit: str
    domain: str | None = None
    weight: float = 1.0
