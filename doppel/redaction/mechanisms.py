"""The mechanisms of word-level differential privacy, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from doppel.redaction.word_level import WordMechanism
    from doppel.redaction.word_vectors import WordVectors

MechanismName = Literal["feyisetan", "santext", "custext"]


def word_mechanism(name: MechanismName, vectors: WordVectors, epsilon: float, set_size: int = 20) -> WordMechanism:
    """Return a mechanism over a vocabulary; its ε is that of one word (:mod:`~doppel.redaction.word_level`).

    Args:
        name: Which one.
        vectors: The vocabulary.
        epsilon: ε > 0.
        set_size: Words of a set of ``custext``.

    Raises:
        UserError: ``epsilon`` or ``set_size`` is out of range.
    """
    from doppel.redaction.custext import CusText  # by those who draw alone: help is there at once
    from doppel.redaction.feyisetan import Feyisetan
    from doppel.redaction.santext import SanText

    if name == "custext":
        return CusText(vectors, epsilon, set_size)
    return (Feyisetan if name == "feyisetan" else SanText)(vectors, epsilon)
