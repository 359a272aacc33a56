"""Releases beside trainings: what each kind is and costs, its plan, and how it is drawn, once, in the line that pays.

A release of a further kind is one class: a name for the ledger, why its sums have sensitivity 1, and :meth:`draw`. It
is calibrated by :func:`~doppel.privacy.plan.calibrate`, declared by :func:`declare` and drawn through :func:`once`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from doppel.privacy.accounting import DPMechanism, Mechanism
from doppel.privacy.histogram import add_noise
from doppel.privacy.ledger import Ledger
from doppel.privacy.plan import ReleasePlan

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Release(DPMechanism, Protocol):
    """What gives numbers of private data away, all units at once: what it costs, and how it is drawn."""

    @property
    def draw(self) -> Callable[..., Any]:
        """Draw it, with its noise, from exact numbers that stay in memory."""


@dataclass(frozen=True)
class GaussianRelease:
    """`steps` Gaussian releases of sensitivity 1 without subsampling; a subclass says of what, and draws them.

    Formal guarantees:
        Noise of standard deviation sigma on a function of sensitivity 1 is the Gaussian mechanism of noise multiplier
        sigma, whatever was released before. A subclass argues its sensitivity, and that its noise is as good.

    Attributes:
        noise_multiplier: sigma, above 0.
        steps: Number of releases, at least 1.
    """

    noise_multiplier: float
    steps: int = 1
    kind: ClassVar[str] = "gaussian"

    @property
    def dp_event(self) -> DpEvent:
        """The releases, composed."""
        return Mechanism(1.0, self.noise_multiplier, self.steps).dp_event


@dataclass(frozen=True)
class NoisySums(GaussianRelease):
    """Sums over the units, of sensitivity 1 in L2 norm, with noise; a subclass says of what."""

    def draw(self, sums: Mapping[str, float], seed: int | None = None) -> dict[str, float]:
        """Return the sums with noise, see :func:`~doppel.privacy.histogram.add_noise`."""
        return add_noise(sums, self.noise_multiplier, seed)


@dataclass(frozen=True)
class NoisyHistogram(NoisySums):
    """How often public labels occur; :func:`~doppel.privacy.histogram.unit_sums` argues the sensitivity."""

    kind: ClassVar[str] = "gaussian_histogram"


def declare(
    ledger: Ledger,
    scope: str,
    stage: str,
    plan: ReleasePlan,
    fingerprint: str,
    seed: int | None = None,
    total_epsilon: float | None = None,
    data_file: str | None = None,
) -> str:
    """Declare a release in a ledger, or find the one that an interrupted run declared; spends nothing.

    Args:
        ledger: What pays.
        scope: Its budget.
        stage: What the ledger calls it.
        plan: Its terms.
        fingerprint: Of the private data.
        seed: Of the noise, for tests: it voids the scope.
        total_epsilon: What all on the same data may cost together.
        data_file: Of the whole file that the data are of.

    Returns:
        Its id.
    """
    mechanism = ledger.open(
        scope=scope,
        stage=stage,
        spec=plan,
        planned_steps=plan.steps,
        data_fingerprint=fingerprint,
        total_epsilon=total_epsilon,
        data_file=data_file,
    )
    if seed is not None:
        text = f"the noise of {stage} was drawn from a fixed seed, and whoever reads it can subtract the noise"
        ledger.caveat(scope, text, voids=True)
    return mechanism


def contents(ledger: Ledger, mechanism: str) -> list[dict[str, Any]]:
    """Return the numbers that a mechanism has released, in their order."""
    return [dict(own.content) for own in ledger.releases(mechanism) if own.content is not None]


def once(
    ledger: Ledger, mechanism: str, draw: Callable[[], Mapping[str, Any]], number: int = 1
) -> dict[str, Any] | None:
    """Return what was released, or draw it, pay for it and say in the ledger what it is.

    Formal guarantees:
        Killed at any moment, a process has paid and released, or neither: the numbers are in the line that pays. Who
        goes on reads that line, and noise is never drawn a second time for one payment: one whose line a crash tore is
        lost, for a part of its numbers may stand there. What the scope cannot pay is refused before it is drawn, so no
        private row is read in vain.

    Args:
        ledger: What pays.
        mechanism: Its id there, as :func:`declare` returned it.
        draw: Draws the numbers, JSON-ready, with their noise; they have been nowhere but in the memory of this process.
        number: Which of the mechanism's releases, from 1; those that were lost do not count.

    Returns:
        None where no planned release is left, for one was lost.

    Raises:
        BudgetExceededError: The scope cannot pay it; nothing was drawn.
    """
    released = contents(ledger, mechanism)
    if len(released) >= number:
        return released[number - 1]
    known = ledger.mechanisms[mechanism]
    if known.done_steps >= known.planned_steps:
        return None
    if not ledger.remaining(mechanism):
        ledger.spend(mechanism)  # refuses and says why
    content = dict(draw())
    ledger.spend(mechanism, content)
    return content
