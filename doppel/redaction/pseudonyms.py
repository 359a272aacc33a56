"""Made-up names in place of hidden ones: the same for the same name, wherever it stands."""

from __future__ import annotations

import random
from collections.abc import Callable

from doppel.grammar import lexicon
from doppel.redaction.mask import Pseudonym


def pseudonyms(keyed: Callable[[str], str]) -> Pseudonym:
    """Return pseudonyms drawn of public lists, by a keyed hash of what they stand for.

    One name has one pseudonym in all rows and files, and in all processes with the key, and each row is dealt with by
    itself. Two names may share one. It is a pseudonym, no anonymity: rows of one name stay linked, and whoever has the
    key can test a guess.

    Args:
        keyed: A hash under a key that stays secret, such as :func:`doppel.privacy.fingerprint.keyed_fingerprint`.

    Returns:
        A function of kind (``person``, ``city``, ``venue``, ``email``, ``phone``, ``number``) and key of a name; None
        for any other kind.
    """

    def pseudonym(kind: str, name: str) -> str | None:
        draw = _DRAWS.get(kind)
        return None if draw is None else draw(random.Random(keyed(f"pseudonym {kind} {name}")), name)

    return pseudonym


def _email(rng: random.Random, name: str) -> str:
    return f"{lexicon.pick(rng, 'first_names')}.{lexicon.pick(rng, 'surnames')}@example.com".lower().replace(" ", "")


def _digits(rng: random.Random, name: str) -> str:
    """Other digits, none that begins with 0, and all else as it is."""
    drawn, before = [], ""
    for sign in name:
        drawn.append(rng.choice("0123456789" if before.isdigit() else "123456789") if sign.isdigit() else sign)
        before = sign
    return "".join(drawn)


_DRAWS: dict[str, Callable[[random.Random, str], str]] = {
    "person": lambda rng, name: lexicon.person(rng)[0],
    "city": lambda rng, name: lexicon.city(rng)[0],
    "venue": lambda rng, name: lexicon.venue(rng)[0],
    "email": _email,
    "phone": _digits,
    "number": _digits,
}
