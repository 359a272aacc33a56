"""Every unit is in every batch by a fair, independent coin of probability q."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doppel.privacy.sampling import PoissonSampler

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")


def inclusion(sampler: PoissonSampler) -> np.ndarray:
    """[steps, units]: whether the unit is in the step's batch."""
    found = np.zeros((len(sampler), sampler.num_units))
    for step, batch in enumerate(epoch(sampler)):
        for unit in batch:
            found[step, unit] += 1
    return found


def epoch(sampler: PoissonSampler, number: int = 0) -> list[list[int]]:
    """The batches of an epoch."""
    first = number * len(sampler)
    return [sampler.units_at(step) for step in range(first, first + len(sampler))]


def test_inclusion_is_an_independent_coin_for_each_unit_and_step() -> None:
    num_units, q, steps = 50, 0.2, 8000
    found = inclusion(PoissonSampler(num_units, q, steps, seed=1))
    assert set(np.unique(found)) <= {0.0, 1.0}  # no unit twice in a batch
    error = math.sqrt(q * (1 - q) / steps)
    assert np.abs(found.mean(0) - q).max() < 4.5 * error  # every unit alike
    assert abs(found.mean() - q) < 4 * error / math.sqrt(num_units)
    centred = (found - q) / math.sqrt(q * (1 - q))
    pairs = (centred.T @ centred / steps)[~np.eye(num_units, dtype=bool)]
    assert np.abs(pairs).max() < 5 / math.sqrt(steps)  # pairs of units
    assert np.mean(pairs**2) * steps == pytest.approx(1.0, rel=0.2)
    lagged = (centred[1:] * centred[:-1]).mean(0)
    assert np.abs(lagged).max() < 4.5 / math.sqrt(steps)  # the same unit in successive steps


def test_batch_size_is_binomial() -> None:
    num_units, q, steps = 1000, 0.03, 4000
    sizes = inclusion(PoissonSampler(num_units, q, steps, seed=2)).sum(1)
    variance = num_units * q * (1 - q)
    assert abs(sizes.mean() - num_units * q) < 4 * math.sqrt(variance / steps)
    assert abs(sizes.var() / variance - 1) < 4 * math.sqrt(2 / steps)


def test_samplers_that_share_a_secret_draw_the_same_batches() -> None:
    """And only they have the same fingerprint."""
    first, second = PoissonSampler(200, 0.1), PoissonSampler(200, 0.1)
    assert first.fingerprint() != second.fingerprint()
    sent: list[Tensor] = []
    first.share_secret(lambda secret: sent.append(secret) or secret)  # type: ignore[func-returns-value]
    second.share_secret(lambda secret: sent[0])
    assert first.fingerprint() == second.fingerprint()
    assert epoch(first) == epoch(second)
    other = PoissonSampler(200, 0.2)
    other.share_secret(lambda secret: sent[0])
    assert other.fingerprint() != first.fingerprint()


def test_empty_batches_occur() -> None:
    sampler = PoissonSampler(10, 0.05, steps_per_epoch=2000, seed=5)
    batches = epoch(sampler)
    assert len(batches) == len(sampler) == 2000
    probability = 0.95**10
    assert abs(sum(not batch for batch in batches) / 2000 - probability) < 4 * math.sqrt(probability * 0.5 / 2000)


@pytest.mark.parametrize(
    ("num_units", "batch_size", "steps"), [(133_584, 2048, 66), (1000, 100, 10), (49, 1, 49), (10, 10, 1)]
)
def test_epoch_has_one_over_q_steps_rounded_up(num_units: int, batch_size: int, steps: int) -> None:
    assert len(PoissonSampler(num_units, batch_size / num_units)) == steps


def test_a_batch_is_a_function_of_secret_and_step() -> None:
    sampler, same = PoissonSampler(200, 0.1, seed=6), PoissonSampler(200, 0.1, seed=6)
    batches = [epoch(sampler, number) for number in range(3)]
    assert batches[0] != batches[1] != batches[2]  # no step takes the coins of another
    assert [same.units_at(step) for step in (25, 14, 3, 14)] == [
        batches[2][5],
        batches[1][4],
        batches[0][3],
        batches[1][4],
    ]  # in any order, and again after an interruption


def test_the_draws_under_a_test_seed_stay_what_they_were() -> None:
    """Runs with a fixed seed are repeated bit for bit."""
    sampler = PoissonSampler(60, 0.1, steps_per_epoch=10, seed=6)
    assert sampler.units_at(0) == [23, 25, 38, 39, 43, 55]
    assert sampler.units_at(23) == [3, 12, 18, 24, 27, 41, 42, 52, 57]


