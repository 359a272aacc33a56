"""The lower bound holds as often as it says, and attacks catch an engine without its noise or its clipping."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from known_plans import known_plan
from torch import Tensor

from doppel.privacy.audit import GUESS_SHARES, AuditResult, audit_scores, epsilon_lower_bound, largest_bound, p_value
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.private_step import noisy_mean
from doppel.privacy.sampling import PoissonSampler


def naive_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The theorem, term by term, in exact binomials."""
    q = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    pmf = [math.comb(r, k) * q**k * (1.0 - q) ** (r - k) for k in range(r + 1)]
    alpha = max((sum(pmf[max(v - i, 0) : v]) / i for i in range(1, m + 1)), default=0.0)
    return min(1.0, sum(pmf[v:]) + 2.0 * m * delta * alpha)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
@pytest.mark.parametrize(("m", "r", "v"), [(1, 1, 1), (20, 10, 0), (30, 30, 17), (100, 60, 45), (100, 100, 100)])
def test_p_value_is_the_theorem(m: int, r: int, v: int, delta: float) -> None:
    for epsilon in (0.0, 0.3, 1.0, 4.0):
        assert p_value(m, r, v, epsilon, delta) == pytest.approx(naive_p_value(m, r, v, epsilon, delta), rel=1e-9)


@pytest.mark.parametrize("m", [100, 200, 500, 1000])
def test_all_guesses_right_has_a_closed_form(m: int) -> None:
    """Without delta, q^m = 1 - confidence."""
    accuracy = 0.05 ** (1.0 / m)
    assert epsilon_lower_bound(m, m, m, delta=0.0) == pytest.approx(math.log(accuracy / (1.0 - accuracy)), abs=1e-6)


def test_bound_grows_with_right_guesses_and_falls_with_delta_confidence_and_canaries() -> None:
    by_correct = [epsilon_lower_bound(200, 100, v, 1e-5) for v in range(101)]
    assert by_correct == sorted(by_correct)
    assert by_correct[50] == 0.0
    assert by_correct[100] > 3.0
    for values in (
        [epsilon_lower_bound(200, 100, 90, delta) for delta in (0.0, 1e-6, 1e-4, 1e-3)],
        [epsilon_lower_bound(200, 100, 90, 1e-4, confidence) for confidence in (0.8, 0.9, 0.95, 0.99)],
        [epsilon_lower_bound(m, 100, 90, 1e-4) for m in (100, 200, 400, 800)],
    ):
        assert all(a > b for a, b in zip(values, values[1:], strict=False)), values


def test_bound_is_the_largest_rejected_epsilon() -> None:
    bound = epsilon_lower_bound(300, 150, 120, 1e-4)
    assert p_value(300, 150, 120, bound, 1e-4) < 0.05 <= p_value(300, 150, 120, bound + 1e-6, 1e-4)


