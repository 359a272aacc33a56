"""What a ledger says, in numbers and in words: the epsilon of each scope, of a run, of all runs on the same data."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from doppel.privacy._ledger_file import LedgerError, LedgerFile, MechanismRecord
from doppel.privacy._ledger_notes import Known, is_begun_by
from doppel.privacy.accounting import Accountant, DPMechanism, compute_epsilon
from doppel.privacy.plan import PrivacyBudget
from doppel.privacy.spec import what_is_protected

_NOTHING = "No mechanism has touched private data: nothing was spent."
#: What a ledger of many runs has before a scope (:func:`~doppel.privacy._ledger_sharing.join`); a scope may have any /.
_RUN = re.compile(r".+?-[0-9a-f]{8}/")
_NO_EPSILON = "No epsilon holds for anything that is recorded here."
#: Names that a statement lists.
_SHOWN = 12
#: A budget: its ledger, and its name there.
Scope = tuple[LedgerFile, str]


@dataclass(frozen=True)
class Coming:
    """What is about to be spent beside what has begun.

    Attributes:
        name: Of the budget that pays, as the run calls it.
        budget: That one.
        mechanisms: What it will pay for.
    """

    name: str
    budget: PrivacyBudget
    mechanisms: Sequence[DPMechanism]


@dataclass(frozen=True)
class Cost:
    """What budgets cost together.

    Attributes:
        epsilon: Of the steps that are spent so far.
        target_epsilon: What is proven wherever they stop: of one budget its target, of several all planned steps of
            what has begun.
        delta: The smallest of theirs.
        accountant: Theirs; pld if they differ.
        unit: What all of them protect.
    """

    epsilon: float
    target_epsilon: float
    delta: float
    accountant: Accountant
    unit: str


def summarise(file: LedgerFile, prefix: str, voids: Mapping[str, Sequence[str]], known: Known) -> dict[str, Any]:
    """Return everything on file, ready for JSON.

    Args:
        file: The ledger, read to its end.
        prefix: Before the names of the run's scopes in the file; empty where the file serves one run.
        voids: Scope, as the run calls it → what else voids its epsilon.
        known: The ledgers of the same data, this one first.

    Returns:
        `scopes` (:func:`_scope` of each, by name) and `mechanisms` (every recorded field, `done_steps`, `torn_lines`
        if there are any, and `epsilon` of that mechanism alone, None where its scope is void) of this run; the fields
        of :class:`Cost` for its scopes together (None if nothing was declared, a scope is void, or they protect
        different units); `statement`, in English; and `everything`: the same of all runs on the same data, see
        :func:`everything`.
    """
    void = _voids(file, prefix, voids)
    own: list[Scope] = [(file, scope) for scope in file.promises if scope.startswith(prefix)]
    recorded = [*own, *(key for key in void if key not in own and key[1].startswith(prefix))]
    composed = _composed(recorded, void, prefix, "recorded here")
    notes = {(file, name): [text for text, is_void in told if not is_void] for name, told in file.caveats.items()}
    remarks = [*_remarks("NOT PRIVATE", void, prefix), *_remarks("NOTE", notes, prefix)]
    return {
        "scopes": {scope.removeprefix(prefix): _scope(file, scope, void.get((file, scope), [])) for _, scope in own},
        "mechanisms": [
            _mechanism(file, record, scope.removeprefix(prefix), is_void=(file, scope) in void)
            for _, scope in own
            for record in file.of_scope(scope)
        ],
        **composed,
        "statement": " ".join([composed["statement"], *remarks]),
        "everything": everything(file, prefix, known, void),
    }


def everything(
    file: LedgerFile,
    prefix: str,
    known: Known,
    void: Mapping[Scope, Sequence[str]] | None = None,
    coming: Sequence[Coming] = (),
) -> dict[str, Any]:
    """Return what all runs on the same data cost together, as far as this machine knows of them.

    Args:
        file: The ledger of the run.
        prefix: As of :func:`summarise`.
        known: Likewise.
        void: What voids scopes of the run; what is on file by default.
        coming: What the run is about to spend beside that.

    Returns:
        The fields of :class:`Cost` and `statement`, as of :func:`summarise`; `short`, which says that of the other runs
        in a few words and names none; `num_runs`, this one and those that are gone among them; `gone`, the budgets
        whose ledger can no longer be read, with their targets, which no epsilon here covers, and `lost`, those in a few
        words; and `num_data_sets` of this ledger, of which one file is one.
    """
    void = dict(_voids(file, prefix, {}) if void is None else void)
    for other in known.files[1:]:
        void |= _voids(other, "", {})
    scopes = scopes_of(file, prefix, known)
    scopes += [key for key in void if key not in scopes]
    runs = {(own, match[0] if (match := _RUN.match(scope)) else "") for own, scope in scopes}
    num_others = len(runs - {(file, prefix)}) + len({note.run or note.ledger for note in known.gone})
    which = "ever spent, with what is about to be," if coming else "ever spent"
    composed = _composed(scopes, void, prefix, which, file, coming)
    data = {str(record.fields["data_fingerprint"]) for record in file.mechanisms.values()}
    lead = f"With {num_others} other run{'s' if num_others > 1 else ''} on these data: " if num_others else ""
    lost = _listed([f"{note.name} (target epsilon = {note.target_epsilon:g})" for note in known.gone])
    end = f" The ledger is gone, and so not in this epsilon, of {lost}." if lost else ""
    return {
        **composed,
        "statement": f"{lead}{composed['statement']}{end}",
        "short": _in_short(composed, num_others, known),
        "num_runs": num_others + 1,
        "gone": [{"budget": note.name, "target_epsilon": note.target_epsilon} for note in known.gone],
        "lost": lost,
        "num_data_sets": len({known.of_file.get(data, data) for data in data}),
    }


def _in_short(composed: Mapping[str, Any], num_others: int, known: Known) -> str:
    """What all runs on the same data come to, without their names; "" where there is no other one."""
    if not num_others:
        return ""
    others = f"with {num_others} other run{'s' if num_others > 1 else ''} on these data"
    targets = _listed([f"{note.target_epsilon:g}" for note in known.gone])
    gone = f"; not in it, for their ledger is gone, are budgets with target ε = {targets}" if targets else ""
    if composed["target_epsilon"] is None:
        return f"{others} no one ε holds: one is NOT PRIVATE, or they protect different units{gone}"
    together = f"ε = {composed['target_epsilon']:.4g} at δ = {composed['delta']:.3g}"
    return f"{others}: {together}, all planned steps counted; spent so far ε = {composed['epsilon']:.4g}{gone}"


def scopes_of(file: LedgerFile, prefix: str, known: Known) -> list[Scope]:
    """Return the budgets of a run, and those of other runs on the same data that have spent a step."""
    files = known.files[1:] if any(is_begun_by(other, file) for other in known.files[1:]) else known.files
    return [
        (own, scope)
        for own in files
        for scope in own.promises
        if own.has_begun(scope) or (own is file and scope.startswith(prefix))
    ]


def compose(scopes: Sequence[Scope], coming: Sequence[Coming] = ()) -> Cost:
    """Return what budgets cost together, at the smallest of their deltas, which comes next, by their accountant, pld if
    they differ.

    Formal guarantees:
        Which steps are taken was fixed before the first one, but for where they stop. A release that stops early is a
        function of the whole one, so that its planned steps bound it even if it stopped because of what it had
        released. The steps that are spent bound it only where no output decided when it stopped.

    Args:
        scopes: The budgets.
        coming: What is to be spent beside what has begun.

    Raises:
        LedgerError: A scope is unknown, or they protect different units.
    """
    promises = [*(file.promise(scope) for file, scope in scopes), *(own.budget for own in coming)]
    if len(units := sorted({promise.unit for promise in promises})) > 1:
        raise LedgerError(
            f"The budgets protect different units ({', '.join(units)}): each budget's (epsilon, delta) holds by "
            "itself, and none is stated for all of them together."
        )
    accountants = {promise.accountant for promise in promises}
    accountant = accountants.pop() if len(accountants) == 1 else "pld"
    delta = min(promise.delta for promise in promises)
    records = [record for file, scope in scopes for record in file.of_scope(scope)]
    if len(promises) == 1 and not coming:
        target = promises[0].target_epsilon
    else:
        planned = [mechanism for own in coming for mechanism in own.mechanisms]
        target = compute_epsilon([*(record.promised for record in records), *planned], delta, accountant)
    spent = compute_epsilon([record.mechanism() for record in records], delta, accountant)
    return Cost(spent, target, delta, accountant, promises[0].unit)


def _voids(file: LedgerFile, prefix: str, more: Mapping[str, Sequence[str]]) -> dict[Scope, list[str]]:
    """Scope → what voids its epsilon, on file and beside it; nothing for a scope whose epsilon holds."""
    void = {(file, scope): [text for text, is_void in texts if is_void] for scope, texts in file.caveats.items()}
    for name, texts in more.items():
        void.setdefault((file, prefix + name), []).extend(texts)
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
    done = {"done_steps": record.done_steps, "num_releases": sum(own.torn is None for own in record.releases)}
    torn = {"torn_lines": record.torn_lines} if record.torn_lines else {}
    return {**names, **record.fields, **asdict(promise), **done, **torn, "epsilon": None if is_void else alone}


def _composed(
    scopes: Sequence[Scope],
    void: Mapping[Scope, Sequence[str]],
    prefix: str,
    which: str,
    own: LedgerFile | None = None,
    coming: Sequence[Coming] = (),
) -> dict[str, Any]:
    """What holds for budgets together, but those that are void: the fields of their cost, and a statement.

    Args:
        scopes: The budgets.
        void: Those that are void.
        prefix: What is left out of the names of a run's own budgets.
        which: Budgets these are, in words.
        own: Ledger of the run; None where all budgets are of one ledger.
        coming: What is to be spent beside that.
    """
    nothing = dict.fromkeys(("epsilon", "target_epsilon", "delta", "accountant"))
    held = [scope for scope in scopes if scope not in void]
    if not held and not coming:
        return {**nothing, "statement": _NO_EPSILON if scopes else _NOTHING}
    try:
        cost = compose(held, coming)
    except LedgerError as unlike_units:
        return {**nothing, "statement": str(unlike_units)}

    def name(file: LedgerFile, scope: str) -> str:
        is_own = own in (None, file)
        return scope.removeprefix(prefix) if is_own or _RUN.match(scope) else f"{file.path.parent.name}/{scope}"

    records = [record for file, scope in held for record in file.of_scope(scope)]
    names = list(dict.fromkeys([*(name(*scope) for scope in held), *(own.name for own in coming)]))
    exception = _listed([name(*scope) for scope in scopes if scope in void])
    statement = (
        f"Everything {which} ({_listed(names)})"
        f"{f' but {exception}, which is NOT PRIVATE' if exception else ''}, released together, is "
        f"(epsilon = {cost.target_epsilon:.4g}, delta = {cost.delta:.3g})-differentially private by the "
        f"{cost.accountant} accountant, under adding or removing {_in_words(cost.unit, records)}; spent so far: "
        f"epsilon = {cost.epsilon:.4g}."
    )
    told = {name: None if exception else getattr(cost, name) for name in ("epsilon", "target_epsilon")}
    return {**told, "delta": cost.delta, "accountant": cost.accountant, "statement": statement}


def _listed(names: Sequence[str]) -> str:
    """Names in a few words, each once with how often it occurs."""
    counted = [f"{num} times {name}" if num > 1 else name for name, num in Counter(names).items()]
    more = [f"{len(counted) - _SHOWN} more"] if len(counted) > _SHOWN else []
    return ", ".join([*counted[:_SHOWN], *more])


def _remarks(word: str, texts: Mapping[Scope, Sequence[str]], prefix: str) -> list[str]:
    """One sentence for each text about a scope of the run."""
    own = [scope for scope in texts if scope[1].startswith(prefix)]
    return [f"{word}, {scope[1].removeprefix(prefix)}: {text}." for scope in own for text in texts[scope]]


def _in_words(unit: str, records: Sequence[MechanismRecord]) -> str:
    rows = [record.fields["max_rows_per_unit"] for record in records]
    known = [int(m) for m in rows if m is not None]
    return what_is_protected(unit, max(known, default=None) if len(known) == len(rows) else None)
