"""The word-level mechanisms draw by the probabilities of their definitions, and keep the ratio that ε promises."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from doppel.errors import DataError, UserError
from doppel.privacy.secret import KeyedStream, Secret
from doppel.redaction.custext import CusText
from doppel.redaction.feyisetan import Feyisetan
from doppel.redaction.santext import SanText
from doppel.redaction.word_level import Perturber, WordMechanism, cumulated
from doppel.redaction.word_vectors import WordVectors
from doppel.text.words import tokens_of

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")
WORDS = ("ana", "bob", "cat", "dog", "elk", "fox", "gnu")


def vectors_of(table: NDArray[np.float64]) -> WordVectors:
    """Words by these vectors; any other word lies at its length along the first axis."""

    def outside(words: Sequence[str]) -> NDArray[np.float64]:
        return np.array([[len(word), *[0.0] * (table.shape[1] - 1)] for word in words])

    return WordVectors(WORDS[: len(table)], table, outside)


def small(size: int = 3, seed: int = 0) -> WordVectors:
    return vectors_of(np.random.default_rng(seed).normal(size=(len(WORDS), size)))


def stream() -> KeyedStream:
    return Secret(1).stream("test")


def assert_drawn_by(mechanism: WordMechanism, word: str, expected: NDArray[np.float64], num: int = 40_000) -> None:
    """A χ² test of the draws for one word; a false alarm once in 10⁵."""
    counts = np.bincount(mechanism.draw([word] * num, stream()), minlength=len(expected))
    assert counts[expected == 0].sum() == 0
    seen = expected * num >= 5
    rest = max(expected[~seen].sum() * num, 1e-9)
    found, wanted = [*counts[seen], counts[~seen].sum()], [*(expected[seen] * num), rest]
    statistic = sum((f - w) ** 2 / w for f, w in zip(found, wanted, strict=True) if w >= 1)
    assert stats.chi2.sf(statistic, seen.sum()) > 1e-5


def probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.diff(cumulated(logits), axis=1, prepend=0.0)


# ------------------------------------------------------------------------------ SanText
@given(epsilon=st.sampled_from([0.1, 1.0, 8.0, 60.0]), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_santext_is_the_exponential_mechanism_and_metric(epsilon: float, seed: int) -> None:
    """For words of the vocabulary and for others."""
    vectors = small(seed=seed)
    names = [*WORDS, "another", "zz"]
    shares, points = probabilities(SanText(vectors, epsilon).logits(names)), vectors.of(names)
    for row, x in enumerate(points):
        weights = [math.exp(-epsilon * math.dist(x, y) / 2) for y in vectors.vectors]
        assert np.allclose(shares[row], np.array(weights) / sum(weights), rtol=1e-5, atol=1e-15)
        for other, x2 in enumerate(points):
            bound = math.exp(epsilon * math.dist(x, x2))
            assert (shares[row] <= (shares[other] + 2.0**-52) * bound * (1 + 1e-5)).all()


def test_santext_draws_by_its_probabilities() -> None:
    mechanism = SanText(small(), 2.0)
    for word in ("cat", "another"):
        assert_drawn_by(mechanism, word, probabilities(mechanism.logits([word]))[0])


# ------------------------------------------------------------------------------ Feyisetan
def laplace_shares(at: float, table: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """In one dimension the noise is Laplace's, and each word has the interval nearest to it."""
    order = np.argsort(table[:, 0])
    ends = [-np.inf, *((table[order, 0][:-1] + table[order, 0][1:]) / 2), np.inf]
    shares = np.empty(len(table))
    shares[order] = np.diff(stats.laplace.cdf(ends, loc=at, scale=1 / epsilon))
    return shares


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_feyisetan_on_a_line_has_laplaces_probabilities_and_is_metric(epsilon: float) -> None:
    vectors = vectors_of(np.array([[0.0], [0.3], [1.0], [-0.7], [2.5]]))
    mechanism, shares = Feyisetan(vectors, epsilon), []
    for word in (*vectors.words, "xx"):
        (at,) = vectors.of([word])[0]
        shares.append((at, laplace_shares(at, vectors.vectors, epsilon)))
        assert_drawn_by(mechanism, word, shares[-1][1])
    for at, own in shares:
        for other_at, other in shares:
            assert (own <= other * math.exp(epsilon * abs(at - other_at)) * (1 + 1e-9)).all()


@pytest.mark.parametrize("size", [2, 3, 50])
def test_feyisetans_noise_has_a_uniform_direction_and_a_gamma_norm(size: int) -> None:
    noise = Feyisetan(small(), 2.5).noise(8001, size, stream())
    norms = np.linalg.norm(noise, axis=1)
    assert stats.kstest(norms, stats.gamma(size, scale=1 / 2.5).cdf).pvalue > 1e-4
    ahead = (noise[:, 0] / norms) ** 2  # of a uniform direction: Beta(1/2, (D − 1)/2)
    assert stats.kstest(ahead, stats.beta(0.5, (size - 1) / 2).cdf).pvalue > 1e-4
    assert abs((noise / norms[:, None]).mean(0)).max() < 5 / math.sqrt(8001 * size)
    assert abs(stats.spearmanr(norms, ahead).statistic) < 0.06


