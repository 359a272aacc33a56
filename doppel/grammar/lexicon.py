"""Open-class words: people, places, venues, event subjects; drawn from lists or composed of their entries.

Every drawn pair is (text, quoted text): the string of the tree is the text as the user wrote it. The rare names are
those of the US census of 1990 (public domain) that the lists of common names lack, without those that are plain words.
"""

from __future__ import annotations

import random
from functools import cache
from importlib import resources

RARE_SHARE = 0.12
"""Share of names drawn from the long lists of rare names, so that copying cannot be learned by heart."""

CITY_ENDINGS = ("City", "Falls", "Beach", "Springs", "Park")
HOMES = ("house", "office", "place", "apartment")


@cache
def words(name: str) -> tuple[str, ...]:
    """Read the entries of the word list ``lexicon/<name>.txt``, one a line."""
    text = resources.files(__package__).joinpath("lexicon", f"{name}.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line)


def pick(rng: random.Random, name: str) -> str:
    """Draw uniformly from a word list."""
    entries = words(name)
    return entries[int(rng.random() * len(entries))]


def _rare_or_common(rng: random.Random, name: str) -> str:
    return pick(rng, f"rare_{name}" if rng.random() < RARE_SHARE else name)


def quoted(text: str) -> tuple[str, str]:
    """Return the text with its Lispress string."""
    return text, f'"{text}"'


def person(rng: random.Random) -> tuple[str, str]:
    """Draw a person's name: first name, full name, or first name with initial."""
    first = _rare_or_common(rng, "first_names")
    draw = rng.random()
    if draw < 0.68:
        return quoted(first)
    if draw < 0.95:
        return quoted(f"{first} {_rare_or_common(rng, 'surnames')}")
    return quoted(pick(rng, "surnames"))


def city(rng: random.Random) -> tuple[str, str]:
    """Draw a city, state, country or landmark."""
    draw = rng.random()
    if draw < RARE_SHARE:
        return quoted(pick(rng, "rare_surnames"))
    if draw < 0.2:
        return quoted(f"{pick(rng, 'rare_surnames')} {CITY_ENDINGS[int(rng.random() * 5)]}")
    return quoted(pick(rng, "places"))


def venue(rng: random.Random) -> tuple[str, str]:
    """Draw a restaurant, bar, gym, museum … with a composed name."""
    draw = rng.random()
    if draw < 0.35:
        name = f"{pick(rng, 'venue_words')} {pick(rng, 'venue_nouns')}"
    elif draw < 0.55:
        name = f"{pick(rng, 'venue_words')} {pick(rng, 'venue_kinds')}"
    elif draw < 0.75:
        owner = pick(rng, "rare_surnames" if rng.random() < 0.3 else "first_names")
        name = f"{owner}'s" if rng.random() < 0.5 else f"{owner}'s {pick(rng, 'venue_kinds')}"
    elif draw < 0.85:
        name = pick(rng, "rare_surnames")
    elif draw < 0.95:
        name = f"{pick(rng, 'places')} {pick(rng, 'venue_kinds')}"
    else:
        name = f"{pick(rng, 'venue_nouns')} and {pick(rng, 'venue_nouns')}"
    return quoted(name if rng.random() < 0.9 else f"the {name}")


def place_kind(rng: random.Random) -> tuple[str, str]:
    """Draw a kind of place to look for, such as a coffee shop."""
    return quoted(pick(rng, "place_kinds"))


def location(rng: random.Random) -> tuple[str, str]:
    """Draw where an event takes place: a room, a venue, a city."""
    draw = rng.random()
    if draw < 0.4:
        return quoted(pick(rng, "locations"))
    if draw < 0.5:
        return quoted(f"{pick(rng, 'first_names')}'s {HOMES[int(rng.random() * 4)]}")
    return venue(rng) if draw < 0.8 else city(rng)


def comment(rng: random.Random) -> tuple[str, str]:
    """Return a remark sent with the answer to an invitation."""
    return quoted(pick(rng, "comments"))


def _plain_subject(rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.3:
        return pick(rng, "activities")
    if draw < 0.55:
        return f"{pick(rng, 'modifiers')} {pick(rng, 'activities')}"
    if draw < 0.7:
        return f"{pick(rng, 'nouns')} {pick(rng, 'activities')}"
    if draw < 0.78:
        return f"{pick(rng, 'modifiers')} {pick(rng, 'nouns')} {pick(rng, 'activities')}"
    if draw < 0.84:
        return f"{pick(rng, 'modifiers')} {pick(rng, 'nouns')}"
    if draw < 0.89:
        return f"{pick(rng, 'first_names')}'s {pick(rng, 'activities')}"
    if draw < 0.92:
        return f"{pick(rng, 'activities')} and {pick(rng, 'activities')}"
    if draw < 0.95:
        verb = ("call", "pick up", "visit", "email", "pay", "text", "meet")[int(rng.random() * 7)]
        return f"{verb} {pick(rng, 'first_names')}"
    if draw < 0.97:
        return f"{pick(rng, 'rare_surnames')} {pick(rng, 'activities')}"
    return f"{pick(rng, 'venue_words')} {pick(rng, 'nouns')}"


def subject(rng: random.Random) -> tuple[str, str]:
    """Return the title of an event, one to four words, in one of the spellings people use."""
    text = _plain_subject(rng)
    draw = rng.random()
    if draw < 0.22:
        text = " ".join(word[0].upper() + word[1:] for word in text.split(" "))
    elif draw < 0.27:
        text = text[0].upper() + text[1:]
    return quoted(text)


def title(rng: random.Random) -> tuple[str, str]:
    """Return the title of a song, an album or a film, of two words."""
    return quoted(f"{pick(rng, 'venue_words')} {pick(rng, 'venue_nouns')}")
