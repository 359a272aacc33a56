"""How much each word of a text tells which of two sets it is from, by a classifier of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from doppel.errors import DataError
from doppel.redaction.mask import keys_of
from doppel.text.forms import key_of


class LogisticRanker:
    """|coefficient · TF-IDF| of each word in its text (term frequency times inverse document frequency).

    Weights are rounded, so that machines whose arithmetic differs in the last digits hide the same words.

    Args:
        weights: |coefficient| · IDF of each known word.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = {key: round(weight, 6) for key, weight in weights.items()}

    @classmethod
    def fit(cls, sensitive: Sequence[str], safe: Sequence[str]) -> LogisticRanker:
        """Fit a logistic regression on TF-IDF of texts of both sets, which weigh alike whatever their sizes.

        Where these are private, so is the ranker.

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
        weights = np.abs(model.coef_[0]) * vectorizer.idf_
        return cls(dict(zip(vectorizer.get_feature_names_out().tolist(), weights.tolist(), strict=True)))

    def scores(self, words: Sequence[str]) -> NDArray[np.float64]:
        """See :class:`~doppel.redaction.mask.Ranker`; all words of a text have one scale, which is left out."""
        keys = [key_of(word) for word in words]
        counts = Counter(keys)
        return np.array([self._weights.get(key, 0.0) * counts[key] for key in keys])
