"""The privacy ledger: an append-only file that tells what was spent and released, and refuses what was not promised.

The file holds JSON lines of five types, each chained to the lines before it (see `doppel.privacy._ledger_file`):

- `budget`: what one *scope* (one released system, such as "two_stage") may spend: target epsilon, delta,
  accountant, unit. Written once per scope; again, under other terms, only while the scope has spent nothing.
- `mechanism`: one stage of a scope: unit, rows of a unit that a step uses, q, sigma, C, batch size, number of
  units, planned steps, data fingerprint. Again only while it has spent nothing.
- `spend`: one step of a mechanism that is about to run; or one that has run in memory, with its `content`: the
  numbers that it releases, which nobody has read before.
- `release`: what a mechanism has given away since: the SHA-256 of a file that is about to get its name (a checkpoint,
  evolved samples), or one more `content` under a step that was spent before.
- `caveat`: what the epsilon of a scope does not cover, in words; it `voids` the guarantee if the scope releases
  something about the private data without noise.

Formal guarantees:
    A spend is on disk (fsync) before anybody can read what its step releases, and is refused if the scope's composed
    epsilon would pass its target. So at every moment, crash or not, what was released is a subset of what is on file,
    and each scope is (target epsilon, delta)-differentially private under adding or removing one unit. Steps that a
    crash rolled back stay spent, and a torn line counts as a step. Numbers stand in the line that pays for them: one
    append, so they are paid and released, or neither, and noise is never drawn twice for one payment. Under the terms
    of `doppel.privacy.accounting` (Poisson sampling at rate q, norm at most C, noise sigma * C, public divisor)
    everything in a scope composes, and `epsilon(None)` composes everything in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from doppel.privacy._ledger_file import LedgerError, LedgerFile, MechanismRecord, Release
from doppel.privacy._ledger_sharing import follow, join
from doppel.privacy._ledger_summary import common_terms, summarise
from doppel.privacy.accounting import Mechanism, compute_epsilon
from doppel.privacy.fingerprint import key_path, keyed_fingerprint
from doppel.privacy.spec import DPPlan, PrivacyBudget

__all__ = ["BudgetExceededError", "Ledger", "LedgerError", "MechanismRecord", "Release", "join"]

_RECORDED = (
    "unit", "max_rows_per_unit", "sample_rate", "noise_multiplier", "max_grad_norm", "batch_size", "num_units",
)  # fmt: skip


class BudgetExceededError(LedgerError):
    """The next step would pass the scope's target epsilon; nothing was written and the step must not run."""


