"""How much each word of a text tells which of two sets it is from, by a classifier of words.

The classifier is a logistic regression on TF-IDF (term frequency times inverse document frequency) of words. Its
coefficients say for every word how much it speaks for the sensitive or the safe set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from doppel.errors import DataError
from doppel.redaction.mask import key_of, keys_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WordClassifier:
    """A logistic regression on the TF-IDF of words, scaled to length 1.

    Attributes:
        idf: Of each known word.
        coef: Of each known word; above 0 it speaks for the sensitive set.
        bias: What is added.
    """

    idf: Mapping[str, float]
    coef: Mapping[str, float]
    bias: float

    @classmethod
    def fit(cls, sensitive: Sequence[str], safe: Sequence[str]) -> WordClassifier:
        """Learn from texts of both sets, which weigh alike however many texts they have.

        Raises:
            DataError: A set is empty, or no text has a word.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

        if not sensitive or not safe:
            raise DataError(
                f"the ranker learns from {len(sensitive)} sensitive and {len(safe)} safe texts: give some of both"
            )
        vectorizer = TfidfVectorizer(tokenizer=keys_of, token_pattern=None, lowercase=False)
        try:
            features = vectorizer.fit_transform([*sensitive, *safe])
        except ValueError:
            raise DataError("the ranker learns from texts without a word: give others") from None
        labels = np.repeat([1, 0], [len(sensitive), len(safe)])
        model = LogisticRegression(class_weight="balanced", max_iter=1000).fit(features, labels)
        names = vectorizer.get_feature_names_out().tolist()
        idf, coef = vectorizer.idf_.tolist(), model.coef_[0].tolist()
        return cls(dict(zip(names, idf, strict=True)), dict(zip(names, coef, strict=True)), float(model.intercept_[0]))

    def log_odds(self, counts: Mapping[str, int]) -> float:
        """Log odds that a text with these words is sensitive."""
        weights = {key: self.idf[key] * n for key, n in counts.items() if n and key in self.idf}
        length = sum(weight**2 for weight in weights.values()) ** 0.5
        return self.bias + (sum(self.coef[key] * weight for key, weight in weights.items()) / length if length else 0.0)


class LogisticRanker:
    """|coefficient · TF-IDF| of each word in its text.

    Weights are rounded, so that machines whose arithmetic differs in the last digits hide the same words.

    Args:
        classifier: Of both sets.
    """

    def __init__(self, classifier: WordClassifier) -> None:
        self._weights = {key: round(abs(coef) * classifier.idf[key], 6) for key, coef in classifier.coef.items()}

    def scores(self, words: Sequence[str]) -> Floats:
        """See :class:`~doppel.redaction.mask.Ranker`; all words of a text have one scale, which is left out."""
        keys = [key_of(word) for word in words]
        counts = Counter(keys)
        return np.array([self._weights.get(key, 0.0) * counts[key] for key in keys])


class OcclusionRanker:
    """How much the log odds of a text change when one word is left out.

    Args:
        classifier: Of both sets.
    """

    def __init__(self, classifier: WordClassifier) -> None:
        self._classifier = classifier

    def scores(self, words: Sequence[str]) -> Floats:
        """See :class:`~doppel.redaction.mask.Ranker`."""
        keys = [key_of(word) for word in words]
        counts = Counter(keys)
        whole = self._classifier.log_odds(counts)
        without = {key: self._classifier.log_odds(counts - Counter([key])) for key in counts}
        change = {key: round(abs(whole - log_odds), 6) for key, log_odds in without.items()}
        return np.array([change[key] for key in keys])
