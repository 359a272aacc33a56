"""Which turns of a training file are used, what is hidden of them, and whether each keeps its own tree."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from datamodules.guards.redaction import Redaction
from datamodules.reading.example import Example
from doppel.errors import DataError
from doppel.lispress import uses_function


@dataclass(frozen=True)
class Selection:
    """What happens to the turns of a file before they are tokenised.

    Formal guarantees:
        ``keep_function`` asks each turn by itself and ``keep_share`` the name of its unit. The names of utterances are
        places in the file, which move with a line at its front; there ``keep_share`` asks the content, and the k-th of
        equal turns by its k. So adding or removing one unit adds or removes at most one unit of what is kept: the
        guarantee for the kept turns holds for the file. The number of kept units counts as public, as N does
        everywhere; with ``keep_function`` it is an exact count of private text, which no ε covers and the card says.
        ``redact`` asks each turn by itself and keeps all (:class:`~datamodules.guards.redaction.Redaction`).

        ``shuffle_trees`` pairs each utterance with the tree of another turn. A row then holds two people's data, and a
        turn more or less would draw another permutation of all rows. The guarantee of such a run is therefore one for
        the *shuffled rows* as the input (adding or removing one row) and none for the people behind them: the run is a
        diagnostic, for data that may be read, and its samples are not to be released as private.

    The fields are arguments of :class:`~datamodules.dialogue_data_module.DialogueDataModule`; None changes nothing.
    """

    keep_function: str | None = None
    shuffle_trees: int | None = None
    keep_share: float | None = None
    redact: Redaction | None = None

    def __post_init__(self) -> None:
        """Refuse a share that keeps nothing or is none."""
        if self.keep_share is not None and not 0 < self.keep_share <= 1:
            raise DataError(f"keep_share is {self.keep_share}: give a number above 0, at most 1")

    @classmethod
    def from_config(cls, init_args: Mapping[str, Any]) -> Selection:
        """Build the selection of a data module, from its arguments in a saved configuration."""
        values: dict[str, Any] = {field.name: init_args.get(field.name) for field in fields(cls)}
        return cls(**{**values, "redact": Redaction.from_config(values["redact"])})

    @property
    def key(self) -> str:
        """Names the selection in fingerprints; empty where all turns are used as they are."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        parts["redact"] = None if self.redact is None else self.redact.key
        return ",".join(f"{name}={value!r}" for name, value in parts.items() if value is not None)

    def apply(self, turns: Sequence[Example], path: str, unit: str) -> list[Example]:
        """Select those turns of a file, read with this unit, that are trained on.

        Raises:
            DataError: No turn is left, or there are no trees to shuffle.
        """
        kept = list(turns)
        if self.keep_share is not None:
            names = _contents(turns) if unit == "utterance" else (turn.unit for turn in turns)
            kept = [turn for turn, name in zip(turns, names, strict=True) if _position(name) < self.keep_share]
        if not kept:
            raise DataError(f"keep_share {self.keep_share} leaves no unit of {path}: raise it")
        if self.keep_function is not None:
            try:
                kept = [turn for turn in kept if uses_function(turn.parse, self.keep_function)]
            except ValueError as error:
                raise DataError(f"keep_function: {error}") from None
            if not kept:
                raise DataError(
                    f"no request of {path} calls {self.keep_function}: give keep_function a call head of its trees, or "
                    "the start of one and a star"
                )
        if self.redact is not None:
            kept = self.redact.apply(kept)
        if self.shuffle_trees is not None:
            trees = [turn.parse for turn in kept]
            if None in trees:
                raise DataError(
                    f"a request of {path} has no tree, so shuffle_trees has nothing to give it: leave it out"
                )
            random.Random(self.shuffle_trees).shuffle(trees)
            kept = [replace(turn, parse=tree) for turn, tree in zip(kept, trees, strict=True)]
        return kept


def _contents(turns: Sequence[Example]) -> Iterator[str]:
    """Names of turns: what they hold, and a number that tells equal ones apart."""
    seen: Counter[str] = Counter()
    for turn in turns:
        content = repr((turn.utterance, turn.parse, turn.label))
        seen[content] += 1
        yield f"{seen[content]} {content}"


def _position(name: str) -> float:
    """Where a unit stands in [0, 1), uniformly, by its name alone."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big") / 2**56