def test_feyisetan_keeps_its_ratio_in_the_plane() -> None:
    """By the share of draws, where neighbouring words have the same outcomes."""
    vectors, epsilon, num = small(2), 1.0, 60_000
    mechanism = Feyisetan(vectors, epsilon)
    shares = [
        np.bincount(mechanism.draw([w] * num, Secret(i).stream("w")), minlength=7) / num for i, w in enumerate(WORDS)
    ]
    for x, own in zip(vectors.vectors, shares, strict=True):
        for x2, other in zip(vectors.vectors, shares, strict=True):
            spread = 5 * np.sqrt(other / num) + 1e-4
            assert (own <= (other + spread) * math.exp(epsilon * math.dist(x, x2)) + 5 * np.sqrt(own / num)).all()


# ------------------------------------------------------------------------------ CusText
def test_custext_has_sets_of_k_near_words_that_share_their_outcomes() -> None:
    vectors = vectors_of(np.array([[0.0], [0.1], [5.0], [0.2], [5.1], [5.2], [9.0]]))
    assert [own.tolist() for own in CusText(vectors, 1.0, 3).sets] == [[0, 1, 3], [2, 4, 5, 6]]  # none stays alone
    assert [len(own) for own in CusText(vectors, 1.0, 5).sets] == [5, 2]
    assert [own.tolist() for own in CusText(vectors, 1.0, 7).sets] == [[0, 1, 3, 2, 4, 5, 6]]


@given(epsilon=st.sampled_from([0.1, 1.0, 8.0, 60.0]), seed=st.integers(0, 99), k=st.integers(2, 7))
@settings(max_examples=40)
def test_custext_is_the_exponential_mechanism_within_a_set(epsilon: float, seed: int, k: int) -> None:
    vectors = small(seed=seed)
    mechanism = CusText(vectors, epsilon, k)
    logits, candidates = mechanism.logits(np.arange(7))
    shares = np.zeros((7, 7))
    for row in range(7):
        np.add.at(shares[row], candidates[row], probabilities(logits[row : row + 1])[0])
    for own in mechanism.sets:
        for x in own:
            distances = np.linalg.norm(vectors.vectors[own] - vectors.vectors[x], axis=1)
            scores = 1 - distances / distances.max()  # the nearest word is the word itself
            weights = np.exp(epsilon * scores / 2)
            assert np.allclose(shares[x, own], weights / weights.sum(), rtol=1e-6, atol=1e-15)
            assert np.isclose(shares[x].sum(), 1) and np.isclose(shares[x, own].sum(), 1)
            for other in own:
                assert (shares[x, own] <= shares[other, own] * math.exp(epsilon) * (1 + 1e-9) + 1e-15).all()


def test_custext_draws_by_its_probabilities_and_other_words_count_as_the_nearest() -> None:
    mechanism = CusText(small(), 3.0, 4)
    (near,) = mechanism.known(["another"])
    assert near == np.linalg.norm(mechanism.vectors.vectors - [7.0, 0, 0], axis=1).argmin()
    for word, place in (("cat", 2), ("another", near)):
        logits, candidates = mechanism.logits(np.array([place]))
        expected = np.zeros(7)
        np.add.at(expected, candidates[0], probabilities(logits)[0])
        assert_drawn_by(mechanism, word, expected)


# ------------------------------------------------------------------------------ texts
def test_every_word_is_drawn_for_and_nothing_else_is_left() -> None:
    """Rare names, numbers and punctuation too, each time anew."""
    perturb = Perturber(SanText(small(), 0.01), seed=1)
    texts = ["Zebediah's dog, 4711!", "", "…", "cat " * 400]
    found = perturb(texts)
    assert [len(text.split()) for text in found] == [3, 0, 0, 400]
    assert set(" ".join(found).split()) == set(WORDS)
    assert perturb(texts) != found
    assert tokens_of("Zebediah’s dog, 4711!") == ["zebediah's", "dog", "4711"]


def test_the_draws_come_from_the_systems_entropy_unless_a_test_fixes_them() -> None:
    mechanism = SanText(small(), 0.1)
    text = ["cat dog " * 50]
    assert Perturber(mechanism)(text) != Perturber(mechanism)(text)
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        fixed = Perturber(mechanism, seed=3)(text)
    assert fixed == Perturber(mechanism, seed=3)(text)


def test_much_epsilon_keeps_words_and_little_forgets_them() -> None:
    text = " ".join(WORDS * 300)
    for kind in (Feyisetan, SanText):
        for epsilon, least, most in ((500.0, 0.95, 1.0), (1e-3, 0.0, 0.3)):
            found = Perturber(kind(small(), epsilon), seed=1)([text])[0].split()
            kept = np.mean([a == b for a, b in zip(found, text.split(), strict=True)])
            assert least <= kept <= most


@pytest.mark.parametrize("mechanism", [Feyisetan(small(), 2.0), SanText(small(), 2.0), CusText(small(), 2.0, 3)])
def test_no_epsilon_is_said_without_what_it_is_not(mechanism: WordMechanism) -> None:
    assert (
        mechanism.statement.startswith("word-level ε = 2 (")
        and "no estimate of what a record leaks" in mechanism.statement
    )


def test_what_cannot_be_used_is_refused() -> None:
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UserError, match="--epsilon"):
            SanText(small(), epsilon)
    for k in (1, 8):
        with pytest.raises(UserError, match="--set-size"):
            CusText(small(), 1.0, k)
    with pytest.raises(DataError, match="distinct words"):
        WordVectors(("a", "a"), np.zeros((2, 1)), lambda words: np.zeros((len(words), 1)))