def randomised_response(
    rng: np.random.Generator, m: int, epsilon: float, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Coins, and scores of a mechanism that is exactly (epsilon, delta)-private for each of them."""
    coins = rng.random(m) < 0.5
    told = rng.random(m) < math.exp(epsilon) / (1.0 + math.exp(epsilon))
    scores = np.where(coins == told, 1.0, -1.0) * (1.0 + 0.01 * rng.random(m))  # ties broken by chance
    revealed = rng.random(m) < delta
    return np.where(revealed, np.where(coins, 9.0, -9.0), scores), coins


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "delta", "claimed_delta"), [(0.5, 0.0, 0.0), (1.0, 0.0, 1e-5), (2.0, 2e-4, 2e-4), (4.0, 0.0, 0.0)]
)
def test_bound_exceeds_the_true_epsilon_in_at_most_five_percent_of_runs(
    epsilon: float, delta: float, claimed_delta: float
) -> None:
    rng, num_runs = np.random.default_rng(1), 200
    bounds = []
    for _ in range(num_runs):
        scores, coins = randomised_response(rng, 150, epsilon, delta)
        bounds.append(audit_scores(scores.tolist(), coins.tolist(), claimed_delta).epsilon_lower_bound)
    too_large = sum(bound > epsilon for bound in bounds)
    assert too_large <= 0.05 * num_runs + 2.0 * math.sqrt(0.05 * 0.95 * num_runs)
    assert max(bounds) > 0.0


@pytest.mark.slow
def test_one_number_of_guesses_is_right_at_its_confidence_and_close_for_many_canaries() -> None:
    rng, epsilon, m, num_runs = np.random.default_rng(2), 1.0, 2000, 300
    correct = rng.binomial(m, math.exp(epsilon) / (1.0 + math.exp(epsilon)), num_runs)
    bounds = [epsilon_lower_bound(m, m, int(v), delta=0.0) for v in correct]
    share = sum(bound > epsilon for bound in bounds) / num_runs
    assert 0.01 < share < 0.09  # neither too bold nor idle
    assert epsilon - 0.2 < float(np.median(bounds)) < epsilon


def test_guesses_take_the_extremes_and_pay_for_every_try() -> None:
    coins = [i < 50 for i in range(100)]
    result = audit_scores([1.0 if coin else 0.0 for coin in coins], coins, delta=0.0)
    assert (result.num_guesses, result.num_correct, result.num_tries) == (100, 100, len(GUESS_SHARES))
    assert result.epsilon_lower_bound == pytest.approx(epsilon_lower_bound(100, 100, 100, 0.0, 1 - 0.05 / 4), abs=1e-6)
    alone = audit_scores([1.0 if coin else 0.0 for coin in coins], coins, delta=0.0, guess_shares=[1.0])
    assert alone.epsilon_lower_bound > result.epsilon_lower_bound
    wrong = audit_scores([0.0 if coin else 1.0 for coin in coins], coins, delta=0.0)
    assert wrong.epsilon_lower_bound == 0.0


@pytest.mark.parametrize("num_canaries", [2, 50, 333])
def test_no_scores_pass_the_largest_bound(num_canaries: int) -> None:
    limit = largest_bound(num_canaries, 1e-4)
    coins = [i % 2 == 0 for i in range(num_canaries)]
    perfect = audit_scores([float(coin) for coin in coins], coins, 1e-4)
    assert perfect.epsilon_lower_bound <= limit
    assert perfect.epsilon_lower_bound == pytest.approx(limit) or num_canaries % 2


def test_equal_scores_are_guessed_without_looking_at_the_coins() -> None:
    """A training that ignores the canaries gives equal scores; the bound must stay at nothing."""
    rng = np.random.default_rng(3)
    bounds = [audit_scores([0.0] * 100, (rng.random(100) < 0.5).tolist(), 0.0).epsilon_lower_bound for _ in range(200)]
    assert sum(bound > 0.0 for bound in bounds) <= 20


@pytest.mark.parametrize(
    ("scores", "included", "shares"),
    [([1.0], [True], [1.0]), ([1.0, 2.0], [True], [1.0]), ([1.0, math.nan], [True, False], [1.0])]
    + [([1.0, 2.0], [True, False], shares) for shares in ([], [0.0], [1.5])],
)
def test_wrong_inputs_are_refused(scores: list[float], included: list[bool], shares: list[float]) -> None:
    with pytest.raises(ValueError, match=r"scores|number|guess_shares"):
        audit_scores(scores, included, 0.0, guess_shares=shares)


@pytest.mark.parametrize("numbers", [(10, 5, 6), (10, 11, 3), (10, 0, 0), (10, 5, -1)])
def test_impossible_counts_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="guesses"):
        epsilon_lower_bound(*numbers, delta=0.0)


# ------------------------------------------------------------------------------------- the engine under attack
NUM_CANARIES, VOCABULARY, LENGTH = 200, 48, 8
CLAIM = known_plan("200 canaries")


def tiny_language_model() -> tuple[torch.nn.Module, Callable[[Tensor], Tensor]]:
    """A one-layer GPT-2 with tied weights, and its mean token loss per row."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=48, n_layer=1, n_head=2, **none)
    )

    def losses(ids_BT: Tensor) -> Tensor:
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1]
        nll = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none")
        return nll.view(len(ids_BT), -1).mean(1)

    return model, losses


