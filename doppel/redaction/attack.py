"""What redacted texts still tell: a fresh classifier of them, and hidden strings that a model's samples replay."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from doppel.errors import DataError
from doppel.text.occurrences import Strings
from doppel.text.words import signs_of

_FOLDS = 5


@dataclass(frozen=True)
class Accuracy:
    """How often a classifier of held-out texts is right about the set that they are from.

    Attributes:
        accuracy: Share of held-out texts; .5 is chance, for both sets are equally large.
        standard_error: Of the accuracy, √(a(1 − a)/n), as if the texts were independent.
        num_texts: n, of both sets together.
    """

    accuracy: float
    standard_error: float
    num_texts: int

    def as_dict(self) -> dict[str, float | int]:
        """Return the fields as plain values."""
        return {
            "accuracy": round(self.accuracy, 4),
            "standard_error": round(self.standard_error, 4),
            "num_texts": self.num_texts,
        }


def classify(sensitive: Sequence[str], safe: Sequence[str], seed: int = 1) -> Accuracy:
    """Attack two sets of redacted texts with a classifier that learns from them anew.

    A logistic regression on the TF-IDF of words and pairs of words, in five folds, each of which is told by a
    classifier of the others. Of the larger set as many texts are drawn as the smaller has. Masks count as words. Texts
    that are all alike are told apart as well as by chance, and the accuracy is then exactly one half.

    Args:
        sensitive: Redacted texts of the sensitive set.
        safe: Those of the safe one.
        seed: Of the draw and of the folds.

    Raises:
        DataError: A set has fewer texts than folds.
    """
    num = min(len(sensitive), len(safe))
    if num < _FOLDS:
        raise DataError(f"the attack needs at least {_FOLDS} texts of each set, and has {num}: give more")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    draw = np.random.default_rng(seed)
    texts = np.array(
        [own[place] for own in (sensitive, safe) for place in draw.permutation(len(own))[:num]], dtype=object
    )
    labels = np.repeat([1, 0], num)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    right = 0.0
    for learnt, held in folds.split(texts, labels):
        vectorizer = TfidfVectorizer(tokenizer=_signs, token_pattern=None, ngram_range=(1, 2))
        model = LogisticRegression(C=10.0, class_weight="balanced", max_iter=1000)
        odds = model.fit(vectorizer.fit_transform(texts[learnt]), labels[learnt]).decision_function(
            vectorizer.transform(texts[held])
        )
        odds = np.where(np.abs(odds) < 1e-9, 0.0, odds)  # no opinion is half right
        right += float(np.where(odds == 0, 0.5, (odds > 0) == labels[held]).sum())
    accuracy = right / (2 * num)
    return Accuracy(accuracy, math.sqrt(accuracy * (1 - accuracy) / (2 * num)), 2 * num)


def _signs(text: str) -> list[str]:
    return signs_of(text) or [""]


def replayed(samples: Iterable[str], strings: Sequence[str]) -> list[dict[str, Any]]:
    """Count hidden strings, such as canaries and names, in samples of a model that learnt from redacted text.

    A string counts in whole words (:class:`~doppel.text.occurrences.Strings`), once a sample. A common name stands in
    samples by chance too: compare with names that were in no training text.

    Args:
        samples: What the model wrote.
        strings: What was hidden.

    Returns:
        For each string ``verbatim``, the samples that hold it as it is, blanks taken as one, and ``in_any_case``, those
        that hold it however it is written.

    Raises:
        DataError: There is no string, or an empty one.
    """
    plain = [" ".join(string.split()) for string in strings]
    if not plain or not all(plain):
        raise DataError("there is no string to look for, or an empty one: give one a line")
    verbatim, in_any_case, looked_for = Counter[str](), Counter[str](), Strings(plain)
    for sample in samples:
        text = " ".join(sample.split())
        found = list(looked_for.find(text))
        verbatim.update({one.string for one in found if text[one.start : one.stop] == one.string})
        in_any_case.update({one.string for one in found})
    return [{"string": s, "verbatim": verbatim[s], "in_any_case": in_any_case[s]} for s in plain]