class Ledger:
    """The ledger at `path`; any number of processes may share it.

    One file may serve many runs on the same people: a run folder that has joined it (`join`) sees its own scopes, and
    the file holds them under the run's name.

    Nothing is created before the first write. The file is readable by its owner alone (0600; new parent
    folders 0700) and is only ever appended to, under a lock on `<path>.lock` that is held for one operation
    at a time and that the operating system releases when its holder dies.

    Args:
        path: The file, such as `runs/<pipeline>/ledger.jsonl`, or one that names it.
        lock_timeout: Seconds to wait for another process before giving up.
    """

    def __init__(self, path: str | Path, lock_timeout: float = 60.0) -> None:
        self.path, self.run = follow(Path(path))
        self.lock_timeout = lock_timeout
        self._prefix = f"{self.run}/" if self.run else ""
        self._file = LedgerFile(self.path)
        self._guard = _Guard(self._file)
        self._opened: dict[str, dict[str, Any]] = {}  # what this process declared, and noises its steps by

    def exists(self) -> bool:
        """Whether there is a ledger."""
        return bool(self.run) or self.path.exists()

    @property
    def mechanisms(self) -> dict[str, MechanismRecord]:
        """Id → what is on file of each mechanism of this run, in the order of their opening."""
        self._file.refresh()
        return {name: record for name, record in self._file.mechanisms.items() if name.startswith(self._prefix)}

    def spent(self, scope: str) -> list[MechanismRecord]:
        """Mechanisms of a scope that have spent a step; none where the scope is not on file."""
        return [own for own in self.mechanisms.values() if own.scope == self._prefix + scope and own.done_steps]

    def mechanism_id(self, scope: str, stage: str) -> str:
        """What the file calls a stage of this run."""
        return f"{self._prefix}{scope}/{stage}"

    def open(
        self,
        *,
        scope: str,
        stage: str,
        spec: DPPlan,
        planned_steps: int,
        data_fingerprint: str,
        kind: str = "poisson_subsampled_gaussian",
    ) -> str:
        """Declare a mechanism, or find the one that an interrupted run declared. Spends nothing.

        What was declared and never took a step, as by a start that failed, is declared anew under the terms given now.
        A process that still runs under the old ones is refused at its next step.

        A noised histogram is the same thing with q = 1: a plan with `expected_batch_size == num_units`,
        `max_grad_norm` the sensitivity, one planned step, and a `kind` that says so.

        Args:
            scope: The released system that this mechanism belongs to; its budget is set by the first spec
                seen.
            stage: Name of the stage within the scope.
            spec: The guarantee that the stage runs under.
            planned_steps: Steps that this stage will take.
            data_fingerprint: Identifies the private data (a hash, never content).
            kind: What the mechanism is, for the reader of the ledger.

        Returns:
            The mechanism's id, `scope/stage`, behind the run's name where the ledger serves many.

        Raises:
            LedgerError: If the scope or the stage has spent a step under other parameters, or the file is
                unreadable.
        """
        if not scope or not stage or not f"{scope}{stage}".isprintable():
            raise LedgerError(
                f"scope {scope!r} and stage {stage!r} must be printable, non-empty names.", about=self.path
            )
        if planned_steps < 1:
            raise LedgerError(
                f"planned_steps of {scope}/{stage} is {planned_steps}: plan at least one.", about=self.path
            )
        promise = asdict(spec.budget)
        numbers = {**spec.to_dict(), "sample_rate": spec.sample_rate}
        mechanism_id, scope = self.mechanism_id(scope, stage), self._prefix + scope
        steps = {"planned_steps": planned_steps, "data_fingerprint": keyed_fingerprint(data_fingerprint)}
        fields = {"kind": kind, **{name: numbers[name] for name in _RECORDED}, **steps}
        with self._file.locked(self.lock_timeout):
            budget = self._file.promises.get(scope)
            if budget is not None and any(record.done_steps for record in self._file.of_scope(scope)):
                self._refuse_change(f"scope {scope!r}", asdict(budget), promise)
            if budget is None or asdict(budget) != promise:
                self._file.append({"type": "budget", "scope": scope, **promise})
            known = self._file.mechanisms.get(mechanism_id)
            if known is not None and known.done_steps:
                self._refuse_change(f"mechanism {mechanism_id!r}", known.fields, fields)
            elif known is None or known.fields != fields:
                names = {"id": mechanism_id, "scope": scope, "stage": stage}
                self._file.append({"type": "mechanism", **names, **fields})
            self._opened[mechanism_id] = self._file.mechanism(mechanism_id).fields
        return mechanism_id

    def spend(self, mechanism_id: str, content: Mapping[str, Any] | None = None) -> None:
        """Record one step: before its noise is drawn, or with all that it releases, before anybody reads that.

        Args:
            mechanism_id: The mechanism that pays.
            content: The released numbers, JSON-ready, which have been nowhere but in the memory of this process.

        Raises:
            BudgetExceededError: If the scope would pass its target; nothing is written.
            LedgerError: If the mechanism is unknown, another process declared it anew, or the file cannot be locked,
                read or written.
        """
        with self._file.locked(self.lock_timeout):
            known = self._file.mechanism(mechanism_id)
            if known.fields != self._opened.setdefault(mechanism_id, known.fields):
                raise LedgerError(
                    f"another process declared {mechanism_id!r} anew, under other terms, before this one took its "
                    "first step: nothing was spent. Let one process train at a time.",
                    about=self.path,
                )
            self._guard.admit(known)
            told = {} if content is None else {"content": content}
            self._file.append({"type": "spend", "mechanism": mechanism_id, "steps": 1, **told})

    def release(
        self,
        mechanism_id: str,
        *,
        sha256: str | None = None,
        content: Mapping[str, Any] | None = None,
        steps: int | None = None,
    ) -> None:
        """Record what a mechanism gives away of steps that it has spent, before anybody can read it; a file once.

        Args:
            mechanism_id: The mechanism that paid for it.
            sha256: Of a file that is about to get its name.
            content: Or the released numbers themselves, JSON-ready.
            steps: Its steps that the release has; all that are spent if left out.

        Raises:
            LedgerError: The mechanism has not so many steps, or the file cannot be locked, read or written.
        """
        told = {"content": content} if sha256 is None else {"sha256": sha256}
        with self._file.locked(self.lock_timeout):
            known = self._file.mechanism(mechanism_id)
            steps = known.done_steps if steps is None else steps
            if not 0 < steps <= known.done_steps:
                raise LedgerError(
                    f"what {steps} steps of {mechanism_id!r} have made cannot be released, for {known.done_steps} are "
                    "spent.",
                    about=self.path,
                )
            if sha256 is None or Release(steps, sha256) not in known.releases:
                self._file.append({"type": "release", "mechanism": mechanism_id, "steps": steps, **told})

    def releases(self, mechanism_id: str) -> list[Release]:
        """What a mechanism has released, in order; nothing of one that is not on file."""
        known = self.mechanisms.get(mechanism_id)
        return [] if known is None else list(known.releases)

    def unpaid_reason(self, sha256: str, scope: str) -> str | None:
        """Why no mechanism of a scope has released a file; None if one has.

        Args:
            sha256: Of the file.
            scope: The released system.
        """
        paid = [
            record.scope.removeprefix(self._prefix)
            for record in self.mechanisms.values()
            if any(release.sha256 == sha256 for release in record.releases)
        ]
        if scope in paid:
            return None
        if paid:
            return f"scope {paid[0]!r} has paid for it, not {scope!r}"
        return f"{self.path} has no release of it: no private training of this ledger has saved it as it is"

    def remaining(self, mechanism_id: str, later: Sequence[Mechanism] = ()) -> int:
        """Steps of this mechanism that still fit into its scope's budget, given what is spent now.

        Counted up to the mechanism's planned steps, which is all that a run can need, a repetition after a
        crash included. Nothing is held back for trainings of the scope that have not run yet: they end earlier.

        Args:
            mechanism_id: What :meth:`open` returned.
            later: Releases of the same scope for which budget is held back until they are made.
        """
        self._file.refresh()
        record = self._file.mechanism(mechanism_id)
        made = {other.key for other in self._file.of_scope(record.scope) if other.done_steps}
        return self._guard.room(record, [m for m in later if (m.sample_rate, m.noise_multiplier) not in made])

    def voids(self, scope: str) -> list[str]:
        """What voids the epsilon of a scope, in words; none of it may be stated where there is any."""
        self._file.refresh()
        return [text for text, voids in self._file.caveats.get(self._prefix + scope, ()) if voids]

    def caveat(self, scope: str, text: str, voids: bool) -> None:
        """Record what the guarantee of a scope does not cover, for every reader of the ledger.

        Args:
            scope: The released system; its budget need not be there yet.
            text: What is released, or what epsilon means, in words that end a sentence.
            voids: Whether the scope releases something about the private data without noise: its summary then states
                no epsilon.
        """
        scope = self._prefix + scope
        with self._file.locked(self.lock_timeout):
            if (text, voids) not in self._file.caveats.get(scope, []):
                self._file.append({"type": "caveat", "scope": scope, "text": text, "voids": voids})

    def epsilon(self, scope: str | None = None) -> float:
        """Epsilon that the mechanisms have spent so far, which `voids` may void.

        Args:
            scope: One released system, at its own delta and accountant; None composes everything in the file, other
                runs included, at the smallest delta of its scopes, with their accountant (pld if they differ): what
                holds if all is released.

        Raises:
            LedgerError: If the scope is unknown, or None is asked and the scopes protect different units.
        """
        self._file.refresh()
        if scope is not None:
            scope = self._prefix + scope
            return self._file.promise(scope).epsilon(self._file.spent(scope))
        scopes = list(self._file.promises)
        if not scopes:
            return 0.0
        units = sorted({promise.unit for promise in self._file.promises.values()})
        if len(units) > 1:
            raise LedgerError(
                f"the scopes protect different units ({', '.join(units)}), which have no common "
                "epsilon: ask for one scope.",
                about=self.path,
            )
        delta, accountant = common_terms(self._file, scopes)
        return compute_epsilon(self._file.spent(*scopes), delta, accountant)

    def summary(self, voids: Mapping[str, Sequence[str]] = MappingProxyType({})) -> dict[str, Any]:
        """Everything on file, ready for JSON.

        Args:
            voids: What else voids the epsilon of a scope, in words that end a sentence: what is not on file, such as
                samples of weights that nobody paid for. A scope that is not on file is NOT PRIVATE.

        Returns:
            `scopes` (name → epsilon, target_epsilon, delta, accountant, unit, protects (the unit in words),
            noise_multiplier (the smallest if stages differ), steps_done, steps_planned, caveats (texts), voids (what
            voids the guarantee: epsilon is None then, and epsilon_of_mechanisms says what was spent)), `mechanisms`
            (every recorded field, `done_steps`, and `epsilon` of that mechanism alone, None where its scope is void),
            `epsilon`, `delta`, `accountant` of all scopes composed (None if nothing was declared, a scope is void, or
            the scopes protect different units), `statement`, in English, and `everything`: the same four of all runs
            that the file serves, `num_runs` and `num_data_sets`. Scopes and mechanisms are those of this run.
        """
        self._file.refresh()
        return summarise(self._file, self._prefix, voids)

    def _refuse_change(self, what: str, known: dict[str, Any], asked: dict[str, Any]) -> None:
        for name, value in asked.items():
            if known.get(name) != value and name == "data_fingerprint":
                raise LedgerError(
                    f"{what} was opened for other private data, or with another key of fingerprints than {key_path()}: "
                    "restore the private file; on another machine, copy the key of the one where the run began there, "
                    "or name it by DOPPEL_KEY. Other data need a scope of their own, and spend on top of this one.",
                    about=self.path,
                )
            if known.get(name) != value:
                raise LedgerError(
                    f"{what} was opened with {name} = {known.get(name)!r}, now {value!r} is "
                    "asked. Restore the old value to continue it; a training under other terms needs a scope of its "
                    "own, and spends on top of this one.",
                    about=self.path,
                )


