"""The embedded grammar as a generator, for the quickstart's size: it costs nothing and needs no model."""

from __future__ import annotations

import random
from collections.abc import Sequence

from doppel.evolution.candidates import Candidate, Prompt
from doppel.grammar.dialogue import one_turn

#: Draws until a turn of the wanted topic comes.
_TRIES = 200


class GrammarGenerator:
    """Writes requests of the embedded grammar, and varies them by drawing a part of a request anew.

    A request is a function of the numbers that were drawn for it: first those of the intent and of the rule, then,
    constituent by constituent from left to right, those of names, times and places, last those of the spelling. A
    variation keeps the first of them, as many as a uniform draw says, and draws the others anew. So it resamples the
    last constituents, seldom the intent too. A text whose numbers are not known, because this object did not write it,
    has no variation.

    A label is a topic of the grammar, such as ``weather``; a turn of another one is drawn again. Attributes change
    nothing.

    Args:
        skew: Of the grammar's weights, see :func:`doppel.grammar.generate`.
    """

    def __init__(self, skew: float = 1.0) -> None:
        self.skew = skew
        self._drawn: dict[str, tuple[float, ...]] = {}

    def random(self, prompts: Sequence[Prompt]) -> list[str]:
        """Generate a request for each prompt."""
        return [self._write((), prompt) for prompt in prompts]

    def vary(self, parents: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[str]:
        """Generate a request that begins as the candidate's draws do."""
        found = []
        for parent, prompt in zip(parents, prompts, strict=True):
            drawn = self._drawn.get(parent.text, ())
            keeps = int(random.Random(f"{prompt.stream}/keeps").random() * len(drawn))
            found.append(self._write(drawn[:keeps], prompt) if drawn else "")
        return found

    def _write(self, kept: tuple[float, ...], prompt: Prompt) -> str:
        for attempt in range(_TRIES):
            numbers = _Recorded(kept, f"{prompt.stream}/{attempt}")
            turn = one_turn(numbers, self.skew)
            if prompt.label in (None, turn.domain):
                self._drawn.setdefault(turn.utterance, tuple(numbers.drawn))
                return turn.utterance
        return ""


class _Recorded(random.Random):
    """Gives some numbers first and draws the others, and keeps them all."""

    def __init__(self, kept: Sequence[float], seed: str) -> None:
        super().__init__(seed)
        self._kept, self.drawn = list(kept), list[float]()

    def random(self) -> float:
        """The next number in [0, 1)."""
        number = self._kept[len(self.drawn)] if len(self.drawn) < len(self._kept) else super().random()
        self.drawn.append(number)
        return number
