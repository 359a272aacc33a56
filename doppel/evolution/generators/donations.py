"""Texts that people have given to be shown to a generator, and those that are nearest to a prompt."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from doppel.evolution.candidates import Prompt


@dataclass(frozen=True)
class Donation:
    """A text that whoever wrote it has given away: it is no private text any more.

    Attributes:
        text: The text.
        attributes: What it is like, by the names that released rows have, and its ``label``.
    """

    text: str
    attributes: Mapping[str, str] = field(default_factory=dict)

    def away(self, prompt: Prompt) -> int:
        """Return attributes of a prompt, its label included, that the text has not (Hamming distance)."""
        wanted = [*prompt.attributes, *([("label", prompt.label)] if prompt.label else [])]
        return sum(self.attributes.get(name) != value for name, value in wanted)


def nearest(donations: Sequence[Donation], prompt: Prompt, num: int) -> list[str]:
    """Return texts of the donations nearest to a prompt, of equally near ones by chance.

    Args:
        donations: All there are.
        prompt: What a text is to be like; its stream names the chance.
        num: How many, or all if there are fewer.
    """
    shuffled = random.Random(f"{prompt.stream}/examples").sample(list(donations), len(donations))
    return [donation.text for donation in sorted(shuffled, key=lambda donation: donation.away(prompt))[:num]]
