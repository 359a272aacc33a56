"""The ranker: which words tell the sets apart, each text by itself."""

from __future__ import annotations

import numpy as np
import pytest

from doppel.errors import DataError
from doppel.redaction.mask import MASK, Redactor
from doppel.redaction.rank import LogisticRanker

NUMBERS = range(40)
SENSITIVE = [f"please book the doctor at {n} for my back" for n in NUMBERS] + ["Doctor's appointment please"] * 5
SAFE = [f"please book the table at {n} for my friends" for n in NUMBERS] + ["a Table, please"] * 5


@pytest.fixture(scope="module")
def ranker() -> LogisticRanker:
    return LogisticRanker.fit(SENSITIVE, SAFE)


def test_the_words_that_tell_the_sets_apart_are_hidden_first(ranker: LogisticRanker) -> None:
    redactor = Redactor(ranker=ranker, level=0.2)
    assert (
        redactor.redact("Please book the DOCTOR, this for my back!").text
        == f"Please book the {MASK} this for my {MASK}"
    )
    assert MASK in redactor.redact("the table").text.split() and "table" not in redactor.redact("the table").text


def test_a_score_is_coefficient_times_frequency_times_inverse_document_frequency(ranker: LogisticRanker) -> None:
    """As scikit-learn has them of the same words; a text's own scale is left out."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(token_pattern=r"\S+")
    features = vectorizer.fit_transform([text.lower().replace("'s", "").replace(",", "") for text in SENSITIVE + SAFE])
    model = LogisticRegression(max_iter=1000).fit(features, [1] * len(SENSITIVE) + [0] * len(SAFE))
    at = vectorizer.vocabulary_["doctor"]
    expected = 2 * abs(model.coef_[0][at]) * vectorizer.idf_[at]
    scores = ranker.scores(["Doctor", "doctor,", "unheard", "--"])
    assert scores == pytest.approx([expected, expected, 0, 0], rel=1e-4)


def test_scores_do_not_depend_on_other_texts_or_on_case_and_punctuation(ranker: LogisticRanker) -> None:
    first = ranker.scores(["book", "the", "doctor"])
    ranker.scores(["something", "else", "entirely"])
    assert np.array_equal(first, ranker.scores(["Book", "the", "“DOCTOR”!"]))


def test_a_ranker_without_texts_of_both_sets_is_refused() -> None:
    with pytest.raises(DataError, match="0 sensitive and 1 safe"):
        LogisticRanker.fit([], ["a"])
    with pytest.raises(DataError, match="without a word"):
        LogisticRanker.fit(["..."], ["?"])
