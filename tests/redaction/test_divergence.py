"""The estimate of a divergence is near the truth, where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doppel.errors import DataError, UserError
from doppel.redaction.comparison import Comparison
from doppel.redaction.divergence import Pair, check_order
from doppel.redaction.neighbours import Floats, distinct, neighbours

ORDERS = (1.0, 1.5, 2.0, 4.0)


def normal(dimensions: int, shift: float, seed: int, num: int = 2000) -> tuple[Floats, Floats]:
    """Two sets from normal distributions that are one unit of length ``shift`` apart: D_α = α shift²/2."""
    rng = np.random.default_rng([dimensions, seed])
    a, b = rng.standard_normal((2, num, dimensions))
    return a, b + shift * np.eye(dimensions)[0]


def mixed(share: float, seed: int, num: int = 2000) -> Floats:
    """Rows of which a share is one text, and the others are normal."""
    rows = np.random.default_rng(seed).standard_normal((num, 2))
    rows[: int(share * num)] = 0.5
    return rows


@pytest.mark.parametrize(("dimensions", "shift"), [(1, 1.0), (2, 1.0), (8, 0.0)])
def test_normal_distributions_have_the_divergence_that_they_have(dimensions: int, shift: float) -> None:
    """Within three of the deviations that no unbiased estimate can be below (Cramér and Rao): whoever knows all but the
    distance of the means estimates α shift²/2 with α·shift·√(2/n), .032 α at n = 2,000 and a unit shift."""
    made = Comparison(Pair(*normal(dimensions, shift, 0)), seed=0)
    for order in ORDERS:
        within = 3 * 0.032 * order if shift else 0.1
        assert abs(max(made.divergences(order)) - order * shift**2 / 2) < within


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [2, 8])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_over_seeds_the_estimate_is_right(dimensions: int, shift: float) -> None:
    found = []
    for seed in range(1, 13):
        made = Comparison(Pair(*normal(dimensions, shift, seed)), seed=seed)
        found.append([max(made.divergences(order)) for order in ORDERS])
    errors = np.array(found) - np.array(ORDERS) * shift**2 / 2
    assert (np.abs(errors.mean(0)) < 0.15).all()
    if shift:  # no estimate is that near in every draw: see above
        assert ((np.abs(errors[:, :3]) < 0.15).mean(0) >= 0.75).all()
    else:
        assert (errors[:, :3] < 0.03).all()


def test_the_bare_estimate_is_right_at_zero_and_too_small_at_a_distance() -> None:
    bare = [max(d.divergence() for d in Pair(*normal(8, shift, 0)).divergences(2)) for shift in (0.0, 1.0)]
    assert bare[0] < 0.05 and 0.3 < bare[1] < 0.8


def test_without_the_factor_zero_divergence_reads_a_tenth() -> None:
    k, alpha = 10, 2.0
    pair = Pair(*normal(2, 0, 1), k=k)
    (right, _), factor = pair.divergences(alpha), (k - 1) / k  # Γ(k)²/(Γ(k−1)Γ(k+1))
    assert abs(right.points) < 0.04 and right.points - np.log(factor) == pytest.approx(0.105, abs=0.04)


def test_the_printed_formula_is_wrong() -> None:
    """Appendix 4.1 sums logarithms: for two sets of one distribution it is far below 0, and the better, the worse."""
    a, b = normal(2, 0, 3)
    k, alpha, rows = 10, 1.5, distinct(a, b)
    points = rows.vectors
    is_first = rows.counts[0] > 0
    near = neighbours(points, is_first, k)
    densities = []
    for of in (is_first, ~is_first):
        radii = np.where(of[near.places], near.distances, np.inf)
        radius = np.sort(radii, 1)[is_first, k - 1]
        densities.append(np.log(k / (k * of.sum() * radius**2)))
    printed = float(np.mean(alpha * densities[0] - (alpha - 1) * densities[1])) / (alpha - 1)
    assert printed == pytest.approx(-7.8, abs=1.0)
    assert max(Comparison(Pair(a, b, k)).divergences(alpha)) < 0.03


def test_texts_that_occur_again_are_compared_by_how_often() -> None:
    """Half of one set and a quarter of the other are one text; the rest is of one distribution."""
    for order in (1.5, 2.0, 4.0):
        made = Comparison(Pair(mixed(0.5, 1), mixed(0.25, 2)))
        for (p, q), found in zip(((0.5, 0.25), (0.25, 0.5)), made.divergences(order), strict=True):
            terms = p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)
            assert found == pytest.approx(np.log(terms) / (order - 1), abs=0.1)
    kl = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert made.divergences(1)[0] == pytest.approx(kl, abs=0.05)


@pytest.mark.parametrize("order", ORDERS)
def test_equal_sets_and_sets_of_one_text_are_no_distance_apart(order: float) -> None:
    rows = np.random.default_rng(1).standard_normal((300, 3))
    masks = np.ones((200, 3)), np.ones((70, 3))
    for a, b in ((rows, rows), (rows, rows[::-1]), masks):
        assert Comparison(Pair(a, b, 10)).divergences(order) == (0.0, 0.0)


def test_sets_without_neighbours_are_refused_and_not_called_repeated() -> None:
    few, many = (np.random.default_rng(seed).standard_normal((num, 3)) for seed, num in ((1, 30), (2, 300)))
    for a, b, side in ((few, many, "A"), (many, few, "B"), (few, few + 1, "A")):
        with pytest.raises(UserError, match=f"{side} has 30 rows, of which 30 occur once: .* smaller k"):
            Pair(a, b, k=40)
    assert Pair(few, many, k=29).is_point.all()


def test_the_share_that_the_other_set_lacks_is_told_and_raises_the_divergence() -> None:
    first, _ = Pair(mixed(0.5, 1), mixed(0.0, 2)).divergences(2)
    assert first.only == 0.5 and first.share == 0.5 and first.divergence() > np.log(0.5 * 0.5 * 4000) - 0.1


@settings(max_examples=20)
@given(
    scale=st.floats(0.01, 100),
    step=st.floats(-5, 5),
    order=st.sampled_from(ORDERS),
    k=st.integers(5, 15),
    seed=st.integers(0, 99),
)
def test_no_rotation_scale_translation_or_order_of_rows_matters(
    scale: float, step: float, order: float, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((60, 3)), rng.standard_normal((80, 3)) + 0.5
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    before = Pair(a, b, k).divergences(order)
    after = Pair(rng.permutation(a) @ turn * scale + step * scale, b @ turn * scale + step * scale, k).divergences(
        order
    )
    for one, other in zip(before, after, strict=True):
        assert other.points == pytest.approx(one.points, abs=2e-3)
    swapped = Pair(b, a, k).divergences(order)[::-1]
    assert [each.points for each in swapped] == pytest.approx([each.points for each in before], abs=1e-9)


def test_a_row_is_none_of_its_own_neighbours_and_all_are_compared() -> None:
    rng = np.random.default_rng(0)
    points, is_first = rng.standard_normal((300, 4)).astype(np.float32), np.arange(300) < 100
    found = neighbours(points, is_first, 7)
    far = np.linalg.norm(points[:, None].astype(float) - points[None], axis=2)
    np.fill_diagonal(far, np.inf)
    expected = np.sort(np.concatenate([np.sort(far[:, part], 1)[:, :7] for part in (is_first, ~is_first)], 1), 1)
    assert np.allclose(found.distances, expected, rtol=1e-5)
    assert (found.places != np.arange(300)[:, None]).all()


def test_close_vectors_far_from_the_origin_keep_their_distances() -> None:
    """The difference of large squares in float32 would lose them."""
    points = (100 + np.arange(50)[:, None] * np.full((1, 64), 1e-3)).astype(np.float32)
    found = neighbours(points, np.arange(50) % 2 == 0, 1)
    assert np.allclose(found.distances[2:-2, 0], 8e-3, rtol=0.01)


def test_vectors_that_centring_makes_one_keep_their_distance() -> None:
    """Or the logarithm of their radius has no bound, and the sets no dimension."""
    points = np.array([[0.0], [1e-9], [2.0], [2.5]], dtype=np.float32)
    assert len(set((points - points.mean(0)).ravel().tolist())) == 3
    found = neighbours(points, np.array([True, True, False, False]), 1)
    assert np.allclose(found.distances[:, 0], [1e-9, 1e-9, 0.5, 0.5], rtol=1e-5, atol=0)


def test_sets_on_a_surface_are_measured_with_its_dimension() -> None:
    rng = np.random.default_rng(5)
    embedding = rng.standard_normal((3, 100))
    pair = Pair(rng.standard_normal((1000, 3)) @ embedding, rng.standard_normal((1000, 3)) @ embedding)
    assert pair.dimension == pytest.approx(3, abs=0.4)
    assert abs(pair.divergences(2)[0].points) < 0.1


def test_the_null_holds_what_equal_distributions_say_and_not_what_a_shift_says() -> None:
    for shift, is_far in ((0.0, False), (1.0, True)):
        made = Comparison(Pair(*normal(2, shift, 4, 500), spare=4), references=0)
        bare = max(each.divergence() for each in made.uncorrected(2))
        null = made.null(2, 40)
        assert (bare > null.max()) == is_far and np.median(null) < 0.1


@pytest.mark.slow
def test_intervals_hold_the_truth_and_halves_have_no_duplicates() -> None:
    made = Comparison(Pair(*normal(2, 1, 6), spare=4))
    for drawn in (made.bootstrap(2, 30), made.subsamples(2, 30)):
        assert np.ptp(drawn) < 0.6 and abs(drawn.mean() - 1) < 0.2
    equal = np.random.default_rng(1).standard_normal((200, 2))
    assert (Comparison(Pair(equal, equal, spare=4)).subsamples(2, 5) >= 0).all()


def test_orders_beyond_the_factor_are_refused() -> None:
    check_order(10.9, 10)
    with pytest.raises(UserError, match="alpha: the estimate by 10 neighbours exists for orders below 11"):
        check_order(11, 10)
    with pytest.raises(UserError, match="order"):
        check_order(0.5, 10)


@pytest.mark.slow
def test_sets_of_unequal_size_are_no_farther_apart() -> None:
    a, b = normal(3, 1, 8)
    for part in ((a, b[:500]), (a[:500], b)):
        assert max(Comparison(Pair(*part)).divergences(1.5)) == pytest.approx(0.75, abs=0.25)
        assert max(Comparison(Pair(part[0], part[1] - np.eye(3)[0])).divergences(1.5)) < 0.08


@pytest.mark.slow
def test_a_difference_of_spread_is_understated() -> None:
    """D_2 of a normal distribution in two dimensions with 1.5 times the variance is −log .75 = .288."""
    a, b = normal(2, 0, 9, num=3000)
    assert 0.03 < max(Comparison(Pair(a * 1.5**0.5, b)).divergences(2)) < 0.25


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros((3, 2)), np.zeros((3, 3)), "2 and of 3"),
        (np.zeros((0, 2)), np.zeros((3, 2)), "the first set"),
        (np.zeros((3, 2)), np.full((3, 2), np.nan), "the second set: holds a number that is not finite"),
    ],
)
def test_what_cannot_be_compared_is_told(a: Floats, b: Floats, message: str) -> None:
    with pytest.raises(DataError, match=message):
        distinct(a, b)
