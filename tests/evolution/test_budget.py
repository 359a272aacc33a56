"""The noise of rounds, against the specification's tables, dp-accounting and a direct sum."""

from __future__ import annotations

import math
import warnings

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant

from doppel.evolution.budget import Outlook, plan_votes
from doppel.privacy.accounting import CalibrationError, Mechanism
from doppel.privacy.spec import PrivacyArguments

#: N → σ of ten rounds at ε = 1, 2, 4, at δ = 1/(N ln N), as they were published.
TABLE = {
    8_396: (11.600, 6.211, 3.374),
    29_000: (12.556, 6.668, 3.591),
    75_316: (13.251, 7.001, 3.749),
    1_939_290: (15.404, 8.039, 4.245),
}
#: N → σ of ten rounds beside rows that cost a tenth of μ².
BESIDE = {8_396: (12.227, 6.547, 3.557), 75_316: (13.967, 7.380, 3.952)}


@pytest.mark.parametrize("num_units", TABLE)
@pytest.mark.parametrize(("place", "epsilon"), enumerate((1.0, 2.0, 4.0)))
def test_sigma_is_that_of_the_tables(num_units: int, place: int, epsilon: float) -> None:
    spec = plan_votes(PrivacyArguments(epsilon, 1 / (num_units * math.log(num_units))), num_units, 10, "utterance")
    assert spec.noise_multiplier == pytest.approx(TABLE[num_units][place], abs=0.01)
    assert (spec.kind, spec.steps) == ("gaussian_votes", 10)
    accountant = PLDAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(spec.noise_multiplier), 10))
    assert accountant.get_epsilon(spec.budget.delta) == pytest.approx(epsilon, rel=2e-3)
    assert get_epsilon_gaussian(spec.noise_multiplier / math.sqrt(10), spec.budget.delta) <= epsilon * (1 + 1e-9), (
        "exactly"
    )


@pytest.mark.parametrize("num_units", BESIDE)
@pytest.mark.parametrize(("place", "epsilon"), enumerate((1.0, 2.0, 4.0)))
def test_rounds_leave_room_for_rows_of_attributes(num_units: int, place: int, epsilon: float) -> None:
    alone = plan_votes(PrivacyArguments(epsilon, 1 / (num_units * math.log(num_units))), num_units, 10, "utterance")
    mu = math.sqrt(10) / alone.noise_multiplier
    beside = 1 / math.sqrt(0.1) / mu
    room = PrivacyArguments(epsilon, alone.budget.delta, histogram_noise_multiplier=beside)
    share = PrivacyArguments(epsilon, alone.budget.delta, histogram_share=0.1)
    for given, paid in (
        (room, ()),
        (share, ()),
        (PrivacyArguments(epsilon, alone.budget.delta), (Mechanism(1.0, beside, 1),)),
    ):
        spec = plan_votes(given, num_units, 10, "utterance", planned=paid)
        assert spec.noise_multiplier == pytest.approx(BESIDE[num_units][place], abs=0.01)
        assert spec.budget.allows([*spec.mechanisms(), *paid])


def test_votes_beside_a_training_get_what_it_leaves() -> None:
    """Samples of DP-SGD and votes for them, in one scope: no closed form, so the accountant calibrates."""
    training = Mechanism(0.05, 1.2, 60)
    spec = plan_votes(PrivacyArguments(4.0), 5000, 2, "utterance", planned=[training])
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.2)), 60)
    votes = SelfComposedDpEvent(GaussianDpEvent(spec.noise_multiplier), 2)
    assert PLDAccountant().compose(event).compose(votes).get_epsilon(spec.budget.delta) == pytest.approx(4.0, rel=5e-3)
    assert spec.noise_multiplier > plan_votes(PrivacyArguments(4.0), 5000, 2, "utterance").noise_multiplier


def test_another_accountant_calibrates_itself() -> None:
    exact = plan_votes(PrivacyArguments(2.0), 5000, 4, "user").noise_multiplier
    rdp = plan_votes(PrivacyArguments(2.0, accountant="rdp"), 5000, 4, "user")
    assert rdp.noise_multiplier > exact and rdp.budget.accountant == "rdp"
    assert rdp.budget.allows(rdp.mechanisms())


def test_what_no_noise_can_keep_is_refused() -> None:
    with pytest.raises(CalibrationError, match="beside"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan_votes(PrivacyArguments(0.5, histogram_noise_multiplier=0.5), 5000, 3, "utterance")


def test_the_papers_defaults_drown_and_what_is_advised_does_not() -> None:
    spec = plan_votes(PrivacyArguments(1.0, 1 / (8_396 * math.log(8_396))), 8_396, 10, "utterance")
    paper = Outlook(8_396, 14_000, 14_000, 1, 10, spec.noise_multiplier)
    assert paper.votes == pytest.approx(0.60, abs=0.005) and paper.noise == pytest.approx(11.6, abs=0.01)
    assert paper.advice is not None and "votes are below the noise: 0.6 on average under noise of 11.6" in paper.advice
    clusters = int(paper.advice.split("evolution.clusters=")[1].split(",")[0])
    assert Outlook(8_396, 14_000, clusters, 1, 10, spec.noise_multiplier).advice is None
    assert Outlook(8_396, 14_000, clusters + 20, 1, 10, spec.noise_multiplier).advice is not None
    assert Outlook(8_396, 200, 200, 1, 10, None).advice is None, "without noise no vote is below it"
    fewer = Outlook(8_396, 1000, 1000, 1, 10, spec.noise_multiplier)
    assert fewer.advice is not None and "evolution.rounds=5" in fewer.advice


def test_more_votes_each_are_more_votes_under_more_noise() -> None:
    one, four = Outlook(1000, 100, 100, 1, 2, 3.0), Outlook(1000, 100, 100, 4, 2, 3.0)
    assert (four.votes / one.votes, four.noise / one.noise) == (4, 2)
