"""A private training as its ledger sees it: planned, opened with its caveats, paid step by step, and stated."""

from __future__ import annotations

import logging
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from doppel.files import sha256_of
from doppel.privacy.ledger import BudgetExceededError, Coming, Ledger
from doppel.privacy.plan import DPPlan, changed_terms, counted_in
from doppel.privacy.private_step import PrivateTrainingError
from doppel.privacy.spec import PrivacyArguments

log = logging.getLogger(__name__)


def plan_stage(
    privacy: PrivacyArguments, data: Any, max_epochs: int, before: Mapping[str, Any] | None = None
) -> tuple[DPPlan, int]:
    """Calibrate σ for all stages of a budget, and count the steps of this one.

    Args:
        privacy: What the user decides.
        data: Names its units, as ``datamodules.private_data.PrivateData`` says.
        max_epochs: Of this stage.
        before: The state of the checkpoint that the training goes on from.

    Raises:
        PrivateTrainingError: No stage has so many epochs, or the checkpoint was trained under another plan.
    """
    epochs = privacy.epochs or [float(max_epochs)]
    if max_epochs not in epochs:
        raise PrivateTrainingError(
            f"trainer.max_epochs is {max_epochs}, but the budget is planned for stages of {epochs} epochs: "
            "set max_epochs to one of them, or list it in privacy.epochs"
        )
    if before is not None and privacy.bands == "auto":  # another version may choose others
        privacy = replace(privacy, bands=before["spec"].get("bands", 1))
    plan = privacy.plan(data.num_units, data.batch_size, epochs, data.unit, data.max_rows_per_unit)
    given = plan.to_dict()
    known = given if before is None else before["spec"] | {"coefficients": given.get("coefficients")}  # cost nothing
    changed = sorted(changed_terms(known, given))
    if "num_units" in changed:  # what follows from it differs, too
        raise PrivateTrainingError(
            "the private file has another number of units than when this training began: put it back as it was (and "
            "data.unit, data.columns and data.unit_names), or start a new run, which spends on top of this one"
        )
    if changed:
        raise PrivateTrainingError(
            f"the checkpoint was trained under another privacy specification ({', '.join(changed)} differ): "
            "resume with the settings it was started with, or start a new run"
        )
    return plan, plan.stage_steps[epochs.index(max_epochs)]


def last_step(privacy: PrivacyArguments, wanted: int, done: int, affordable: int) -> int:
    """Return the number of steps after which the training ends: those that are ``wanted``, or those that are ``done``
    and what is ``affordable`` beside them. Where nothing is, what was done is the finished training.

    Raises:
        BudgetExceededError: Steps remain, the budget affords none, and none of those that it paid for was kept.
    """
    remaining = wanted - done
    if affordable == 0 and remaining > 0 and done == 0:
        raise BudgetExceededError(
            f"the ledger {privacy.ledger_path} has no step left for budget {privacy.scope!r} (target ε = "
            f"{privacy.target_epsilon:g}), and this training begins without a checkpoint: give --ckpt_path last where "
            "there is one. Where none was kept, its paid steps are lost and have released nothing; what other stages "
            "released stays. Another run folder trains anew, and its ε comes on top for the same people"
        )
    if affordable < remaining:
        log.warning(
            "%d steps remain but the budget affords %d (steps rolled back by a crash stay spent): "
            "training will stop there",
            remaining,
            affordable,
        )
    return min(wanted, done + affordable)


