"""The privacy ledger: an append-only file that tells what was spent and released, and refuses what was not promised.

The file holds JSON lines of five types, each chained to the lines before it (see `doppel.privacy._ledger_file`):

- `budget`: what one *scope* (one released system, such as "two_stage") may spend: epsilon, delta, accountant, unit; and
  a random id of the run.
- `mechanism`: one stage of a scope: unit, rows of a unit that a step uses, q, sigma, C, batch size, number of
  units, planned steps, data fingerprint. Both are written once; again, under other terms, only before the first step.
- `spend`: one step of a mechanism that is about to run; or one that has run in memory, with its `content`: the
  numbers that it releases, which nobody has read before.
- `release`: what a mechanism has given away since: the SHA-256 of a file that is about to get its name (a checkpoint,
  evolved samples), or one more `content` under a step that was spent before.
- `caveat`: what the epsilon of a scope does not cover, in words; it `voids` the guarantee if the scope releases
  something about the private data without noise.

Of a training with bands each step on file, planned or spent, is a *round*: the steps from one spend to the next, at
most b, see :class:`~doppel.privacy.plan.DPPlan`; q is that of a round.

Formal guarantees:
    A spend is on disk (fsync) before anybody can read what its step releases, and is refused if the scope's composed
    epsilon would pass its target. So at every moment, crash or not, what was released is a subset of what is on file,
    and each scope is (target epsilon, delta)-differentially private under adding or removing one unit. Steps that a
    crash rolled back stay spent, and a torn line counts as a step, but one that began as a release or a caveat. Numbers
    stand in the line that pays for them: they are paid and released, or neither. The terms are those of
    `doppel.privacy.accounting`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from doppel.privacy._ledger_file import BudgetExceededError, LedgerError, LedgerFile, MechanismRecord, Released
from doppel.privacy._ledger_notes import find_known
from doppel.privacy._ledger_sharing import follow, join, leave
from doppel.privacy._ledger_summary import Coming, compose, everything, summarise
from doppel.privacy._ledger_total import admit_to_all, noted
from doppel.privacy.accounting import Mechanism, is_same_noise
from doppel.privacy.fingerprint import key_path, keyed_fingerprint
from doppel.privacy.plan import DPPlan, PrivacyBudget, ReleasePlan, changed_terms

__all__ = ["BudgetExceededError", "Coming", "Ledger", "LedgerError", "MechanismRecord", "Released", "join", "leave"]


class Ledger:
    """The ledger at `path`; any number of processes, and with `join` of runs, may share it.

    Nothing is created before the first write. The file is readable by its owner alone (0600; new parent folders 0700)
    and is only ever appended to, under a lock on `<path>.lock` that is held for one operation at a time.

    Args:
        path: The file, such as `runs/<pipeline>/ledger.jsonl`, or one that names it.
        lock_timeout: Seconds to wait for another process before giving up.
    """

    def __init__(self, path: str | Path, lock_timeout: float = 60.0) -> None:
        self.path, self._prefix = follow(Path(path))
        self._given, self._found = Path(path).absolute(), (self.path.absolute(), self._prefix)
        self._file = LedgerFile(self.path, lock_timeout)
        self._opened: dict[str, dict[str, Any]] = {}  # what this process declared, and noises its steps by
        self._totals: dict[str, float] = {}  # of such mechanisms, what all on the same data may cost together
        self._data_files: dict[str, str] = {}  # likewise, keyed fingerprints of the files that they read
        # Scope and budget → totals of steps that cost at most its target; and so do any smaller ones.
        self._known_to_fit: dict[tuple[str, PrivacyBudget], Counter[tuple[float, float]]] = {}

    def exists(self) -> bool:
        """Return whether there is a ledger."""
        return bool(self._prefix) or self._file.exists()

    @property
    def mechanisms(self) -> dict[str, MechanismRecord]:
        """Id → what is on file of each mechanism of this run, in the order of their opening."""
        self._file.refresh()
        return {name: record for name, record in self._file.mechanisms.items() if name.startswith(self._prefix)}

    def mechanism_id(self, scope: str, stage: str) -> str:
        """Return what the file calls a stage of this run."""
        return f"{self._prefix}{scope}/{stage}"

    def spent(self, scope: str) -> list[MechanismRecord]:
        """Return mechanisms of a scope that have spent a step; none where the scope is not on file."""
        return [own for own in self.mechanisms.values() if own.scope == self._prefix + scope and own.done_steps]

    def releases(self, mechanism_id: str) -> list[Released]:
        """Return the releases of a mechanism, in order; nothing of one that is not on file."""
        known = self.mechanisms.get(mechanism_id)
        return [] if known is None else list(known.releases)

    def unpaid_reason(self, sha256: str, scope: str) -> str | None:
        """Return why no mechanism of a scope has released the file of this SHA-256; None if one has."""
        paid = [
            record.scope.removeprefix(self._prefix)
            for record in self.mechanisms.values()
            if any(release.sha256 == sha256 for release in record.releases)
        ]
        if scope in paid:
            return None
        if paid:
            return f"it was charged to budget {paid[0]!r}, not {scope!r}"
        return f"{self.path} has no release of it: no private training of this ledger has saved it as it is"

    def open(
        self,
        *,
        scope: str,
        stage: str,
        spec: DPPlan | ReleasePlan,
        planned_steps: int,
        data_fingerprint: str,
        total_epsilon: float | None = None,
        data_file: str | None = None,
    ) -> str:
        """Declare a mechanism, or find the one that an interrupted run declared. Spends nothing.

        What was declared and never took a step, as by a start that failed, is declared anew under the terms given now.
        A process that still runs under the old ones is refused at its next step.

        Args:
            scope: The released system that this mechanism belongs to.
            stage: Name of the stage within the scope.
            spec: The guarantee that it runs under.
            planned_steps: Steps that this stage will take. With bands the file counts their rounds.
            data_fingerprint: Identifies the private data (a hash, never content).
            total_epsilon: What all budgets on the same data may cost together, see
                :func:`~doppel.privacy._ledger_total.admit_to_all`.
            data_file: Identifies the whole file that the data are of, likewise: runs that read other rows or columns
                of it are on the same data.

        Returns:
            The mechanism's id, see :meth:`mechanism_id`.

        Raises:
            BudgetExceededError: The mechanism has not begun, and would pass that.
            LedgerError: The scope or the stage has spent a step under other parameters or on other units, or the file
                is unreadable.
        """
        if not scope or not stage or not f"{scope}{stage}".isprintable():
            raise LedgerError(
                f"scope {scope!r} and stage {stage!r} must be printable, non-empty names.", about=self.path
            )
        if planned_steps < 1:
            raise LedgerError(
                f"planned_steps of {scope}/{stage} is {planned_steps}: plan at least one.", about=self.path
            )
        promise, fields = asdict(spec.budget), spec.terms(planned_steps, keyed_fingerprint(data_fingerprint))
        mechanism_id, scope = self.mechanism_id(scope, stage), self._prefix + scope
        with self._file.locked():
            budget, known = self._file.promises.get(scope), self._file.mechanisms.get(mechanism_id)
            if self._file.has_begun(scope):
                self._refuse_change(f"scope {scope!r}", asdict(self._file.promise(scope)), promise)
            if known is None or not known.done_steps:
                self._refuse_other_data(scope, mechanism_id, fields["num_units"])
            if budget is None or asdict(budget) != promise:
                own = (run for name, run in self._file.ids.items() if name.startswith(self._prefix))
                run = next(own, None) or secrets.token_hex(8)
                self._file.append({"type": "budget", "scope": scope, **promise, "run": run})
                known = self._file.mechanisms.get(mechanism_id)
            if known is not None and known.done_steps:
                terms = {name: value for name, value in fields.items() if name != "coefficients"}  # cost nothing
                self._refuse_change(f"mechanism {mechanism_id!r}", known.fields, terms)
            elif known is None or known.fields != fields:
                names = {"id": mechanism_id, "scope": scope, "stage": stage}
                self._file.append({"type": "mechanism", **names, **fields})
            opened = self._file.mechanism(mechanism_id)
            self._opened[mechanism_id] = opened.fields
            if total_epsilon is not None:
                self._totals[mechanism_id] = total_epsilon
            file = self._data_files[mechanism_id] = "" if data_file is None else keyed_fingerprint(data_file)
            if opened.done_steps:  # which an earlier version has begun, or in another folder
                with noted(self._file, self._prefix, opened, data_file=file):
                    pass
            elif total_epsilon is not None:
                coming = [opened.mechanism(opened.planned_steps)] if self._file.has_begun(scope) else spec.mechanisms()
                admit_to_all(self._file, self._prefix, opened, total_epsilon, coming, file)
        return mechanism_id

    def spend(self, mechanism_id: str, content: Mapping[str, Any] | None = None) -> None:
        """Record one step: before its noise is drawn, or with all that it releases, before anybody reads that.

        Args:
            mechanism_id: The mechanism that pays.
            content: The released numbers, JSON-ready, which have been nowhere but in the memory of this process.

        Raises:
            BudgetExceededError: The scope would pass its target; nothing is written.
            LedgerError: The mechanism is unknown, another process declared it anew or began the run anew, or the file
                cannot be locked, read or written.
        """
        with self._file.locked():
            known = self._file.mechanism(mechanism_id)
            if known.fields != self._opened.setdefault(mechanism_id, known.fields):
                raise LedgerError(
                    f"another process declared {mechanism_id!r} anew, under other terms, before this one took its "
                    "first step: nothing was spent. Let one process train at a time.",
                    about=self.path,
                )
            self._admit(known)
            told = {} if content is None else {"content": content}
            total = self._totals.get(mechanism_id)
            is_beyond = total is not None and known.done_steps >= known.planned_steps
            is_new = known.done_steps == 0 or is_beyond
            if is_new and follow(self._given) != self._found:
                raise LedgerError(
                    f"the run of {mechanism_id!r} was begun anew by another process, with another ledger, before this "
                    "one took its first step: nothing was spent. Let one process work in a run folder at a time.",
                    about=self.path,
                )
            file = self._data_files.get(mechanism_id, "")
            with noted(self._file, self._prefix, known, total, file) if is_new else contextlib.nullcontext():
                self._file.append({"type": "spend", "mechanism": mechanism_id, "steps": 1, **told})

    def release(
        self,
        mechanism_id: str,
        *,
        sha256: str | None = None,
        content: Mapping[str, Any] | None = None,
        steps: int | None = None,
        after: int | None = None,
    ) -> None:
        """Record what a mechanism gives away of steps that it has spent, before anybody can read it; a file once.

        Args:
            mechanism_id: The mechanism that paid for it.
            sha256: Of a file that is about to get its name.
            content: Or the released numbers themselves, JSON-ready.
            steps: Its steps that the release has; all that are spent if left out.
            after: How many releases of numbers the mechanism has, torn ones too, as far as this process knows.

        Raises:
            LedgerError: The mechanism has not so many steps, another process has released something of it since, or
                the file cannot be locked, read or written.
        """
        told = {"content": content} if sha256 is None else {"sha256": sha256}
        with self._file.locked():
            known = self._file.mechanism(mechanism_id)
            steps = known.done_steps if steps is None else steps
            if not 0 < steps <= known.done_steps:
                raise LedgerError(
                    f"what {steps} steps of {mechanism_id!r} have made cannot be released, for {known.done_steps} are "
                    "spent.",
                    about=self.path,
                )
            if after not in (None, sum(own.sha256 is None for own in known.releases)):
                raise LedgerError(
                    f"another process goes on with the releases of {mechanism_id!r}: nothing was released here. Wait "
                    "until it has ended, and give the command again, which reads what is released.",
                    about=self.path,
                )
            if sha256 is None or Released(steps, sha256) not in known.releases:
                self._file.append({"type": "release", "mechanism": mechanism_id, "steps": steps, **told})

    def remaining(self, mechanism_id: str, later: Sequence[Mechanism] = ()) -> int:
        """Return steps of this mechanism that still fit into its scope's budget, counted up to its planned steps.

        Nothing is held back for trainings of the scope that have not run yet: they end earlier.

        Args:
            mechanism_id: What :meth:`open` returned.
            later: Releases of the same scope for which budget is held back until they are made.
        """
        self._file.refresh()
        record = self._file.mechanism(mechanism_id)
        made = [other.key for other in self._file.of_scope(record.scope) if other.done_steps]
        waiting = []
        for release in later:  # each of several equal ones was made, or waits
            rate, noise = release.sample_rate, release.noise_multiplier
            own = next((key for key in made if key[0] == rate and is_same_noise(key[1], noise)), None)
            if own is None:
                waiting.append(Mechanism(rate, noise, 1))
            else:
                made.remove(own)
        spent = [*self._file.spent(record.scope), *waiting]
        room = self._file.promise(record.scope).remaining_steps(spent, *record.key, limit=record.planned_steps)
        planned = max(0, record.planned_steps - record.done_steps)
        if room > planned and (total := self._totals.get(mechanism_id)) is not None:
            try:  # what a crash has lost can be made up for where the total affords that, too
                file = self._data_files.get(mechanism_id, "")
                admit_to_all(self._file, self._prefix, record, total, [record.mechanism(room - planned)], file)
            except BudgetExceededError:
                return planned
        return room

    def caveat(self, scope: str, text: str, voids: bool) -> None:
        """Record what the guarantee of a scope does not cover, for every reader of the ledger.

        Args:
            scope: The released system; its budget need not be there yet.
            text: What is released, or what epsilon means, in words that end a sentence.
            voids: Whether the scope releases something about the private data without noise: its summary then states
                no epsilon.
        """
        with self._file.locked():
            self._file.caveat(self._prefix + scope, text, voids)

    def voids(self, scope: str) -> list[str]:
        """Return what voids the epsilon of a scope, in words; none of it may be stated where there is any."""
        self._file.refresh()
        return [text for text, voids in self._file.caveats.get(self._prefix + scope, ()) if voids]

    def epsilon(self, scope: str | None = None) -> float:
        """Return epsilon that the mechanisms of a scope have spent so far, which `voids` may void.

        Args:
            scope: One released system, at its own delta and accountant; None composes everything in the file, other
                runs included: what holds if all is released.

        Raises:
            LedgerError: The scope is unknown, or None is asked and the scopes protect different units.
        """
        self._file.refresh()
        scopes = list(self._file.promises) if scope is None else [self._prefix + scope]
        return compose([(self._file, name) for name in scopes]).epsilon if scopes else 0.0

    def everything(
        self, coming: Sequence[Coming] = (), data_fingerprints: Iterable[str] = (), data_files: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return what all runs on the same data cost together, as far as this machine knows of them, and a statement.

        Args:
            coming: What this run is about to spend beside what is on file.
            data_fingerprints: Of its data, where no mechanism is on file.
            data_files: Of the files of these, as :meth:`open` has them.

        Returns:
            See :func:`~doppel.privacy._ledger_summary.everything`.
        """
        self._file.refresh()
        data, files = ([keyed_fingerprint(own) for own in given] for given in (data_fingerprints, data_files))
        return everything(self._file, self._prefix, find_known(self._file, data, files), coming=coming)

    def summary(self, voids: Mapping[str, Sequence[str]] = MappingProxyType({})) -> dict[str, Any]:
        """Return everything on file, ready for JSON, see :func:`~doppel.privacy._ledger_summary.summarise`.

        Args:
            voids: What else voids the epsilon of a scope, in words that end a sentence: what is not on file, such as
                samples of weights that nobody paid for. A scope that is not on file is NOT PRIVATE.
        """
        self._file.refresh()
        return summarise(self._file, self._prefix, voids, find_known(self._file))

    def _admit(self, record: MechanismRecord) -> None:
        """Let one more step of a mechanism be written.

        Formal guarantees:
            Everything that was spent in the scope and this step together cost at most the target, by the scope's
            accountant, at its delta. Totals of steps of each (q, sigma) that are known to fit are kept: any smaller
            ones fit too, whoever spends them, for epsilon grows with every number of steps. So most steps cost a
            look-up.

        Raises:
            BudgetExceededError: It would pass the target.
        """
        promise, spent = self._file.promise(record.scope), self._file.spent(record.scope)
        totals = Counter({record.key: 1})
        for other in self._file.of_scope(record.scope):
            totals[other.key] += other.done_steps
        if totals <= self._known_to_fit.get((record.scope, promise), Counter()):
            return
        still_planned = record.planned_steps - record.done_steps
        limit = still_planned if still_planned > 0 else record.planned_steps
        room = promise.remaining_steps(spent, *record.key, limit=limit)
        if room > 0:
            totals[record.key] += room - 1
            self._known_to_fit[record.scope, promise] = totals
            return
        now, after = promise.epsilon(spent), promise.epsilon([*spent, record.mechanism(1)])
        how = (
            "This budget is used up: keep what it has released, of a training the last checkpoint, for another release "
            "on the same people would spend on top of it."
        )
        if now == 0:
            how = "This release alone costs more than the whole budget: raise its target, or give it more noise."
        raise BudgetExceededError(
            f"one more step of {record.id!r} would take budget {record.scope!r} from epsilon {now:.6g} to {after:.6g}, "
            f"past its target {promise.target_epsilon:g} (delta {promise.delta:.3g}, {promise.accountant}). Nothing "
            f"was spent. {how}",
            about=self.path,
        )

    def _refuse_other_data(self, scope: str, coming: str, num_units: int) -> None:
        """Refuse a mechanism of another N than those that its scope has paid for: no ε would hold of both."""
        for other in self._file.of_scope(scope):
            if other.done_steps and other.fields["num_units"] != num_units:
                raise LedgerError(
                    f"{coming!r} would be charged for data of {num_units} units, and {other.id!r} of the same budget "
                    f"was for {other.fields['num_units']}: no epsilon would hold of both. Restore the private file; "
                    "other data need a budget of their own, and spend on top of this one.",
                    about=self.path,
                )

    def _refuse_change(self, what: str, known: dict[str, Any], asked: dict[str, Any]) -> None:
        terms = changed_terms(known, asked)
        if not terms:
            return
        changed = terms[0]
        if "data_fingerprint" in terms:  # N and what follows from it change with the data
            how = (
                f"for other private data, or with another key of fingerprints than {key_path()}: restore the private "
                "file; on another machine, copy the key of the one where the run began there, or name it by "
                "DOPPEL_KEY. Other data need a budget of their own, and spend on top of this one."
            )
        else:
            how = (
                f"with {changed} = {known.get(changed)!r}, now {asked[changed]!r} is asked. Restore the old value to "
                "continue it; a training under other terms needs a budget of its own, and spends on top of this one."
            )
        raise LedgerError(f"{what} was opened {how}", about=self.path)
