"""AIM and independent columns: they spend μ² and not more, and rows keep what the table has."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from doppel.errors import DataError
from doppel.privacy.gdp import mu_of_choice
from doppel.privacy.secret import Secret
from doppel.tables import releases as releases_module
from doppel.tables.aim import aim, refit
from doppel.tables.independent import independent
from doppel.tables.marginals import Measurement, Table, shares, total_variation
from doppel.tables.mixture import Mixture
from doppel.tables.releases import Releases

SIZES = (3, 4, 3, 5)


@pytest.fixture(scope="module")
def codes() -> np.ndarray:
    """Four columns, of which the last three follow the first."""
    generator = np.random.default_rng(0)
    first = generator.integers(0, 3, 2000)
    noise = generator.random((2000, 3)) < 0.2
    others = [np.where(noise[:, k], generator.integers(0, SIZES[k + 1], 2000), first) for k in range(3)]
    return np.stack([first, *others], 1)


def of(codes: np.ndarray, mu: float, **more: Any) -> Releases:
    table = Table.of_units(codes.tolist(), [str(place) for place in range(len(codes))], SIZES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NOT PRIVATE, says the seed
        return Releases(table, mu, Secret(5).stream("test"), **more)


@pytest.fixture
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is released costs the same, however well the model fits."""
    fit = Mixture.fit
    monkeypatch.setattr(Mixture, "fit", lambda model, found, num_units, steps=0: fit(model, found, num_units, steps=8))


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize("method", [aim, independent])
@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_all_releases_together_cost_mu(
    codes: np.ndarray, method: Callable[[Releases], Mixture], mu: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted where they are drawn: 1/σ² of each marginal, and what each choice costs by its ε."""
    squares, told = [], list[float]()
    drawn = releases_module.choose

    def counted(stream: Any, scores: Any, sensitivity: int, epsilon: float) -> int:
        squares.append(mu_of_choice(epsilon * releases_module.GRID / sensitivity) ** 2)
        return drawn(stream, scores, sensitivity, epsilon)

    monkeypatch.setattr(releases_module, "choose", counted)
    releases = of(codes, mu, tell=told.append)
    method(releases)
    squares += [1 / measured.sigma**2 for measured in releases.measurements]
    assert sum(squares) <= mu * mu * (1 + 1e-9)
    assert sum(squares) == pytest.approx(mu * mu, rel=1e-4)
    assert told == sorted(told) and told[-1] == pytest.approx(1.0)


@pytest.mark.slow
def test_rows_of_aim_keep_how_columns_go_together_and_independent_ones_do_not(codes: np.ndarray) -> None:
    apart = {method: total_variation(method(of(codes, 1.0)).draw(2000), codes, SIZES) for method in (aim, independent)}
    assert apart[aim] < 0.05 < 0.25 < apart[independent]


def test_one_column_needs_no_pair(codes: np.ndarray) -> None:
    table = Table(codes[:, :1], np.full(len(codes), 2**24), SIZES[:1], len(codes))
    model = aim(Releases(table, 1.0, Secret().stream("test")))
    assert shares(model.draw(2000), SIZES[:1], (0,)) == pytest.approx(shares(codes, SIZES[:1], (0,)), abs=0.01)


@pytest.mark.usefixtures("short_fits")
def test_an_interrupted_one_goes_on_with_the_same_releases_and_draws_none_twice(codes: np.ndarray) -> None:
    kept: list[dict[str, Any]] = []
    whole = aim(of(codes, 0.5, keep=kept.append)).draw(50)
    more: list[dict[str, Any]] = []
    aim(of(codes, 0.5, done=kept[:10], keep=more.append))
    assert more[1]["marginal"] == kept[9]["choice"] and len(more) > 5
    again: list[dict[str, Any]] = []
    assert (aim(of(codes, 0.5, done=kept, keep=again.append)).draw(50) == whole).all() and not again
    table = of(codes, 0.5).table
    measured = [Measurement(tuple(r["marginal"]), np.array(r["counts"]), r["sigma"]) for r in kept if "sigma" in r]
    assert (refit(table.sizes, table.num_units, measured).draw(50) == whole).all()
    with pytest.raises(DataError, match="not those of this command"):
        aim(of(codes, 0.5, done=kept[1:]))


def test_a_release_that_is_read_again_costs_what_it_cost(codes: np.ndarray) -> None:
    kept: list[dict[str, Any]] = []
    of(codes, 1.0, keep=kept.append).measure((0,), 0.3)
    again = of(codes, 1.0, done=kept)
    again.measure((0,), 0.3)
    assert again.budget.remaining == pytest.approx(0.7)
    for asked, told in [(0.2, 0.3), (0.3, 0.2)]:
        other = of(codes, 1.0, done=[{"mu_squared": told}, kept[1]])
        with pytest.raises(DataError, match="not those of this command"):
            other.measure((0,), asked)
        assert other.budget.remaining == 1.0


def test_releases_of_an_earlier_version_had_their_price_beside_them(codes: np.ndarray) -> None:
    kept: list[dict[str, Any]] = []
    of(codes, 1.0, keep=kept.append).measure((0,), 0.3)
    again = of(codes, 1.0, done=[kept[0] | kept[1]])
    assert (again.measure((0,), 0.3).counts == np.array(kept[1]["counts"])).all()
    assert again.budget.remaining == pytest.approx(0.7)
    for cut, left in (
        ('{"marginal": [0], "mu_squared": 0.3, "sigma": 1.8, "counts": [74.5', 0.7),
        ('{"marginal": [0], "mu_sq', 1.0),  # and no count
        ('{"choice": [0, 1], "mu_squared": 0.2}', 0.8),
        ('{"choice": [0, 1', 0.0),  # nobody knows what it cost
    ):
        assert of(codes, 1.0, done=[{"torn": cut}]).budget.remaining == pytest.approx(left)


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize(
    ("method", "place"), [*((aim, n) for n in (0, 1, 6, 7, 8, 9, 10)), (independent, 0), (independent, 5)]
)
def test_what_a_crash_cut_costs_what_was_kept_and_all_together_no_more(
    codes: np.ndarray, method: Callable[[Releases], Mixture], place: int
) -> None:
    """A price that was cut, or for which nobody saw values, is none or the same; values that were cut cost as many."""
    kept: list[dict[str, Any]] = []
    method(of(codes, 0.5, keep=kept.append))
    is_price = set(kept[place]) == {"mu_squared"}
    torn = {"torn": json.dumps(kept[place])[:-2]}
    for done in ([*kept[:place], torn], [*kept[:place], torn, torn] if is_price else kept[: place + 1]):
        more: list[dict[str, Any]] = []
        method(of(codes, 0.5, done=done, keep=more.append))
        squares = [record["mu_squared"] for record in [*done, *more] if "mu_squared" in record]
        assert sum(squares) == pytest.approx(0.25, rel=1e-9)
        drawn = sum("mu_squared" not in record and "torn" not in record for record in [*done, *more])
        assert len(squares) == drawn + (torn in done and not is_price), "each is paid for, and so is what was cut"
        again: list[dict[str, Any]] = []
        method(of(codes, 0.5, done=[*done, *more], keep=again.append))
        assert not again, "whoever goes on reads it in the same way"


def test_a_column_that_nothing_is_left_to_draw_again_has_its_values_equally_often(codes: np.ndarray) -> None:
    kept: list[dict[str, Any]] = []
    independent(of(codes, 0.5, keep=kept.append))
    cut = {"torn": '{"marginal": [3], "sigma": 2'}
    model = independent(of(codes, 0.5, done=[*kept[:7], cut]))
    assert model.shares([(3,)])[0] == pytest.approx(np.full(5, 0.2))
    assert np.abs(model.shares([(0,)])[0] - shares(codes, SIZES, (0,))).max() < 0.05
    table = Table(codes[:, :1], np.full(len(codes), 2**24), SIZES[:1], len(codes))
    alone = Releases(table, 1.0, Secret().stream("test"), done=[{"mu_squared": 1.0}, cut])
    assert aim(alone).shares([(0,)])[0] == pytest.approx(np.full(3, 1 / 3)) and not alone.measurements
    assert refit(SIZES[:1], 2000, []).shares([(0,)])[0] == pytest.approx(np.full(3, 1 / 3))


def test_rows_are_drawn_in_the_shares_of_the_model_however_few() -> None:
    model = Mixture((2, 3), num_components=5)
    (wanted,) = model.shares([(0, 1)])
    assert wanted.sum() == pytest.approx(1.0)
    assert shares(model.draw(20_000), (2, 3), (0, 1)) == pytest.approx(wanted, abs=0.005)
    few = np.concatenate([model.draw(3, seed) for seed in range(3000)])
    assert shares(few, (2, 3), (0, 1)) == pytest.approx(wanted, abs=0.03)


@pytest.mark.slow
def test_the_mixture_fits_what_a_graphical_model_fits(codes: np.ndarray) -> None:
    """Private-PGM of `mbi`, to the same releases: all measured marginals agree better than the noise is large."""
    mbi = pytest.importorskip("mbi", reason="`pip install mbi==2.0.0` (with jax), which nothing else needs")
    releases = of(codes, 1.0)
    model = aim(releases)
    names = ["a", "b", "c", "d"]
    measured = [
        mbi.LinearMeasurement(found.counts.ravel(), tuple(names[place] for place in found.clique), found.sigma)
        for found in releases.measurements
    ]
    other = mbi.estimation.MirrorDescent().estimate(mbi.Domain(names, SIZES), measured, known_total=len(codes))
    for found in releases.measurements:
        theirs = np.asarray(other.project(tuple(names[place] for place in found.clique)).datavector())
        ours = len(codes) * model.shares([found.clique])[0].ravel()
        assert np.abs(ours - theirs).mean() < 2 * found.sigma
