"""What a generator is asked with, and what it wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """What a text is to be like: public, or released.

    Attributes:
        stream: Names the random stream of the answer: another one, another answer.
        label: One of a public list.
        attributes: Name and value of each, of rows that were released.
    """

    stream: str
    label: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A text that a generator wrote. Only :mod:`doppel.evolution.evolve` makes one, of a generator's answer.

    Attributes:
        text: What it wrote.
        prompt: What it was asked with.
    """

    text: str
    prompt: Prompt


def fingerprint(pool: Iterable[Candidate]) -> str:
    """Return the SHA-256 of the texts and labels of a pool, in their order."""
    told = [[candidate.text, candidate.prompt.label] for candidate in pool]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def distinct(pool: Iterable[Candidate]) -> list[Candidate]:
    """Return the first candidate of each text and label: votes for one text are not split among its copies."""
    found: dict[tuple[str, str | None], Candidate] = {}
    for candidate in pool:
        found.setdefault((candidate.text, candidate.prompt.label), candidate)
    return list(found.values())
