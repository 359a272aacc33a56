"""Looks of typed text: letter case, punctuation, dropped apostrophes; strings of the tree follow suit."""

from __future__ import annotations

import random
import re

_A_VOWEL = re.compile(r"\b([Aa]) (?=[aeiouAEIO])")


def _map_strings(tree: str, change: str) -> str:
    """Apply ``lower`` or ``apostrophe`` to every quoted string of a tree (which hold no escaped quotes)."""
    if '"' not in tree:
        return tree
    parts = tree.split('"')
    for i in range(1, len(parts), 2):
        parts[i] = parts[i].lower() if change == "lower" else parts[i].replace("'", "")
    return '"'.join(parts)


def _capitalise(text: str, tree: str) -> tuple[str, str]:
    """Upper first letter; a string of the tree that opened the utterance gets it too."""
    capital = text[0].upper() + text[1:]
    if capital != text and '"' in tree:
        parts = tree.split('"')
        for i in range(1, len(parts), 2):
            if parts[i] and text.startswith(parts[i]) and parts[i] not in capital:
                parts[i] = parts[i][0].upper() + parts[i][1:]
        tree = '"'.join(parts)
    return capital, tree


def finish(text: str, tree: str, rng: random.Random) -> tuple[str, str]:
    """Give a grammatical (phrase, tree) pair the looks of typed text, in both alike.

    Every quoted string of the tree that occurs in the phrase also occurs in the finished utterance.
    """
    text = " ".join(text.split())
    if _A_VOWEL.search(text) and not _A_VOWEL.search(tree):
        text = _A_VOWEL.sub(r"\1n ", text)
    draw = rng.random()
    if draw < 0.2:
        text, tree = text.lower(), _map_strings(tree, "lower")
    elif draw < 0.78:
        text, tree = _capitalise(text, tree)
    if "'" in text and rng.random() < 0.08:
        text, tree = text.replace("'", ""), _map_strings(tree, "apostrophe")
    draw = rng.random()
    if text[-1] in "?.!":
        if draw < 0.3 and len(text) > 1:
            text = text[:-1]
    elif draw < 0.3:
        text += "."
    elif draw < 0.32:
        text += "!"
    elif draw < 0.34:
        text += " ."
    return text, tree