class _Guard:
    """The one place that says whether a step keeps the promise of its scope.

    Formal guarantees:
        A step is admitted only if everything that was spent in its scope and this step together cost at most the
        target, by the scope's accountant, at its delta. Totals of steps for each (q, sigma) that are known to fit are
        kept: any smaller totals fit too, whichever process spends them, for epsilon grows with every number of steps.
        So a step costs one look-up rather than one accounting.
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
        self._known_to_fit: dict[
            tuple[str, PrivacyBudget], Counter[tuple[float, float]]
        ] = {}  # by scope, and what it may cost

    def admit(self, record: MechanismRecord) -> None:
        """Let one more step of a mechanism be written.

        Raises:
            BudgetExceededError: It would pass the target.
        """
        if self._is_known_to_fit(record, 1) or self._plan_fits(record):
            return
        room = self._count_room(record)
        if room == 0:
            raise self._refusal(record)
        totals = self._totals(record.scope)
        totals[record.key] += room
        self._known_to_fit[self._terms(record)] = totals

    def room(self, record: MechanismRecord, later: Sequence[Mechanism] = ()) -> int:
        """Further steps of a mechanism that fit beside what comes later, counted up to its planned steps."""
        if later:
            return self._count_room(record, later)
        if self._terms(record) not in self._known_to_fit:
            self._plan_fits(record)
        return record.planned_steps if self._is_known_to_fit(record, record.planned_steps) else self._count_room(record)

    def _terms(self, record: MechanismRecord) -> tuple[str, PrivacyBudget]:
        return record.scope, self._file.promise(record.scope)

    def _is_known_to_fit(self, record: MechanismRecord, steps: int) -> bool:
        known = self._known_to_fit.get(self._terms(record), Counter())
        wanted = self._totals(record.scope)
        wanted[record.key] += steps
        return all(count <= known[key] for key, count in wanted.items())

    def _plan_fits(self, record: MechanismRecord) -> bool:
        """Try the whole plan of the scope at once: if it fits, one more step of this mechanism does."""
        totals: Counter[tuple[float, float]] = Counter()
        for other in self._file.of_scope(record.scope):
            totals[other.key] += max(other.planned_steps, other.done_steps + (other is record))
        fits = self._file.promise(record.scope).allows([Mechanism(*key, steps) for key, steps in totals.items()])
        if fits:
            self._known_to_fit[self._terms(record)] = totals
        return fits

    def _count_room(self, record: MechanismRecord, later: Sequence[Mechanism] = ()) -> int:
        spent = [*self._file.spent(record.scope), *later]
        return self._file.promise(record.scope).remaining_steps(spent, *record.key, limit=record.planned_steps)

    def _totals(self, scope: str) -> Counter[tuple[float, float]]:
        """Steps spent in a scope, per (q, sigma)."""
        totals: Counter[tuple[float, float]] = Counter()
        for record in self._file.of_scope(scope):
            totals[record.key] += record.done_steps
        return totals

    def _refusal(self, record: MechanismRecord) -> BudgetExceededError:
        promise, spent = self._file.promise(record.scope), self._file.spent(record.scope)
        now, after = promise.epsilon(spent), promise.epsilon([*spent, record.mechanism(1)])
        how = (
            "This budget is used up: keep what it has released, of a training the last checkpoint, for another release "
            "on the same people would spend on top of it."
        )
        if now == 0:
            how = "This release alone costs more than the whole budget: raise its target, or give it more noise."
        return BudgetExceededError(
            f"one more step of {record.id!r} would take scope {record.scope!r} from epsilon {now:.6g} to {after:.6g}, "
            f"past its target {promise.target_epsilon:g} (delta {promise.delta:.3g}, {promise.accountant}). Nothing "
            f"was spent. {how}",
            about=self._file.path,
        )
