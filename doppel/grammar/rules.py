"""The rules of the embedded corpus: files ``rules/TOPIC.yaml``, and what is counted out or drawn by code.

A file maps a nonterminal to its productions, each with a relative ``weight``, the ``tree`` that it means and the
``phrases`` that say it, in the notation of :mod:`doppel.grammar.synchronous`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import yaml

from doppel.grammar import lexicon, times
from doppel.grammar.synchronous import Draw, GrammarError, Rule, RuleSet

TOPICS = ("times", "people", "events", "requests", "weather", "places", "social")

#: Nonterminals whose words are drawn from lists or composed.
DRAWN: Mapping[str, Draw] = {
    "name": lexicon.person,
    "subject": lexicon.subject,
    "location": lexicon.location,
    "comment": lexicon.comment,
    "city": lexicon.city,
    "venue": lexicon.venue,
    "place_kind": lexicon.place_kind,
}


def read(name: str) -> dict[str, Any]:
    """Return the content of ``rules/NAME.yaml``."""
    text = resources.files(__package__).joinpath("rules", f"{name}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content


def productions(entries: Sequence[Mapping[str, Any]], place: str) -> list[Rule]:
    """Return productions of one nonterminal as a rule file has them.

    Args:
        entries: Mappings with ``weight``, ``tree`` and ``phrases``.
        place: What an error calls them, such as ``people.yaml, guest``.

    Raises:
        GrammarError: One lacks a part, has another one, a weight of 0 or less, or text that is none.
    """
    found = []
    for number, entry in enumerate(entries, start=1):
        if entry.keys() != {"weight", "tree", "phrases"}:
            raise GrammarError(f"{place}, rule {number} has {', '.join(entry)}: give weight, tree and phrases")
        texts = [entry["tree"], *entry["phrases"]]
        if not entry["weight"] > 0 or len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            raise GrammarError(f"{place}, rule {number}: give a weight above 0, a tree and one phrase or more, as text")
        found.append(Rule(float(entry["weight"]), texts[0], tuple(texts[1:])))
    return found


def rules() -> RuleSet:
    """Return all rules of all topics.

    Raises:
        GrammarError: Two places define the same nonterminal, or a file holds something that is no rule.
    """
    merged: dict[str, Sequence[Rule] | Draw] = {**times.counted_out(), **DRAWN}
    for topic in TOPICS:
        content = read(topic)
        twice = merged.keys() & content.keys()
        if twice:
            raise GrammarError(f"{topic}.yaml defines {sorted(twice)} again: rename one of the two")
        merged |= {name: productions(entries, f"{topic}.yaml, {name}") for name, entries in content.items()}
    return merged
