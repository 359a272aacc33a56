"""Canaries: made-up turns that an audit hides in training data by the toss of a coin."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.text_format import TextFormat
from doppel.errors import DataError
from doppel.files import read_json_lines, write_json_lines
from doppel.grammar.lexicon import words

NUM_WORDS = 8
"""Words of a made-up utterance: enough that none is said by chance, and that a copy counts as long."""
_LISTS = ("activities", "modifiers", "nouns", "first_names", "surnames", "places", "venue_words", "venue_nouns")


@dataclass(frozen=True)
class Canary:
    """One canary and its coin.

    Attributes:
        turn: The text; its unit is its own.
        included: Whether the training data hold it.
        loss_before: Its loss under the model before the training, in nats a token.
    """

    turn: Example
    included: bool
    loss_before: float


def make_examples(num: int, template: Sequence[Example], rng: random.Random) -> list[Example]:
    """Make up canaries: turns with the fields and the labels that the turns of the data, ``template``, have.

    The utterance is eight random words of the embedded lexicon, a public list. A parse tree quotes eight other
    words, so that a model cannot read an utterance off its tree; they stand where no table of slots has a kind, for a
    model that reads slots would see one tree in all canaries. A label is one of the data's, drawn at random.
    """
    has_parse = any(turn.parse is not None for turn in template)
    labels = sorted({turn.label for turn in template if turn.label is not None})
    turns = []
    for _ in range(num):
        drawn = rng.sample(_vocabulary(), 2 * NUM_WORDS)
        subject = " ".join(drawn[NUM_WORDS:])
        parse = f'(Yield (Create (?= "{subject}")))' if has_parse else None
        turns.append(Example(" ".join(drawn[:NUM_WORDS]), parse, "", rng.choice(labels) if labels else None))
    return turns


def read_canary_examples(path: str, text_format: TextFormat) -> list[Example]:
    """Read canaries that a user wrote: plain lines ``{"utterance", "parse", "label"}``.

    Raises:
        DataError: A line cannot be read, lacks what the model needs, or is too long for it.
    """
    turns = read_examples(path, "utterance")
    for number, turn in enumerate(turns, start=1):
        if len(text_format.encode(turn).input_ids) > text_format.max_length:
            raise DataError(
                f"canary {number} has more tokens than the model takes ({text_format.max_length}): shorten it",
                about=path,
            )
    if len(turns) < 2:
        raise DataError(f"{path} holds {len(turns)} canary: give at least two, better some hundreds")
    return turns


def audit_turns(turns: Iterable[Example], canaries: Sequence[Canary], text_format: TextFormat) -> list[Example]:
    """Return the training data of the audited run: all turns, then one unit for each canary.

    A canary whose coin came up tails leaves a unit without content: a line that is too long for the model and so
    contributes zero. The number of units, and with it the sample rate, the noise and the number of steps, is then the
    same whatever the coins; they decide on contributions alone, which is what adding or removing a unit means to the
    accountant.
    """
    data = list(turns)
    prefix = "canary"
    while any(turn.unit.startswith(prefix) for turn in data):
        prefix += "_"
    empty = _over_long(text_format, canaries[0].turn)
    for number, canary in enumerate(canaries):
        data.append(replace(canary.turn if canary.included else empty, unit=f"{prefix}-{number}"))
    return data


def write_canaries(canaries: Sequence[Canary], path: Path) -> None:
    """Write canaries with their coins."""
    write_json_lines(path, ({**asdict(c.turn), "included": c.included, "loss_before": c.loss_before} for c in canaries))


def read_canaries(path: Path) -> list[Canary]:
    """Read what ``write_canaries`` wrote."""
    return [
        Canary(Example(r["utterance"], r["parse"], r["unit"], r["label"]), r["included"], r["loss_before"])
        for _, r in read_json_lines(path)
    ]


@cache
def _vocabulary() -> tuple[str, ...]:
    entries = {word.lower() for name in _LISTS for entry in words(name) for word in entry.split()}
    return tuple(sorted(word for word in entries if word.isascii() and word.isalpha() and len(word) > 2))


def _over_long(text_format: TextFormat, turn: Example) -> Example:
    """A turn with the fields of another that is longer than the model takes."""
    length = text_format.max_length
    while True:
        text = " ".join(["nothing"] * length)
        parse = None if turn.parse is None else f"(Yield (Find{' 1' * length}))"
        filler = Example(text, parse, "", turn.label)
        if len(text_format.encode(filler).input_ids) > text_format.max_length:
            return filler
        length *= 2