@settings(max_examples=40, deadline=None)
@given(bands=st.integers(2, 40), num_units=st.integers(40, 300), first=st.integers(0, 10**6), seed=st.integers(0))
def test_steps_that_draw_a_unit_are_at_least_so_many_apart_as_there_are_bands(
    bands: int, num_units: int, first: int, seed: int
) -> None:
    """Over epochs, which have another length, and over ranks, of which each computes a part of one sample."""
    ranks = [PoissonSampler(num_units, 1 / bands / 1.1, 7, seed, bands) for _ in range(2)]
    last: dict[int, int] = {}
    for step in range(first, first + 5 * bands):
        drawn = ranks[0].units_at(step)
        parts = [sampler.units_at(step)[rank::2] for rank, sampler in enumerate(ranks)]
        assert sorted(parts[0] + parts[1]) == drawn == sorted(set(drawn))
        assert all(step - last.get(unit, -bands) >= bands for unit in drawn)
        last |= dict.fromkeys(drawn, step)
    assert len(last) > num_units / 2


def test_a_unit_of_a_group_is_drawn_by_an_independent_coin_of_the_groups_rate() -> None:
    num_units, q, bands, num_rounds = 400, 0.1, 4, 600
    sampler = PoissonSampler(num_units, q, seed=1, bands=bands)
    found = np.zeros((num_rounds, bands, num_units))
    for step in range(num_rounds * bands):
        found[(*divmod(step, bands), sampler.units_at(step))] = 1.0
    per_group = found.mean(0)
    groups = per_group.argmax(0)
    assert np.count_nonzero(per_group) == num_units  # each in one group, and there
    error = math.sqrt(bands * q * (1 - bands * q) / num_rounds)
    assert np.abs(per_group.max(0) - bands * q).max() < 4.5 * error
    assert np.abs(np.bincount(groups, minlength=bands) - 100).max() < 4.5 * math.sqrt(75)
    assert found.sum((1, 2)).mean() / bands == pytest.approx(num_units * q, rel=0.02)
    others = PoissonSampler(num_units, q, seed=2, bands=bands)
    moved = [unit for step in range(bands * 20) for unit in others.units_at(step) if groups[unit] != step % bands]
    assert len(moved) > num_units  # another secret deals them anew


def test_a_unit_more_leaves_groups_and_coins_of_the_others_as_they_are() -> None:
    sampler, more = (PoissonSampler(num, 0.05, 7, seed=3, bands=8) for num in (200, 201))
    assert all([u for u in more.units_at(step) if u < 200] == sampler.units_at(step) for step in range(100))


def test_so_many_bands_that_a_group_has_less_than_a_batch_are_refused() -> None:
    PoissonSampler(49, 1 / 49, bands=49)
    for bands in (0, 11):
        with pytest.raises(ValueError, match=f"bands is {bands}"):
            PoissonSampler(100, 0.1, bands=bands)


def test_entropy_differs_between_samplers() -> None:
    assert epoch(PoissonSampler(200, 0.1)) != epoch(PoissonSampler(200, 0.1))


def test_fixed_seed_warns_loudly_and_entropy_does_not() -> None:
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        PoissonSampler(10, 0.5, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PoissonSampler(10, 0.5)


def test_secret_and_seed_are_in_no_repr_pickle_or_dict() -> None:
    sampler = PoissonSampler(10, 0.5, seed=987654321)
    assert "987654321" not in repr(sampler) + repr(vars(sampler))
    for leak in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            leak(sampler)


def test_a_million_units_are_drawn_at_their_rate() -> None:
    sampler = PoissonSampler(1_000_000, 2e-3, steps_per_epoch=5)
    assert all(1500 < len(batch) < 2500 for batch in epoch(sampler))


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_units": 0, "sample_rate": 0.5},
        {"num_units": 5, "sample_rate": 0.0},
        {"num_units": 5, "sample_rate": 1.5},
        {"num_units": 5, "sample_rate": math.nan},
        {"num_units": 5, "sample_rate": 0.5, "steps_per_epoch": 0},
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"num_units|sample_rate|steps_per_epoch"):
        PoissonSampler(**arguments)  # type: ignore[arg-type]


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ValueError, match="step is -1"):
        PoissonSampler(10, 0.5).units_at(-1)