def attack(max_grad_norm: float, noise_multiplier: float, seed: int) -> AuditResult:
    """Train on canaries alone with the pieces of the engine; guess them from their losses."""
    generator = torch.Generator().manual_seed(seed)
    canaries = torch.randint(VOCABULARY, (NUM_CANARIES, LENGTH), generator=generator)
    coins = torch.rand(NUM_CANARIES, generator=generator) < 0.5
    model, losses = tiny_language_model()
    with torch.no_grad():
        before = losses(canaries)
    clipper = PerSampleClipper(model, max_grad_norm=max_grad_norm)
    noise = GaussianNoise(noise_multiplier, CLAIM.max_grad_norm, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = PoissonSampler(NUM_CANARIES, CLAIM.sample_rate, CLAIM.steps, seed=seed)
    for step in range(CLAIM.steps):
        optimizer.zero_grad()
        units = [unit for unit in batches.units_at(step) if coins[unit]]  # a canary that is out contributes zero
        if units:
            with clipper.capture(len(units)):
                losses(canaries[units]).sum().backward()
            clipper.accumulate()
        noisy_mean(model.parameters(), noise, CLAIM.expected_batch_size, step)
        optimizer.step()
    clipper.close()
    with torch.no_grad():
        scores = before - losses(canaries)
    return audit_scores(scores.tolist(), coins.tolist(), CLAIM.budget.delta)


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
def test_a_healthy_engine_stays_below_its_claim() -> None:
    for seed in range(2):
        result = attack(CLAIM.max_grad_norm, CLAIM.noise_multiplier, seed)
        assert not result.contradicts(CLAIM.budget.target_epsilon), result


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
def test_an_engine_without_noise_is_caught() -> None:
    result = attack(CLAIM.max_grad_norm, 0.0, seed=0)
    assert result.contradicts(2.0 * CLAIM.budget.target_epsilon), result


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
def test_an_engine_without_clipping_is_caught() -> None:
    """The noise stays at what was promised for clipped gradients."""
    result = attack(math.inf, CLAIM.noise_multiplier, seed=0)
    assert result.contradicts(2.0 * CLAIM.budget.target_epsilon), result


# ----------------------------------------------------------------- the engine under an attack on every gradient
NUM_ROWS = 2000
ROWS_CLAIM = known_plan("2,000 rows")


def attack_every_gradient(noise: float = 1.0, clipping: float = 1.0) -> AuditResult:
    """Near the best that an attacker can do who sees every noisy sum: each canary has a coordinate of its own.

    Args:
        noise: Factor on the noise that was promised.
        clipping: Factor on the clipping norm that was promised.
    """
    seed = 0
    coins = torch.rand(NUM_ROWS, generator=torch.Generator().manual_seed(seed)) < 0.5
    table = torch.nn.Embedding(NUM_ROWS, 1)
    clipper = PerSampleClipper(table, max_grad_norm=clipping * ROWS_CLAIM.max_grad_norm)
    gaussian = GaussianNoise(noise * ROWS_CLAIM.noise_multiplier, ROWS_CLAIM.max_grad_norm, seed=seed)
    scores = torch.zeros(NUM_ROWS)
    batches = PoissonSampler(NUM_ROWS, ROWS_CLAIM.sample_rate, ROWS_CLAIM.steps, seed=seed)
    for step in range(ROWS_CLAIM.steps):
        batch = batches.units_at(step)
        units = torch.tensor(batch)[coins[batch]]
        table.zero_grad()
        with clipper.capture(len(units)):
            (7.0 * table(units[:, None])).sum().backward()  # norm 7 before clipping
        clipper.accumulate()
        noisy_mean(table.parameters(), gaussian, 1, step)
        assert table.weight.grad is not None
        scores += table.weight.grad.flatten()
    return audit_scores(scores.tolist(), coins.tolist(), ROWS_CLAIM.budget.delta)


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
def test_the_attack_on_every_gradient_finds_some_leakage_in_a_healthy_engine_and_no_more_than_claimed() -> None:
    bound = attack_every_gradient().epsilon_lower_bound
    assert 0.1 * ROWS_CLAIM.budget.target_epsilon < bound < ROWS_CLAIM.budget.target_epsilon


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
@pytest.mark.parametrize("fault", [{"noise": 0.0}, {"noise": 0.25}, {"clipping": 4.0}])
def test_a_quarter_of_the_noise_or_four_times_the_clipping_norm_is_caught(fault: dict[str, float]) -> None:
    result = attack_every_gradient(**fault)
    assert result.contradicts(ROWS_CLAIM.budget.target_epsilon), result
