"""What a generator can do: write, and vary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from doppel.evolution.candidates import Candidate, Prompt


class Generator(Protocol):
    """Writes texts for prompts. It is given nothing private, and may be anybody's server.

    Formal guarantees:
        :class:`~doppel.evolution.candidates.Prompt` and `Candidate` are all that reaches a generator, and `evolve`
        makes both, of public and released things. A private text is neither.

    The answer to a prompt depends on the prompt, its stream and the candidate alone, as far as the generator can, not
    on which others are asked for with it.
    """

    def random(self, prompts: Sequence[Prompt]) -> list[str]:
        """Generate a text for each prompt; empty where there is none."""

    def vary(self, parents: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[str]:
        """Generate a text like each of the candidates; empty where there is none."""
