"""What all systems of a run, and all runs on the same data, come to together: told, and refused, before it is paid."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commands.run.preflight.training_plan import Readiness
from commands.run.steps.run_plan import RunPlan
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.steps import Step
from datamodules.training_rows import TrainingRows
from doppel.console.ledger import FILE_NAME, SITE
from doppel.errors import DataError, UserError
from doppel.evolution.budget import Outlook
from doppel.privacy.accounting import Mechanism
from doppel.privacy.ledger import Coming, Ledger
from doppel.privacy.spec import PrivacyArguments


def together(plan: RunPlan, plans: Mapping[str, Readiness | Outlook]) -> str | None:
    """Compose what the systems of a run will spend, each by its plan, with what all runs on the same data have begun.

    Formal guarantees:
        A function of public numbers, of ledgers, and of which of them hold the fingerprint of the data.

    Returns:
        A sentence; None where one system alone spends, and no other run is known.

    Raises:
        UserError: They come to more than ``privacy.total_epsilon``.
    """
    given = {name: own for name, one in plans.items() if (own := _paid_by(name, plan.steps)) and _mechanisms(one)}
    if not given:
        return None
    ledger = _ledger(plan, [privacy for privacy, _ in given.values()])
    begun = ledger.mechanisms.values()
    coming = []
    for name, (privacy, _) in given.items():
        budget, mechanisms = _mechanisms(plans[name])
        planned = Counter[tuple[float, float]]()
        for own in mechanisms:
            planned[own.sample_rate, own.noise_multiplier] += own.steps
        scope = ledger.mechanism_id(privacy.scope, "")[:-1]
        planned -= Counter({record.key: record.promised.steps for record in begun if record.scope == scope})
        coming.append(Coming(privacy.scope, budget, [Mechanism(*key, steps) for key, steps in planned.items()]))
    digests = [own for _, data in given.values() for own in data]
    told = ledger.everything(coming, {rows for rows, _ in digests}, {file for _, file in digests})
    limits = [privacy.total_epsilon for privacy, _ in given.values() if privacy.total_epsilon is not None]
    total, lost = min(limits, default=None), sum(own["target_epsilon"] for own in told["gone"])
    if total is not None and (told["target_epsilon"] is None or told["target_epsilon"] + lost > total):
        raise UserError(
            f"the run would take what is released of these data past privacy.total_epsilon = {total:g}, so nothing was "
            f"started, and nothing was spent: {told['statement']} Each mechanism counts with all of its planned steps"
            f"{f', and what is gone with its target, {lost:g}, on top' if lost else ''}. Give a smaller epsilon, fewer "
            "systems, a larger total, or none (privacy.total_epsilon=null)"
        )
    if told["num_runs"] == 1 and len(coming) == 1:
        return None
    if told["target_epsilon"] is None:
        return told["statement"]
    names = ", ".join(own.name for own in coming)
    num, gone = told["num_runs"] - 1, told["lost"]
    others = f" and {num} other run{'s' if num > 1 else ''} on these data" if num else ""
    return (
        f"together, {names}{others} come to ε = {told['target_epsilon']:.4g} at δ = {told['delta']:.3g}"
        f"{f'; the ledger is gone, and not in it, of {gone}' if gone else ''}"
        f"{'' if total is not None else '; privacy.total_epsilon=NUMBER would limit that'}"
    )


def _paid_by(system: str, steps: Sequence[Step]) -> tuple[PrivacyArguments, set[tuple[str, str]]] | None:
    """The budget of a system, and digests of the rows that its steps read, and of their files; None where it has
    none."""
    found: PrivacyArguments | None = None
    data = set[tuple[str, str]]()
    for step in steps:
        config = StageConfig(step.config)
        if config.privacy is not None and any(own.system == system for own in step.writes):
            found = found or config.privacy
            data |= _digest(config.data or step.config.get("data") or {})
    return None if found is None else (found, data)


def _digest(data: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Those of the rows of a configuration; nothing where they are still to be written."""
    try:
        rows = TrainingRows.from_config(data)
        return {(rows.fingerprint, rows.data_file)}
    except (DataError, KeyError):
        return set()


def _mechanisms(plan: Readiness | Outlook) -> Any:
    """The budget of a plan, and all that it pays for; None where nothing is planned."""
    spec = plan.spec if isinstance(plan, Readiness) else plan.plan
    beside = () if isinstance(plan, Readiness) else plan.beside
    return None if spec is None else (spec.budget, [*spec.mechanisms(), *beside])


def _ledger(plan: RunPlan, budgets: Sequence[PrivacyArguments]) -> Ledger:
    """That of the run, or the one that it will join; that of a failed start binds nobody.

    Raises:
        UserError: It cannot be written to.
    """
    own = plan.run / FILE_NAME
    shared = next((given.ledger_path for given in budgets if given.ledger_path), None) or os.environ.get(SITE)
    ledger = Ledger(Path(os.path.expandvars(shared)) if shared and (plan.is_anew or not own.exists()) else own)
    path = ledger.path.absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if path.is_dir() or not (there == path or there.is_dir()) or not os.access(there, os.W_OK):
        raise UserError(
            f"the ledger cannot be written to, and no step is taken before it is charged: give another place as "
            f"{'privacy.ledger_path' if shared and ledger.path != own else 'RUN_DIR'}, or mend its permissions",
            about=path,
        )
    return ledger
