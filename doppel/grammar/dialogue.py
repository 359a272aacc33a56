"""Dialogues of the embedded corpus: which intent opens, which follows which, and the stream of turns."""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from doppel.grammar import style
from doppel.grammar.rules import read, rules
from doppel.grammar.synchronous import SynchronousGrammar


class GeneratedTurn(NamedTuple):
    """One turn of an invented dialogue.

    Attributes:
        utterance: What the user says.
        parse: Its Lispress tree.
        unit: The dialogue's id, such as ``grammar-3-000017``.
        domain: Topic, such as ``weather``.
    """

    utterance: str
    parse: str
    unit: str
    domain: str


MAX_TURNS = 6
END = "end"

_FLOW = read("dialogue")
#: Topic of each intent.
DOMAINS: dict[str, str] = _FLOW["domains"]
#: Weights of the intents that open a dialogue.
OPENINGS: dict[str, float] = _FLOW["openings"]
#: After an intent: the weight of what the user says next; "again" is a fresh request drawn from OPENINGS.
FOLLOWS: dict[str, dict[str, float]] = _FLOW["follows"]


@lru_cache(maxsize=4)
def _grammar(skew: float) -> SynchronousGrammar:
    return SynchronousGrammar(rules(), skew)


class _Table:
    """Weighted draw from a mapping."""

    def __init__(self, weights: dict[str, float], skew: float = 1.0) -> None:
        self.names = list(weights)
        self.cumulative = list(itertools.accumulate(weight**skew for weight in weights.values()))

    def draw(self, rng: random.Random) -> str:
        last = len(self.names) - 1
        return self.names[bisect(self.cumulative, rng.random() * self.cumulative[-1], 0, last)]


def generate(num_turns: int, seed: int, skew: float = 1.0) -> Iterator[GeneratedTurn]:
    """Yield turns of invented dialogues with an assistant for calendar, weather, people and places.

    Args:
        num_turns: How many turns to write; the last dialogue may be cut short.
        seed: Same seed, same turns; also part of the dialogue ids.
        skew: Exponent on all rule weights (1: as designed; above 1: sharper; towards 0: flatter), so that two
            corpora can have different distributions over the same language.

    Yields:
        The turns, dialogue by dialogue.

    Raises:
        ValueError: If ``num_turns`` or ``skew`` is negative.
    """
    if num_turns < 0 or skew < 0:
        raise ValueError(f"generate(num_turns={num_turns}, skew={skew}): both must be 0 or more")
    return _generate(num_turns, seed, skew)


def one_turn(rng: random.Random, skew: float = 1.0) -> GeneratedTurn:
    """Draw a turn at a random place of a dialogue, of which nothing else is drawn.

    Args:
        rng: Of which ``random()`` alone is called: first for the intent, then for the request from left to right.
        skew: As of :func:`generate`.
    """
    follows = {intent: _Table(weights) for intent, weights in FOLLOWS.items()}
    openings = _Table(OPENINGS, skew)
    intent = openings.draw(rng)
    for _ in range(int(rng.random() * MAX_TURNS)):
        after = follows[intent].draw(rng)
        if after == END:
            break
        intent = openings.draw(rng) if after == "again" else after
    utterance, parse = style.finish(*_grammar(skew).expand(intent, rng), rng)
    return GeneratedTurn(utterance, parse, "", DOMAINS[intent])


def _generate(num_turns: int, seed: int, skew: float) -> Iterator[GeneratedTurn]:
    grammar = _grammar(skew)
    openings = _Table(OPENINGS, skew)
    follows = {intent: _Table(weights) for intent, weights in FOLLOWS.items()}
    rng = random.Random(seed)
    written = 0
    for dialogue in itertools.count():
        unit = f"grammar-{seed}-{dialogue:06d}"
        intent = openings.draw(rng)
        for _ in range(MAX_TURNS):
            if written == num_turns:
                return
            utterance, parse = style.finish(*grammar.expand(intent, rng), rng)
            yield GeneratedTurn(utterance, parse, unit, DOMAINS[intent])
            written += 1
            intent = follows[intent].draw(rng)
            if intent == END:
                break
            if intent == "again":
                intent = openings.draw(rng)
