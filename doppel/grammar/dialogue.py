"""Dialogues of the embedded corpus: which intent opens, which follows which, and the stream of turns."""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from doppel.grammar import calendar_requests, events, people, places, social, style, times, weather
from doppel.grammar.synchronous import Draw, GrammarError, Rule, RuleSet, SynchronousGrammar


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

DOMAINS = {
    "create": "calendar",
    "find": "calendar",
    "find_more": "calendar",
    "update": "calendar",
    "delete": "calendar",
    "respond": "calendar",
    "revise": "calendar",
    "choose": "calendar",
    "confirm": "calendar",
    "confirm_with_more": "calendar",
    "reject": "calendar",
    "asks_free": "people",
    "asks_who": "people",
    "weather": "weather",
    "weather_more": "weather",
    "places": "places",
    "places_more": "places",
    "thanks": "chat",
    "fence": "other",
}

OPENINGS = {
    "create": 40.0, "find": 18.0, "update": 7.0, "delete": 6.0, "weather": 9.0, "asks_who": 5.0,
    "asks_free": 3.5, "places": 4.5, "fence": 5.0, "respond": 2.5, "thanks": 1.5,
}  # fmt: skip

# After an intent: the weight of what the user says next; "again" is a fresh request drawn from OPENINGS.
FOLLOWS: dict[str, dict[str, float]] = {
    "create": {
        "confirm": 28, "revise": 24, "choose": 5, "confirm_with_more": 2.5, "reject": 3, "update": 4,
        "again": 14, "fence": 4, "thanks": 3, END: 10,
    },
    "find": {"again": 26, "find_more": 18, "delete": 5, "update": 6, "thanks": 16, "fence": 5, END: 24},
    "find_more": {"again": 30, "find_more": 14, "thanks": 22, "update": 6, "delete": 5, END: 23},
    "update": {"confirm": 34, "revise": 10, "choose": 4, "reject": 4, "again": 18, "thanks": 6, END: 12},
    "delete": {"confirm": 38, "choose": 4, "reject": 5, "again": 20, "thanks": 8, END: 15},
    "respond": {"confirm": 20, "again": 30, "thanks": 22, END: 25},
    "revise": {
        "confirm": 34, "revise": 18, "reject": 4, "choose": 4, "again": 12, "thanks": 6, "fence": 3, END: 8,
    },
    "choose": {"confirm": 40, "revise": 10, "again": 20, "thanks": 12, END: 14},
    "confirm": {"again": 44, "thanks": 22, "find_more": 2, "fence": 3, END: 27},
    "confirm_with_more": {"confirm": 30, "again": 20, "thanks": 20, END: 20},
    "reject": {"again": 40, "revise": 16, "thanks": 16, END: 26},
    "weather": {"weather_more": 30, "weather": 12, "again": 18, "thanks": 16, "fence": 3, END: 24},
    "weather_more": {"weather_more": 22, "again": 22, "thanks": 20, END: 28},
    "asks_who": {"asks_who": 34, "again": 22, "thanks": 14, "fence": 4, END: 24},
    "asks_free": {"create": 30, "again": 22, "asks_free": 12, "thanks": 12, END: 22},
    "places": {"places": 26, "places_more": 12, "again": 22, "thanks": 14, "fence": 4, END: 22},
    "places_more": {"places": 20, "places_more": 12, "again": 24, "thanks": 18, END: 24},
    "thanks": {"again": 22, END: 78},
    "fence": {"again": 44, "thanks": 12, "fence": 8, END: 34},
}  # fmt: skip


def rules() -> RuleSet:
    """All rules of all topics.

    Raises:
        GrammarError: If two topics define the same nonterminal.
    """
    merged: dict[str, Sequence[Rule] | Draw] = {}
    for topic in (times, people, events, calendar_requests, weather, places, social):
        twice = merged.keys() & topic.RULES.keys()
        if twice:
            raise GrammarError(f"{topic.__name__} defines {sorted(twice)} again: rename one of the two")
        merged.update(topic.RULES)
    return merged


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
    """Turns of invented dialogues with an assistant for calendar, weather, people and places.

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