def checkpoint_every(steps: int, bands: int = 1) -> int:
    """Return after how many steps a training of so many ``steps`` keeps its next checkpoint, at the latest: a twentieth
    of them, in whole rounds, and so many a crash can undo, which stay spent.
    """
    return bands * math.ceil(max(1, steps // 20) / bands)


class PrivateSession:
    """The ledger of one training, on rank 0 alone. Nothing is written before :meth:`open`.

    Args:
        privacy: What the user decides.
        plan: The guarantee that the training runs under.

    Raises:
        PrivateTrainingError: There is no place for a ledger.
    """

    def __init__(self, privacy: PrivacyArguments, plan: DPPlan) -> None:
        if privacy.ledger_path is None:
            raise PrivateTrainingError("privacy has no ledger_path: give --run_dir RUN/STAGE, or set it in the config")
        self.privacy, self.plan = privacy, plan
        self.ledger = Ledger(privacy.ledger_path)
        self.stage = privacy.stage or "fit"
        self.mechanism_id = self.ledger.mechanism_id(privacy.scope, self.stage)

    def refuse_unpaid(self, state: Mapping[str, Any], path: Path) -> None:
        """Refuse to go on from a checkpoint of another mechanism, or from one that the ledger has not released.

        Args:
            state: What the checkpoint says of its training.
            path: The file.
        """
        why = self.ledger.unpaid_reason(sha256_of(path), self.privacy.scope)
        if state["mechanism_id"] != self.mechanism_id:
            why = f"its steps were charged as {state['mechanism_id']}, and this training is {self.mechanism_id}"
        if why is not None:
            raise PrivateTrainingError(
                f"training cannot resume from this checkpoint: {why}; give the run folder, budget (privacy.scope) and "
                "stage that it was begun in, with their ledger"
            )

    def open(self, data: Any, planned_steps: int, origins: Sequence[Mapping[str, Any]], is_resumed: bool) -> int:
        """Declare the mechanism, and what its ε does not cover; return how many steps the budget affords, from the
        beginning of a segment: all of its rounds that are left.

        From here on :attr:`plan` has the noise on file, where the training began on another kind of processor.

        Args:
            data: As of :func:`plan_stage`.
            planned_steps: Of this stage.
            origins: Where the weights come from, see :func:`notes_on_origins`.
            is_resumed: Whether the training goes on from a checkpoint.
        """
        privacy = self.privacy
        caveats = [(data.privacy_caveat, False)] if data.privacy_caveat else []
        if privacy.log_private_diagnostics:
            caveats.append((f"the figures named private/… that {self.stage} has logged are not covered", False))
        caveats += notes_on_origins(self.ledger, privacy.scope, origins)
        seeds = {
            "privacy.seed": (privacy.seed, "can subtract the noise"),
            "data.sampling_seed": (getattr(data, "sampling_seed", None), "knows which units were drawn"),
        }
        for name, (seed, what) in seeds.items():
            if seed is not None:
                caveats.append((f"{name} of {self.stage} was fixed, and whoever reads it {what}", True))
        self.ledger.open(
            scope=privacy.scope,
            stage=self.stage,
            spec=self.plan,
            planned_steps=planned_steps,
            data_fingerprint=data.data_fingerprint,
            total_epsilon=privacy.total_epsilon,
            data_file=getattr(data, "data_file", None),
        )
        _, on_file = self.ledger.mechanisms[self.mechanism_id].key
        if on_file != self.plan.noise_multiplier:
            self.plan = replace(self.plan, noise_multiplier=on_file)
        for text, voids in caveats:
            self.ledger.caveat(privacy.scope, text, voids=voids)
        if self.num_spent and not is_resumed:
            log.warning(
                "the ledger %s has %d %s of %s, and this training begins anew: it is charged on top of them. "
                "--ckpt_path last resumes from a checkpoint, where there is one",
                self.ledger.path,
                self.num_spent,
                counted_in(self.plan.bands),
                self.mechanism_id,
            )
        return self.ledger.remaining(self.mechanism_id, later=self.plan.releases) * self.plan.bands

    def spend(self, step: int, first_step: int) -> None:
        """Charge a step before it runs: with bands, the first of every b from the first of the process, for its round.

        Raises:
            BudgetExceededError: The budget does not afford it.
        """
        if (step - first_step) % self.plan.bands == 0:
            self.ledger.spend(self.mechanism_id)

    @property
    def num_spent(self) -> int:
        """Steps of this training that are paid; with bands, rounds."""
        return self.ledger.mechanisms[self.mechanism_id].done_steps

    @property
    def epsilon(self) -> float:
        """That the scope has spent; infinite where something voids it."""
        return math.inf if self.ledger.voids(self.privacy.scope) else self.ledger.epsilon(self.privacy.scope)

    def metrics(self) -> dict[str, float]:
        """Return the metrics ``dp/…``, which follow public numbers and may be logged."""
        return {
            "dp/epsilon": self.epsilon,
            "dp/delta": self.plan.budget.delta,
            "dp/noise_multiplier": self.plan.noise_multiplier,
            "dp/sample_rate": self.plan.round_rate,
            f"dp/num_{'steps' if self.plan.bands == 1 else 'rounds'}": float(self.num_spent),
        }

    def statement(self, wanted_steps: int | None = None) -> list[str]:
        """State the guarantee: of a training of so many steps, or, without a number, of one that has come to its end.

        Formal guarantees:
            The target is what is proven wherever the training stops, also if somebody stops it because of what it has
            shown. ε spent so far stands beside it: it is a bound only where no output has decided when to stop.

        Returns:
            Two lines, and what follows where other runs on the same data are known.
        """
        scope, plan, target = self.privacy.scope, self.plan, self.privacy.target_epsilon
        if void := self.ledger.voids(scope):
            return [f"NOT PRIVATE, budget {scope!r}: {'; '.join(void)}"]
        spent = f"; spent so far ε = {self.epsilon:.3f}" if wanted_steps is None else ""
        num = self.num_spent if wanted_steps is None else plan.rounds(wanted_steps)
        return [
            f"PRIVATE, budget {scope!r}: target ε = {target:g} at δ = {plan.budget.delta:.3g}{spent}",
            f"  for one {plan.budget.unit} more or less; N = {plan.num_units}, σ = {plan.noise_multiplier:.4g}, "
            f"{num} {counted_in(plan.bands)} of ~{plan.expected_batch_size}",
            *self._with_others(),
        ]

    def _with_others(self) -> list[str]:
        """What all runs on the same data come to, this training with all its steps; nothing where there is no other."""
        own = self.ledger.mechanisms[self.mechanism_id]
        has_begun = bool(self.ledger.spent(self.privacy.scope))
        whole = [own.mechanism(own.planned_steps)] if has_begun else self.plan.mechanisms()
        coming = [] if own.done_steps else [Coming(self.privacy.scope, self.plan.budget, whole)]
        short = self.ledger.everything(coming)["short"]
        return [f"  {line}" for line in textwrap.wrap(short, 75)]


def notes_on_origins(ledger: Ledger, scope: str, origins: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Return caveats for the ledger on what weights come from, each with whether it voids the scope.

    Formal guarantees:
        ε of a training holds for any start that does not depend on its data. A start that was paid for is a release of
        its own, whose loss adds up with this one's. The ledger composes all that it has paid for, but a budget states
        its own alone: so it is said where another budget, or ledger, has paid. A start that nobody paid for must be
        public.

    Args:
        ledger: Of the training.
        scope: Its scope.
        origins: Each with its ``path``, the ``private`` training that it came from (None: without privacy), whether its
            data ``is_public``, its ``caveats``, and whether it ``is_changed`` since its card was written.

    Raises:
        PrivateTrainingError: One was trained on data that may be the private ones, or is not what its card tells of.
    """
    notes: list[tuple[str, bool]] = []
    for origin in origins:
        path, private, is_public = origin["path"], origin["private"], origin.get("is_public")
        start = f"it starts from {path}"
        if origin.get("is_changed"):
            raise PrivateTrainingError(
                f"the weights in {path} are not those that its privacy_card.json tells of, so nothing says what they "
                "have learnt: export them again, or start from public weights"
            )
        if private is None and is_public is False:
            raise PrivateTrainingError(
                f"{path}, which the training starts from (init_weights or base_model), was trained without privacy on "
                "data that nobody declared public, so no ε would cover what comes of it: train it on public data with "
                "data.is_public: true, or leave it out"
            )
        if private is None:
            if is_public is None:
                text = f"{start}, which was trained without privacy, and nothing says that its data were public"
                notes.append((text, False))
        elif ledger.unpaid_reason(private["sha256"], private["scope"]) is not None:
            text = f"{start}, whose private training was charged to another ledger: for the same people the two add up"
            notes.append((text, False))
            notes += [(f"{start}, and there: {caveat}", False) for caveat in origin.get("caveats", ())]
        elif private["scope"] != scope:
            why = ledger.voids(private["scope"])
            notes += [(f"{start} of budget {private['scope']!r}: {text}", True) for text in why]
            text = f"{start}, whose private training was charged to budget {private['scope']!r}: the two add up"
            notes.append((text, False))
    return list(dict.fromkeys(notes))
