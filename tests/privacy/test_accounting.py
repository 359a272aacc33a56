"""The accountants: published values, bounds that hold, composition, errors that mend."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from dp_accounting import ComposedDpEvent, DpEvent, LaplaceDpEvent
from dp_accounting.pld import PLDAccountant

from doppel.privacy import accounting
from doppel.privacy.accounting import (
    Accountant,
    CalibrationError,
    Mechanism,
    calibrate_noise_multiplier,
    compute_epsilon,
    cross_check,
    default_delta,
)
from doppel.privacy.spec import PrivacyBudget, plan

DELTA = 8e-6
#: Settings (N, B, epochs) → sigma at epsilon 3, 8 and 16 by RDP and by PLD, delta 8e-6. All but the first are slow.
PUBLISHED = [
    (133_584, 2048, 10, (0.960, 0.662, 0.525), (0.906, 0.631, 0.501)),
    (133_584, 2048, 7, (0.908, 0.634, 0.501), (0.851, 0.602, 0.478)),
    (133_584, 1024, 10, (0.826, 0.596, 0.482), (0.775, 0.568, 0.462)),
    (121_652, 1024, 10, (0.840, 0.604, 0.487), (0.791, 0.576, 0.466)),
    (120_226, 1024, 10, (0.843, 0.605, 0.488), (0.792, 0.576, 0.467)),
]
CASES = [
    pytest.param(
        units,
        batch,
        epochs,
        accountant,
        epsilon,
        sigma,
        id=f"{units}-{batch}-{epochs}-{accountant}-{epsilon}",
        marks=[pytest.mark.slow] if row else [],
    )
    for row, (units, batch, epochs, by_rdp, by_pld) in enumerate(PUBLISHED)
    for accountant, sigmas in (("rdp", by_rdp), ("pld", by_pld))
    for epsilon, sigma in zip((3, 8, 16), sigmas, strict=True)
]
RATE = 2048 / 133_584


def calibrated(epsilon: float, delta: float, rate: float, steps: int, accountant: Accountant = "pld") -> Mechanism:
    sigma = calibrate_noise_multiplier(lambda sigma: [Mechanism(rate, sigma, steps)], epsilon, delta, accountant)
    return Mechanism(rate, sigma, steps)


@pytest.mark.parametrize(("units", "batch", "epochs", "accountant", "epsilon", "sigma"), CASES)
def test_sigma_agrees_with_the_published_table_and_keeps_the_promise(units, batch, epochs, accountant, epsilon, sigma):
    found = calibrated(epsilon, DELTA, batch / units, math.ceil(epochs * units / batch), accountant)
    assert found.noise_multiplier == pytest.approx(sigma, abs=0.01)
    assert 0.99 * epsilon <= compute_epsilon([found], DELTA, accountant) <= epsilon


#: N, B, epochs of each stage, target epsilon, delta, accountant, noise of a histogram beside them → sigma.
PLANS = [
    (133_584, 2048, 10, 3.0, DELTA, "prv", None, 0.906764),
    (20_000, 500, [2, 8], 4.0, None, "pld", 10.0, 0.920662),
    (60_000, 3000, 2, 0.5, 1e-6, "pld", None, 2.918494),
    (5000, 5000, 40, 2.0, None, "pld", 20.0, 12.676557),
    (1_939_290, 256, 1, 1.0, None, "rdp", None, 0.919136),
]
SLOW_PLANS = [
    (133_584, 2048, 10, 3.0, DELTA, "pld", None, 0.906082),
    (133_584, 2048, 10, 8.0, DELTA, "rdp", None, 0.661902),
    (133_584, 1024, [2, 8], 16.0, DELTA, "pld", None, 0.461320),
    (20_000, 500, [2, 8], 8.0, None, "prv", 10.0, 0.695167),
    (300, 15, 6, 8.0, None, "pld", None, 0.717196),
]


@pytest.mark.parametrize(
    ("units", "batch", "epochs", "epsilon", "delta", "accountant", "histogram", "sigma"),
    [*PLANS, *(pytest.param(*plan, marks=pytest.mark.slow) for plan in SLOW_PLANS)],
)
def test_sigma_of_ten_plans_stays(units, batch, epochs, epsilon, delta, accountant, histogram, sigma):
    """A run that goes on, and whoever repeats a published one, needs the sigma of before."""
    found = plan(
        units, batch, epochs, epsilon, delta, accountant=accountant, histogram_noise_multiplier=histogram
    ).noise_multiplier
    assert found == pytest.approx(sigma, rel=2e-3)


#: Mechanisms → epsilon by pld, prv and rdp.
COMPOSED = [
    ([Mechanism(RATE, 0.95, 653)], (2.6859, 2.6960, 3.0703)),
    ([Mechanism(RATE, 0.95, 653), Mechanism(1.0, 10.0, 1)], (2.7165, 2.7267, 3.1000)),
    ([Mechanism(0.05, 1.1, 200), Mechanism(0.02, 0.8, 300)], (5.4016, 5.4119, 6.0704)),
    ([Mechanism(1.0, 12.0, 9)], (0.9401, 0.9501, 1.0257)),
    ([Mechanism(0.1, 0.67, 30)], (9.7570, 9.7678, 11.2853)),
]


@pytest.mark.parametrize(("mechanisms", "epsilons"), COMPOSED)
def test_epsilon_of_five_compositions_stays(mechanisms, epsilons):
    found = [compute_epsilon(mechanisms, DELTA, accountant) for accountant in ("pld", "prv", "rdp")]
    assert found == pytest.approx(epsilons, rel=2e-3)


@pytest.mark.parametrize("epsilon", [0.5, *(pytest.param(e, marks=pytest.mark.slow) for e in (3.0, 8.0))])
def test_prv_cross_checks_pld(epsilon):
    by_prv, by_pld = (calibrated(epsilon, 1e-6, 0.01, 400, accountant) for accountant in ("prv", "pld"))
    assert by_prv.noise_multiplier == pytest.approx(by_pld.noise_multiplier, rel=0.02)
    assert compute_epsilon([by_prv], 1e-6, "prv") <= epsilon


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
def test_full_batches_are_plain_gaussian_composition(accountant):
    """k releases with sigma are one release with sigma / sqrt(k), whose epsilon has a closed form."""
    epsilon = compute_epsilon([Mechanism(1.0, 12.0, 9)], 1e-5, accountant)
    sigma = 4.0

    def delta_at(eps: float) -> float:  # Balle and Wang (2018), Theorem 8
        def cdf(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        return cdf(0.5 / sigma - eps * sigma) - math.exp(eps) * cdf(-0.5 / sigma - eps * sigma)

    assert delta_at(epsilon) <= 1e-5 * (1 + 1e-9), "not an upper bound"
    slack = 0.2 if accountant == "rdp" else 0.03
    assert delta_at(epsilon * (1 - slack)) > 1e-5, "needlessly loose"


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
def test_composition_ignores_order_and_splitting_and_counts_unlike_mechanisms(accountant):
    training, histogram = Mechanism(RATE, 0.95, 653), Mechanism(1.0, 10.0, 1)
    split = [Mechanism(RATE, 0.95, 131), histogram, Mechanism(RATE, 0.95, 522)]
    together = compute_epsilon([training, histogram], DELTA, accountant)
    assert compute_epsilon(split, DELTA, accountant) == together
    alone = [compute_epsilon([m], DELTA, accountant) for m in (training, histogram)]
    assert max(alone) < together < sum(alone)


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
def test_unlike_mechanisms_that_are_nearly_alike_cost_what_one_does(accountant):
    """The path over several distributions agrees with the path over one."""
    one = compute_epsilon([Mechanism(RATE, 0.95, 653)], DELTA, accountant)
    two = compute_epsilon([Mechanism(RATE, 0.95, 300), Mechanism(RATE, 0.95 + 1e-7, 353)], DELTA, accountant)
    assert two == pytest.approx(one, abs=0.011)


def test_nothing_released_costs_nothing_and_no_noise_costs_everything():
    assert compute_epsilon([], 1e-5) == 0.0
    assert compute_epsilon([Mechanism(0.1, 1.0, 0)], 1e-5) == 0.0
    assert compute_epsilon([Mechanism(0.1, 0.0, 1)], 1e-5) == math.inf
    assert compute_epsilon([Mechanism(0.1, 0.05, 100)], 1e-5) > 100.0


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_affordable_steps_are_the_last_that_fit(accountant):
    spent = [Mechanism(RATE, 1.1, 100)]

    def cost(steps: int) -> float:
        return compute_epsilon([*spent, Mechanism(0.02, 0.8, steps)], DELTA, accountant)

    budget = PrivacyBudget(3.0, DELTA, accountant, "utterance")
    steps = budget.remaining_steps(spent, 0.02, 0.8, limit=1000)
    assert cost(steps) <= 3.0 < cost(steps + 1)
    assert budget.remaining_steps(spent, 0.02, 0.8, limit=steps - 1) == steps - 1
    assert replace(budget, target_epsilon=cost(0) / 2).remaining_steps(spent, 0.02, 0.8, limit=10) == 0


def test_default_delta_is_below_one_over_n():
    assert default_delta(133_584) == pytest.approx(1 / (133_584 * math.log(133_584)))
    assert default_delta(133_584) < 1 / 133_584


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: calibrated(1e-6, 1e-6, 0.5, 10**6), "epsilon 1e-06"),
        (lambda: calibrated(0.05, 1e-6, 0.01, 100, "rdp"), "pld"),
        (lambda: calibrated(-1.0, 1e-6, 0.01, 100), "target_epsilon is -1.0"),
        (lambda: calibrated(1.0, 1.5, 0.01, 100), "delta is 1.5"),
        (lambda: compute_epsilon([], 1e-6, "gdp"), "gdp.*pld, prv, rdp"),
        (lambda: Mechanism(1.5, 1.0, 1), "sample_rate is 1.5"),
        (lambda: Mechanism(0.5, -1.0, 1), "noise_multiplier is -1.0"),
        (lambda: Mechanism(0.5, 1.0, -1), "steps is -1"),
        (lambda: default_delta(1), "num_units is 1"),
    ],
)
def test_what_cannot_be_is_one_line_that_mends(call, words):
    with pytest.raises(CalibrationError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["prv", "rdp"])
def test_an_accountant_that_opacus_has_finds_what_opacus_finds(name: Accountant) -> None:
    accountants = pytest.importorskip("opacus.accountants")
    theirs = {"prv": accountants.PRVAccountant, "rdp": accountants.RDPAccountant}[name]()
    theirs.history = [(0.9, 0.02, 300), (20.0, 1.0, 1)]
    ours = compute_epsilon([Mechanism(0.02, 0.9, 300), Mechanism(1.0, 20.0, 1)], 1e-5, name)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)


@dataclass(frozen=True)
class Laplace:
    """A mechanism that is none of ours: all that the accounting asks of it is its event."""

    scale: float

    @property
    def dp_event(self) -> DpEvent:
        return ComposedDpEvent([LaplaceDpEvent(self.scale)])


def test_a_mechanism_of_another_kind_is_composed_and_calibrated_by_its_event() -> None:
    assert compute_epsilon([Laplace(4.0)], 1e-9) == pytest.approx(1 / 4, rel=1e-3)
    training = Mechanism(0.02, 0.9, 100)
    alone = compute_epsilon([training], 1e-5)
    assert alone < compute_epsilon([training, Laplace(4.0)], 1e-5) < alone + 1 / 4
    scale = calibrate_noise_multiplier(lambda scale: [training, Laplace(scale)], alone + 0.1, 1e-5)
    assert compute_epsilon([training, Laplace(scale)], 1e-5) == pytest.approx(alone + 0.1, rel=1e-3)
    with pytest.raises(CalibrationError, match="Gaussian noise alone"):
        compute_epsilon([Laplace(4.0)], 1e-5, "prv")


SCHEDULES = [
    [Mechanism(0.1, 0.67, 30)],
    [Mechanism(0.01, 1.1, 3000), Mechanism(1.0, 20.0, 1)],
    [Mechanism(1.0, 0.5, 1)],
    [],
]


@pytest.mark.parametrize("mechanisms", SCHEDULES, ids=map(str, range(len(SCHEDULES))))
@pytest.mark.parametrize("has_opacus", [True, False])
def test_a_second_accountant_agrees_with_the_first(
    mechanisms: list[Mechanism], has_opacus: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "has_opacus", lambda: has_opacus)
    found, contradiction = cross_check(mechanisms, 1e-5)
    assert contradiction is None
    assert next(iter(found)) == "pld" and found["pld"] == compute_epsilon(mechanisms, 1e-5)
    assert has_opacus == ("prv" in found) and (len(found) > 1 or found["pld"] == 0)


@pytest.mark.parametrize(("factor", "has_opacus"), [(0.5, True), (2.0, False)])
def test_a_wrong_accountant_is_found(factor: float, has_opacus: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that finds too little needs Opacus to be found."""
    right = PLDAccountant.get_epsilon
    monkeypatch.setattr(accounting, "has_opacus", lambda: has_opacus)
    monkeypatch.setattr(PLDAccountant, "get_epsilon", lambda self, delta: factor * right(self, delta))
    accounting._epsilon.cache_clear()
    try:
        assert "one is wrong" in str(cross_check(SCHEDULES[1], 1e-5)[1])
    finally:
        accounting._epsilon.cache_clear()


def test_planning_loads_neither_torch_nor_lightning():
    program = (
        "import sys; from doppel.privacy.spec import plan; import doppel.privacy.ledger; "
        "plan(10_000, 100, 1, 8.0); print([m for m in ('torch', 'lightning', 'opacus') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and done.stderr == ""
