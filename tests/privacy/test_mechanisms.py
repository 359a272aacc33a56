"""Every mechanism is one frozen class: calibration, composition and the ledger see its event and its name alone."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from doppel.evolution.votes import NoisyVotes
from doppel.privacy.accounting import (
    DPMechanism,
    GaussianRelease,
    Mechanism,
    calibrate_noise_multiplier,
    compute_epsilon,
)
from doppel.privacy.histogram import NoisyHistogram, unit_sums
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import PrivacyArguments
from doppel.tables.releases import NoisyMarginals

ALL: list[DPMechanism] = [Mechanism(0.05, 0.8, 60), NoisyHistogram(10.0), NoisyVotes(3.0, 4), NoisyMarginals(5.0)]


@dataclass(frozen=True)
class Later(GaussianRelease):
    """A mechanism that nobody has thought of."""

    kind: ClassVar[str] = "gaussian_later"


def test_what_all_mechanisms_cost_together_is_what_their_events_cost() -> None:
    step = PoissonSampledDpEvent(0.05, GaussianDpEvent(0.8))
    parts = [SelfComposedDpEvent(step, 60), *(GaussianDpEvent(sigma) for sigma in (10.0, 5.0, *[3.0] * 4))]
    direct = PLDAccountant(value_discretization_interval=1e-4).compose(ComposedDpEvent(parts)).get_epsilon(1e-6)
    assert compute_epsilon(ALL, 1e-6) == pytest.approx(direct, rel=2e-3)
    assert len({mechanism.kind for mechanism in ALL}) == 4


@pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.kind)
def test_the_terms_of_a_mechanism_do_not_change(mechanism: DPMechanism) -> None:
    with pytest.raises(FrozenInstanceError):
        mechanism.noise_multiplier = 0.1  # type: ignore[attr-defined]


def test_a_later_mechanism_is_one_class(tmp_path: Path) -> None:
    """It is calibrated beside others, and the ledger composes it, with no line of code for it elsewhere."""
    training = Mechanism(0.05, 0.8, 60)
    sigma = calibrate_noise_multiplier(lambda sigma: [training, Later(sigma)], 6.0, 1e-6)
    together = [training, Later(sigma)]
    assert 5.98 < compute_epsilon(together, 1e-6) <= 6.0
    spec = PrivacyArguments(target_epsilon=6.0, delta=1e-6).plan_releases(2000, "utterance", sigma)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    name = ledger.open(scope="one", stage="later", spec=spec, planned_steps=1, data_fingerprint="f00d", kind=Later.kind)
    ledger.spend(name, {"found": [1.5]})
    assert ledger.mechanisms[name].kind == "gaussian_later" and ledger.releases(name)[0].content == {"found": [1.5]}
    assert ledger.epsilon("one") == compute_epsilon([Later(sigma)], 1e-6)


def test_a_mechanism_draws_its_release_around_the_truth() -> None:
    rows = [(str(unit), {"a": 1.0} if unit % 4 else {"b": 1.0}) for unit in range(4000)]
    true = unit_sums(rows, "abc")
    for released in (NoisyHistogram(7.0).release(rows, "abc"), NoisyVotes(7.0).release(true)):
        gaps = [released[name] - true[name] for name in "abc"]
        assert all(0 < abs(gap) < 7 * 7.0 for gap in gaps)
