"""What a ledger says, in numbers and in words: the epsilon of each scope, of a run, and of everything on file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from doppel.privacy._ledger_file import LedgerError, LedgerFile, MechanismRecord
from doppel.privacy.accounting import Accountant, compute_epsilon
from doppel.privacy.spec import what_is_protected

_NOTHING = "No mechanism has touched private data: nothing was spent."
#: What a ledger of many runs has before a scope (:func:`~doppel.privacy._ledger_sharing.join`); a scope may have any /.
_RUN = re.compile(r".+?-[0-9a-f]{8}/")
_NO_EPSILON = "No epsilon holds for anything that is recorded here."


def summarise(file: LedgerFile, prefix: str, voids: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return everything on file, ready for JSON.

    Args:
        file: The ledger, read to its end.
        prefix: Before the names of the run's scopes in the file; empty where the file serves one run.
        voids: Scope, as the run calls it → what else voids its epsilon.

    Returns:
        `scopes` (:func:`_scope` of each, by name) and `mechanisms` (every recorded field, `done_steps`, and `epsilon`
        of that mechanism alone, None where its scope is void) of this run; `epsilon`, `delta`, `accountant` of its
        scopes composed (None if nothing was declared, a scope is void, or they protect different units); `statement`,
        in English; and `everything`: the same four of all runs that the file serves, `num_runs` and `num_data_sets`.
    """
    void = _voids(file, prefix, voids)
    own = [scope for scope in file.promises if scope.startswith(prefix)]
    recorded = [*file.promises, *(scope for scope in void if scope not in file.promises)]
    composed = _composed(file, prefix, [scope for scope in recorded if scope.startswith(prefix)], void, "recorded here")
    everything = _composed(file, prefix, recorded, void, "ever spent, by all runs") if prefix else composed
    notes = {scope: [text for text, is_void in texts if not is_void] for scope, texts in file.caveats.items()}
    remarks = [*_remarks("NOT PRIVATE", void, prefix), *_remarks("NOTE", notes, prefix)]
    return {
        "scopes": {scope.removeprefix(prefix): _scope(file, scope, void.get(scope, [])) for scope in own},
        "mechanisms": [
            _mechanism(file, record, scope.removeprefix(prefix), is_void=scope in void)
            for scope in own
            for record in file.of_scope(scope)
        ],
        **composed,
        "statement": " ".join([composed["statement"], *remarks]),
        "everything": {
            **everything,
            "num_runs": len({match[0] if (match := _RUN.match(scope)) else "" for scope in recorded}),
            "num_data_sets": len({record.fields["data_fingerprint"] for record in file.mechanisms.values()}),
        },
    }


def compose(file: LedgerFile, scopes: Sequence[str]) -> tuple[float, float, Accountant]:
    """Return the epsilon that scopes have spent together, at the smallest of their deltas, which comes next, by their
    accountant, pld if they differ.

    Raises:
        LedgerError: A scope is unknown, or they protect different units.
    """
    promises = [file.promise(scope) for scope in scopes]
    if len(units := sorted({promise.unit for promise in promises})) > 1:
        raise LedgerError(
            f"The budgets protect different units ({', '.join(units)}): each budget's (epsilon, delta) holds by "
            "itself, and none is stated for all of them together."
        )
    accountants = {promise.accountant for promise in promises}
    accountant = accountants.pop() if len(accountants) == 1 else "pld"
    delta = min(promise.delta for promise in promises)
    return compute_epsilon(file.spent(*scopes), delta, accountant), delta, accountant


def _voids(file: LedgerFile, prefix: str, more: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Scope → what voids its epsilon, on file and beside it; nothing for a scope whose epsilon holds."""
    void = {scope: [text for text, is_void in texts if is_void] for scope, texts in file.caveats.items()}
    for name, texts in more.items():
        void.setdefault(prefix + name, []).extend(texts)
    return {scope: texts for scope, texts in void.items() if texts}


def _scope(file: LedgerFile, scope: str, void: list[str]) -> dict[str, Any]:
    """What one scope may spend and has spent: `epsilon` is None where `voids` says why it does not hold."""
    promise, records = file.promise(scope), file.of_scope(scope)
    spent = promise.epsilon(file.spent(scope))
    return {
        "epsilon": None if void else spent,
        "epsilon_of_mechanisms": spent,
        **asdict(promise),
        "protects": _in_words(promise.unit, records),
        "noise_multiplier": min((record.key[1] for record in records), default=None),
        "steps_done": sum(record.done_steps for record in records),
        "steps_planned": sum(record.planned_steps for record in records),
        "caveats": [text for text, _ in file.caveats.get(scope, [])],
        "voids": void,
    }


def _mechanism(file: LedgerFile, record: MechanismRecord, scope: str, is_void: bool) -> dict[str, Any]:
    promise = file.promise(record.scope)
    alone = promise.epsilon([record.mechanism()])
    names = {"id": record.id, "scope": scope, "stage": record.stage}
    done = {"done_steps": record.done_steps, "num_releases": len(record.releases)}
    return {**names, **record.fields, **asdict(promise), **done, "epsilon": None if is_void else alone}


def _composed(
    file: LedgerFile, prefix: str, scopes: list[str], void: Mapping[str, Sequence[str]], which: str
) -> dict[str, Any]:
    """What holds for scopes together, but those that are void: epsilon, delta, accountant and a statement."""
    nothing = {"epsilon": None, "delta": None, "accountant": None}
    held = [scope for scope in scopes if scope not in void]
    if not held:
        return {**nothing, "statement": _NO_EPSILON if scopes else _NOTHING}
    try:
        epsilon, delta, accountant = compose(file, held)
    except LedgerError as unlike_units:
        return {**nothing, "statement": str(unlike_units)}
    records = [record for scope in held for record in file.of_scope(scope)]
    exception = ", ".join(scope.removeprefix(prefix) for scope in scopes if scope in void)
    statement = (
        f"Everything {which} ({', '.join(scope.removeprefix(prefix) for scope in held)})"
        f"{f' but {exception}, which is NOT PRIVATE' if exception else ''}, released together, is "
        f"(epsilon = {epsilon:.4g}, delta = {delta:.3g})-differentially private by the {accountant} accountant, "
        f"under adding or removing {_in_words(file.promise(held[0]).unit, records)}."
    )
    whole = None if exception else epsilon
    return {"epsilon": whole, "delta": delta, "accountant": accountant, "statement": statement}


def _remarks(word: str, texts: Mapping[str, Sequence[str]], prefix: str) -> list[str]:
    """One sentence for each text about a scope of the run."""
    own = [scope for scope in texts if scope.startswith(prefix)]
    return [f"{word}, {scope.removeprefix(prefix)}: {text}." for scope in own for text in texts[scope]]


def _in_words(unit: str, records: Sequence[MechanismRecord]) -> str:
    rows = [record.fields["max_rows_per_unit"] for record in records]
    known = [int(m) for m in rows if m is not None]
    return what_is_protected(unit, max(known, default=None) if len(known) == len(rows) else None)
