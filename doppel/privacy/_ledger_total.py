"""What runs on the same data owe one another: each is noted before it pays, and a total that is set holds for all."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from doppel.privacy._ledger_file import BudgetExceededError, LedgerError, LedgerFile, MechanismRecord
from doppel.privacy._ledger_notes import Note, find_known, locked, notes_path, write
from doppel.privacy._ledger_summary import Coming, everything
from doppel.privacy.accounting import DPMechanism

log = logging.getLogger(__name__)


@contextlib.contextmanager
def noted(
    file: LedgerFile, prefix: str, record: MechanismRecord, total: float | None = None, data_file: str = ""
) -> Iterator[None]:
    """Let other runs on the same data know of a budget before it pays; where that cannot be, its ledger says so.

    Args:
        file: The ledger, whose lock is held.
        prefix: Of the run's scopes there.
        record: The mechanism that is about to pay, or has paid.
        total: What all budgets on the same data may cost together, if that is limited.
        data_file: Keyed fingerprint of the whole file that the data are of, where it is known.

    Raises:
        BudgetExceededError: They would cost more.
        LedgerError: There is a total, and no other run would know of this one.
    """
    target, run = file.promise(record.scope).target_epsilon, file.ids.get(record.scope, "")
    note = Note(str(record.fields["data_fingerprint"]), str(file.path.resolve()), record.scope, target, run, data_file)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(file.lock_timeout))
            if total is not None:
                steps = 1 if record.done_steps else record.planned_steps
                admit_to_all(file, prefix, record, total, [record.mechanism(steps)], data_file)
            write(note)
        except OSError as error:
            why = f"the notes beside the key of fingerprints cannot be written ({error.strerror or error})"
            if total is not None:
                raise LedgerError(
                    f"{why}, so that privacy.total_epsilon could not be held to by other runs, and nothing was spent: "
                    "set DOPPEL_KEY to a key in a folder that can be written to, or leave the total out.",
                    about=notes_path(),
                ) from None
            file.caveat(record.scope, f"{why}, so that other runs on these data do not know of it", voids=False)
            log.warning("%s: %s, so that other runs on these data do not know of this one", notes_path(), why)
        yield


def admit_to_all(
    file: LedgerFile,
    prefix: str,
    record: MechanismRecord,
    total: float,
    coming: Sequence[DPMechanism],
    data_file: str = "",
) -> None:
    """Let a mechanism begin, or go beyond its planned steps.

    Formal guarantees:
        All budgets of the run, and of every other run on the same data that this machine knows of, cost at most the
        total together: each mechanism that has begun with all of its planned steps, so that nothing that was admitted
        is refused later because of another run; each budget whose ledger is gone with its target on top (basic
        composition). The first step of a mechanism is admitted and written under one lock for all runs.

    Args:
        file: The ledger, whose lock is held.
        prefix: Of the run's scopes there.
        record: The mechanism.
        total: The limit.
        coming: What is about to be spent beside what has begun.
        data_file: As of :func:`noted`.

    Raises:
        BudgetExceededError: They would cost more, or no epsilon holds for all of them.
    """
    known = find_known(file, [str(record.fields["data_fingerprint"])], [data_file] if data_file else [])
    told = everything(
        file, prefix, known, coming=[Coming(record.scope.removeprefix(prefix), file.promise(record.scope), coming)]
    )
    lost = sum(note.target_epsilon for note in known.gone)
    if told["target_epsilon"] is not None and told["target_epsilon"] + lost <= total:
        return
    more = f" The targets of those that are gone, {lost:g}, count on top, and so do their δ." if lost else ""
    raise BudgetExceededError(
        f"budget {record.scope!r} would take what is released of these data past privacy.total_epsilon = {total:g}, "
        f"and nothing was spent. {told['statement']}{more} Each mechanism that has begun counts with all of its "
        "planned steps. Give a smaller target or fewer systems, raise the total, or leave it out.",
        about=file.path,
    )
