"""Every mechanism is one frozen class: calibration, composition and the ledger see its event and its name alone."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from doppel.evolution.votes import NoisyVotes
from doppel.privacy.accounting import DPMechanism, Mechanism, compute_epsilon
from doppel.privacy.histogram import unit_sums
from doppel.privacy.ledger import Ledger
from doppel.privacy.plan import calibrate
from doppel.privacy.release import NoisyHistogram, NoisySums, declare, once
from doppel.privacy.spec import PrivacyArguments
from doppel.tables.releases import NoisyMarginals

ALL: list[DPMechanism] = [Mechanism(0.05, 0.8, 60), NoisyHistogram(10.0), NoisyVotes(3.0, 4), NoisyMarginals(5.0)]


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


# A release that nobody has thought of: fifteen lines.
@dataclass(frozen=True)
class LongTexts(NoisySums):
    """How many units wrote a text of ten words: each adds at most one to one sum, so the sensitivity is 1."""

    kind: ClassVar[str] = "gaussian_long_texts"


def release_long_texts(book: Ledger, privacy: PrivacyArguments, texts: dict[str, str], beside: Mechanism) -> float:
    budget = privacy.budget(len(texts), "user")
    sigma = calibrate(budget, [beside], lambda sigma: [LongTexts(sigma)])
    paid = declare(book, "one", "long", privacy.plan_release(LongTexts.kind, len(texts), "user", sigma), "f00d")
    rows = ((unit, {"long": 1.0} if len(text.split()) >= 10 else {}) for unit, text in texts.items())
    content = once(book, paid, lambda: {"sums": LongTexts(sigma).draw(unit_sums(rows, ["long"]))})
    assert content is not None
    return float(content["sums"]["long"])


def test_a_later_release_is_one_class(tmp_path: Path) -> None:
    """It is calibrated beside others, composed, drawn once and kept, with no line of code for it elsewhere."""
    training, privacy = Mechanism(0.05, 0.8, 60), PrivacyArguments(target_epsilon=6.0, delta=1e-6)
    book, texts = Ledger(tmp_path / "ledger.jsonl"), {f"user {i}": "word " * (8 + i % 4) for i in range(2000)}
    found = release_long_texts(book, privacy, texts, training)
    assert 0 < abs(found - 1000) < 100 and release_long_texts(book, privacy, texts, training) == found
    (own,) = book.mechanisms.values()
    assert (own.kind, own.done_steps) == ("gaussian_long_texts", 1)
    assert 5.98 < compute_epsilon([training, LongTexts(own.key[1])], 1e-6) <= 6.0
    assert book.epsilon("one") == compute_epsilon([LongTexts(own.key[1])], 1e-6)


def test_a_mechanism_draws_its_release_around_the_truth() -> None:
    rows = [(str(unit), {"a": 1.0} if unit % 4 else {"b": 1.0}) for unit in range(4000)]
    true = unit_sums(rows, "abc")
    for released in (NoisyHistogram(7.0).draw(true), NoisyVotes(7.0).draw(true)):
        gaps = [released[name] - true[name] for name in "abc"]
        assert all(0 < abs(gap) < 7 * 7.0 for gap in gaps)
