"""Every unit is in every batch by a fair, independent coin of probability q, however many ranks draw."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import time
import warnings

import numpy as np
import pytest
from torch.utils.data import DataLoader

from doppel.privacy.sampling import PoissonSampler

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")


def inclusion(samplers: list[PoissonSampler]) -> np.ndarray:
    """[steps, units]: whether the unit is in the step's batch, over all ranks."""
    found = np.zeros((len(samplers[0]), samplers[0].num_units))
    for sampler in samplers:
        for step, batch in enumerate(sampler):
            found[step, batch] += 1
    return found


def ranks(world_size: int, num_units: int, sample_rate: float, steps: int, seed: int) -> list[PoissonSampler]:
    return [PoissonSampler(num_units, sample_rate, steps, rank, world_size, seed) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_inclusion_is_an_independent_coin_for_each_unit_and_step(world_size: int) -> None:
    """The same bounds hold for one rank and for the union of several: they are one mechanism."""
    num_units, q, steps = 50, 0.2, 8000
    found = inclusion(ranks(world_size, num_units, q, steps, seed=1))
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


@pytest.mark.parametrize("world_size", [1, 2])
def test_batch_size_is_binomial(world_size: int) -> None:
    num_units, q, steps = 1000, 0.03, 4000
    sizes = inclusion(ranks(world_size, num_units, q, steps, seed=2)).sum(1)
    variance = num_units * q * (1 - q)
    assert abs(sizes.mean() - num_units * q) < 4 * math.sqrt(variance / steps)
    assert abs(sizes.var() / variance - 1) < 4 * math.sqrt(2 / steps)


@pytest.mark.parametrize(("num_units", "world_size"), [(10, 3), (7, 7), (2, 3), (9, 1)])
def test_shards_of_ranks_are_disjoint_and_cover_all_units(num_units: int, world_size: int) -> None:
    batches = [next(iter(sampler)) for sampler in ranks(world_size, num_units, 1.0, 1, seed=3)]
    assert sorted(itertools.chain(*batches)) == list(range(num_units))


def test_two_ranks_draw_different_coins_from_one_seed() -> None:
    first, second = inclusion(ranks(2, 2000, 0.5, 1, seed=4))[0].reshape(-1, 2).T
    assert abs(np.mean(first == second) - 0.5) < 4 * 0.5 / math.sqrt(1000)


def test_empty_batches_occur_and_are_yielded() -> None:
    sampler = PoissonSampler(10, 0.05, steps_per_epoch=2000, seed=5)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 2000
    probability = 0.95**10
    assert abs(sum(not batch for batch in batches) / 2000 - probability) < 4 * math.sqrt(probability * 0.5 / 2000)


@pytest.mark.parametrize(
    ("num_units", "batch_size", "steps"), [(133_584, 2048, 66), (1000, 100, 10), (49, 1, 49), (10, 10, 1)]
)
def test_epoch_has_one_over_q_steps_rounded_up(num_units: int, batch_size: int, steps: int) -> None:
    assert len(PoissonSampler(num_units, batch_size / num_units)) == steps


def test_batch_is_a_function_of_secret_rank_epoch_and_number() -> None:
    sampler, same = PoissonSampler(200, 0.1, seed=6), PoissonSampler(200, 0.1, seed=6)
    epochs = [list(sampler), list(sampler), list(sampler)]
    assert epochs[0] != epochs[1] != epochs[2]  # iterating on never takes the same coins again
    same.set_epoch(2)
    assert list(same) == epochs[2]
    same.set_epoch(1)
    same.start_at(4)
    assert len(same) == 10
    assert list(same) == epochs[1][4:]
    assert list(same) == epochs[2]  # the offset is for one iteration


def test_entropy_differs_between_samplers() -> None:
    assert list(PoissonSampler(200, 0.1)) != list(PoissonSampler(200, 0.1))


def test_it_is_a_batch_sampler_of_a_data_loader() -> None:
    sampler = PoissonSampler(20, 0.05, steps_per_epoch=30, seed=7)
    loader = DataLoader(range(20), batch_sampler=sampler, collate_fn=list)  # type: ignore[arg-type]
    batches = list(loader)
    sampler.set_epoch(0)
    assert batches == list(sampler) and [] in batches


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


def test_a_million_units_are_drawn_in_milliseconds() -> None:
    sampler = PoissonSampler(1_000_000, 2e-3, steps_per_epoch=5)
    start = time.process_time()
    assert all(1500 < len(batch) < 2500 for batch in sampler)
    assert (time.process_time() - start) / 5 < 0.1


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_units": 0, "sample_rate": 0.5},
        {"num_units": 5, "sample_rate": 0.0},
        {"num_units": 5, "sample_rate": 1.5},
        {"num_units": 5, "sample_rate": math.nan},
        {"num_units": 5, "sample_rate": 0.5, "rank": 2, "world_size": 2},
        {"num_units": 5, "sample_rate": 0.5, "steps_per_epoch": 0},
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"num_units|sample_rate|rank|steps_per_epoch"):
        PoissonSampler(**arguments)  # type: ignore[arg-type]


def test_start_beyond_the_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match="epoch"):
        PoissonSampler(10, 0.5).start_at(3)
