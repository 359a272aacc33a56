"""The budget of a private training: what a user decides, what that promises, and with which noise it is kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from doppel.errors import UserError
from doppel.privacy.accounting import (
    MAX_NOISE_MULTIPLIER,
    Accountant,
    CalibrationError,
    Mechanism,
    default_delta,
    mu_of,
    poisson_rate,
)
from doppel.privacy.bands import CHOICES, GAIN, relative_rmse
from doppel.privacy.plan import DPPlan, PrivacyBudget, ReleasePlan
from doppel.settings.facts import setting

#: With fewer units, a delta below 1/N may be a large one.
FEW_UNITS, LARGE_DELTA = 1000, 1e-4
#: Suits the loss of the language models here.
MAX_GRAD_NORM = 16.0
#: Share of the units that a step draws, on average, unless a batch size is given.
USUAL_RATE = Fraction(1, 20)
#: Rényi orders of the noise that plans are compared by.
_ORDERS = (*range(2, 17), 20, 24, 28, 32, 40, 48, 64, 96, 128, 256)
#: Part of μ² that counts of words take of a budget, at most.
WORDS_SHARE = 0.1


@dataclass(frozen=True)
class PrivacyArguments:
    """Settings of DP-SGD: per-unit clipping, Gaussian noise, accounting in a ledger. Null is the non-private run.

    Args:
        target_epsilon: ε of the whole budget, all stages together. It has no default, so that a configuration that lost
            its privacy does not get it back with another ε.
        delta: δ; null for min(1/(N ln N), 1e-5).
        epochs: Epochs of every stage that shares the budget, such as [2, 8]; null for this run's ``max_epochs`` alone.
            All stages get one noise multiplier.
        max_grad_norm: Clipping norm C of one unit's gradient. 16 suits the loss of the language models here; ``python
            cli.py norms`` recommends one for others.
        accountant: ``pld`` (tightest), ``prv`` or ``rdp`` (the paper's).
        ledger_path: Ledger that records what is spent; one may serve all runs on the same people. With ``--run_dir
            RUN/STAGE`` null is $DOPPEL_LEDGER, if set when the run begins, else RUN/ledger.jsonl.
        total_epsilon: ε of all budgets of a run, and of all runs on the same data that this machine knows of, together;
            what would pass it is refused before anything is paid. Null: no limit, and every card says what they come
            to. Another file is other data, even of the same rows: give their runs one ``ledger_path``.
        scope: Name of the budget, usually the released system. Each budget has its own target, and the ledger also
            composes all of them.
        stage: Name of this training in the ledger. With ``--run_dir RUN/STAGE`` it is STAGE.
        log_private_diagnostics: Also log losses of private data and the number of units without a finite gradient, as
            ``private/…``. These numbers are *not* covered by the guarantee: keep them where only readers of the private
            file can see them.
        fp16_loss_scale: Factor of the loss under precision ``16-mixed``; public and constant. A power of two is exact.
        seed: Fixed noise seed, for tests only: it lets a reader subtract the noise, and voids the guarantee.
        histogram_noise_multiplier: Noise multiplier of a histogram that ``python cli.py step histogram``, or
            ``resample``, will release from this budget; σ of the training leaves room for it within the target ε.
            Null: no histogram.
        histogram_share: Instead of that noise, the share of the budget for such a release, as a part of μ², where μ is
            that of one Gaussian release that costs all of the target ε. So the noise follows from ε and δ.
        words_noise_multiplier: Noise multiplier of the counts of words that ``python cli.py step words`` will release
            from this budget; more of it where they would take more than a tenth of the budget, as a part of μ². Null:
            no counts.
        bands: Steps over which noise is correlated, so that the weights get less of it for the same ε; needs the
            optimiser ``DPAdam``. ``auto`` takes 2 to 32 where that lowers it by 5 % or more, 1 is independent noise.
    """

    target_epsilon: float = math.nan
    delta: float | None = None
    epochs: list[float] | None = None
    max_grad_norm: float = MAX_GRAD_NORM
    accountant: Accountant = "pld"
    ledger_path: str | None = setting(None, path=True)
    total_epsilon: float | None = setting(None, binds="nothing")
    scope: str = "default"
    stage: str | None = None
    log_private_diagnostics: bool = False
    fp16_loss_scale: float = 4096.0
    seed: int | None = None
    histogram_noise_multiplier: float | None = None
    histogram_share: float | None = None
    words_noise_multiplier: float | None = None
    bands: int | Literal["auto"] = 1

    def __post_init__(self) -> None:
        """Refuse to guess ε, a loss scale that is none, and a share of the budget that leaves nothing."""
        if math.isnan(self.target_epsilon):
            raise UserError(
                "privacy has no target_epsilon: give --privacy.target_epsilon (a later --config may have taken it away)"
            )
        if self.total_epsilon is not None and not self.target_epsilon <= self.total_epsilon < math.inf:
            raise UserError(
                f"total_epsilon is {self.total_epsilon:g}: give a finite number of at least target_epsilon, "
                f"{self.target_epsilon:g}"
            )
        if not 1.0 <= self.fp16_loss_scale < math.inf:
            raise UserError(f"fp16_loss_scale is {self.fp16_loss_scale}: give a finite number of at least 1")
        if self.histogram_share is not None:
            if not 0.0 < self.histogram_share < 1.0:
                raise UserError(f"histogram_share is {self.histogram_share}: give a share between 0 and 1, such as 0.1")
            if self.histogram_noise_multiplier is not None:
                raise UserError("histogram_share and histogram_noise_multiplier say the same thing: give one of them")

    def budget(self, num_units: int, unit: str) -> PrivacyBudget:
        """Return what everything in the scope may cost together, on N such units."""
        return PrivacyBudget(self.target_epsilon, self._delta(num_units), self.accountant, unit)

    def histogram_noise(self, num_units: int) -> float | None:
        """Return the noise over sensitivity of what is released beside the training; None where nothing is.

        Formal guarantees:
            A function of ε, δ, a share and N, all public, fixed before anything is released. The share decides which
            noise the release gets and nothing of what is promised: training and release are composed as they are.
        """
        if self.histogram_share is None:
            return self.histogram_noise_multiplier
        return self._noise_of(self.histogram_share, num_units)

    def words_noise(self, num_units: int) -> float | None:
        """Noise over sensitivity of the counts of words, of public numbers alone; None where there are none."""
        given = self.words_noise_multiplier
        return None if given is None else max(given, self._noise_of(WORDS_SHARE, num_units))

    def plan(
        self,
        num_units: int,
        batch_size: int,
        epochs: Sequence[float],
        unit: str,
        max_rows_per_unit: int | None = None,
    ) -> DPPlan:
        """Calibrate one noise multiplier for all stages on the same data, beside other releases; spends nothing.

        Args:
            num_units: Number N of units in the private data.
            batch_size: Expected batch size B, in units.
            epochs: Expected passes over the data, one number per stage.
            unit: What one neighbour adds or removes.
            max_rows_per_unit: Rows of a sampled unit that a step uses; it does not enter σ, nor does C.

        Returns:
            The plan, whose ε is at most the target. A δ of 1/N or more draws a warning.

        Raises:
            CalibrationError: An input is not valid, or no noise reaches the target.
        """
        poisson_rate(num_units, batch_size)  # refuses what is none, before steps are counted
        if not epochs:
            raise CalibrationError("epochs is empty: give one number per stage.")
        budget = self.budget(num_units, unit)
        draft = DPPlan(
            budget,
            num_units=num_units,
            expected_batch_size=batch_size,
            max_grad_norm=self.max_grad_norm,
            noise_multiplier=MAX_NOISE_MULTIPLIER,
            stage_steps=tuple(num_steps(value, num_units, batch_size) for value in epochs),
            max_rows_per_unit=max_rows_per_unit,
            histogram_noise_multiplier=self.histogram_noise(num_units),
            words_noise_multiplier=self.words_noise(num_units),
        )
        if (note := note_on_delta(budget.delta, num_units, unit)) is not None:
            warnings.warn(note, stacklevel=2)
        plan = draft.calibrated()
        bands = _best_bands(plan) if self.bands == "auto" else self.bands
        if bands == 1:
            return plan
        banded = replace(plan, bands=bands).calibrated()
        is_worth_it = banded.equivalent.noise_multiplier <= (1.0 - GAIN) * plan.noise_multiplier
        return banded if is_worth_it or self.bands != "auto" else plan

    def plan_release(
        self,
        kind: str,
        num_units: int,
        unit: str,
        noise_multiplier: float | None,
        steps: int = 1,
        beside: tuple[Mechanism, ...] = (),
    ) -> ReleasePlan:
        """Return the plan of releases at q = 1, sensitivity 1, under the budget of their scope.

        Raises:
            CalibrationError: There is no noise for them.
        """
        if noise_multiplier is None:
            raise CalibrationError("histogram_noise_multiplier is null: no histogram is in the budget.")
        return ReleasePlan(self.budget(num_units, unit), kind, num_units, noise_multiplier, steps, beside)

    def _noise_of(self, share: float, num_units: int) -> float:
        """Noise of a Gaussian release that takes a share of μ²."""
        return 1.0 / (math.sqrt(share) * mu_of(self.target_epsilon, self._delta(num_units)))

    def _delta(self, num_units: int) -> float:
        return default_delta(num_units) if self.delta is None else self.delta


def _best_bands(plan: DPPlan) -> int:
    """The fewest bands, maybe one, than which others lower the noise of the weights by less than :data:`GAIN`."""
    drafts = {bands: replace(plan, bands=bands) for bands in CHOICES if bands <= plan.most_bands}
    errors = {b: _rough_noise(draft) * relative_rmse(b, draft.stage_steps) for b, draft in drafts.items()}
    return next(bands for bands, error in errors.items() if (1.0 - GAIN) * error <= min(errors.values()))


def _rough_noise(draft: DPPlan) -> float:
    """Its noise by a Rényi bound of a few whole orders, in milliseconds: plans are compared by it; nothing is promised.

    Its ratios are within 1 % of those by PLD (measured, ε from .5 to 16).
    """
    from dp_accounting import ComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    low, high = 0.05, 1e3
    for _ in range(20):
        sigma = math.sqrt(low * high)
        events = [mechanism.dp_event for mechanism in replace(draft, noise_multiplier=sigma).mechanisms()]
        epsilon = RdpAccountant(_ORDERS).compose(ComposedDpEvent(events)).get_epsilon(draft.budget.delta)
        low, high = (sigma, high) if epsilon > draft.budget.target_epsilon else (low, sigma)
    return high


def plan(
    num_units: int,
    batch_size: int,
    epochs: float | Sequence[float],
    target_epsilon: float,
    delta: float | None = None,
    accountant: Accountant = "pld",
    unit: str = "utterance",
    max_grad_norm: float = MAX_GRAD_NORM,
    max_rows_per_unit: int | None = None,
    histogram_noise_multiplier: float | None = None,
    bands: int | Literal["auto"] = 1,
) -> DPPlan:
    """Plan from the numbers of :meth:`PrivacyArguments.plan` alone, for one's own loop; one stage or several."""
    privacy = PrivacyArguments(
        target_epsilon,
        delta,
        max_grad_norm=max_grad_norm,
        accountant=accountant,
        histogram_noise_multiplier=histogram_noise_multiplier,
        bands=bands,
    )
    stages = [epochs] if isinstance(epochs, int | float) else epochs
    return privacy.plan(num_units, batch_size, stages, unit, max_rows_per_unit)


def usual_batch_size(num_units: int) -> int:
    """Return B where none is given: a twentieth of N, at least 1.

    Formal guarantees:
        N counts as public, as it does wherever q = B/N and δ = min(1/(N ln N), 1e-5) are told, and B is a function of N
        alone: it says nothing that N does not say. Neighbours are compared under one mechanism, a fixed B and q = B/N
        chosen before the first step, just as if somebody had written this number into the configuration.
    """
    return max(1, int(num_units * USUAL_RATE))


def note_on_delta(delta: float, num_units: int, unit: str = "unit") -> str | None:
    """Warn of a delta that is large for N units; None of a small one."""
    if delta >= 1.0 / num_units:
        return (
            f"delta {delta:.3g} is not below 1/N = {1.0 / num_units:.3g}: publishing one random {unit} would satisfy "
            f"it; take {default_delta(num_units):.3g} or less"
        )
    if num_units < FEW_UNITS and delta > LARGE_DELTA:
        return (
            f"delta {delta:.3g} is large, for there are fewer than {FEW_UNITS:,} units: with this probability the "
            "guarantee may fail altogether; give a smaller delta (privacy.delta), such as 1e-5"
        )
    return None


def num_steps(epochs: float, num_units: int, batch_size: int) -> int:
    """Return steps of a stage, ⌈epochs · N / B⌉, in exact arithmetic: 3 epochs at B/N = 1/10 are 30 steps, never 31."""
    if not 0.0 < epochs < math.inf:
        raise CalibrationError(f"epochs is {epochs}: give a finite number above 0 for every stage.")
    return math.ceil(Fraction(epochs).limit_denominator(10**6) * num_units / batch_size) or 1


def what_is_protected(unit: str, max_rows_per_unit: int | None = None) -> str:
    """Return what a neighbouring data set adds or removes, in words that follow "adding or removing"."""
    if unit == "utterance":
        return (
            "one utterance (one request with its parse tree; whoever contributed k of them is covered by k times "
            "this epsilon, at a larger delta)"
        )
    whole = {"dialogue": "all its requests, however many", "user": "all their requests, however many"}.get(unit)
    if whole is None:
        return f"one {unit}"
    if max_rows_per_unit is not None:
        whole += f"; each step uses at most {max_rows_per_unit} of them, chosen uniformly"
    return f"one {unit} ({whole})"
