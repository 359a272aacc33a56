"""Whether the ledger of a run covers what was sampled there: every checkpoint that was sampled from is opened."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from commands.pipeline.run_record import Pass, RunRecord, StageConfig
from commands.pipeline.systems import system
from doppel.errors import UserError
from doppel.privacy.checkpoint import privacy_state, read_checkpoint
from doppel.privacy.ledger import Ledger

FILE_NAME = "ledger.jsonl"


def attested(record: RunRecord, systems: Collection[str] = (), archived: Collection[str] = ()) -> dict[str, Any] | None:
    """Summary of a run's ledger, in which a scope is void where its ledger does not cover what was sampled.

    Args:
        record: The run.
        systems: Those that something is to be said of: a void one is said to be so, where nothing tells its checkpoint.
        archived: Scopes of which an earlier report vouched: their checkpoints need not be there any more.

    Returns:
        As :meth:`~doppel.privacy.ledger.Ledger.summary`; None where there is no ledger.

    Raises:
        UserError: The ledger is damaged.
    """
    ledger = Ledger(record.folder / FILE_NAME)
    if not ledger.exists():
        return None
    return ledger.summary(unvouched(record, ledger, systems, archived))


def unvouched(
    record: RunRecord, ledger: Ledger, systems: Collection[str] = (), archived: Collection[str] = ()
) -> dict[str, list[str]]:
    """Scope → why nobody can vouch for what was sampled in it; arguments as of :func:`attested`."""
    found: dict[str, list[str]] = {}
    passes = record.passes()
    for each in passes:
        scope = None if each.system is None else system(each.system).scope
        why = _why(each, ledger, scope, scope in archived)
        if why is not None:
            found.setdefault(scope or each.output, []).append(f"{each.output} {why}")
    for name in systems:
        scope = system(name).scope
        if scope not in archived and all(each.system != name for each in passes):
            files = f"nothing tells which checkpoint {record.synthetic(name).name} was sampled from"
            found.setdefault(scope, []).append(files)
    return {scope: list(dict.fromkeys(texts)) for scope, texts in found.items()}


def _why(sampled: Pass, ledger: Ledger, scope: str | None, is_archived: bool) -> str | None:
    """Why the ledger does not cover a file of samples, in words that follow its name; None if it does."""
    path = sampled.checkpoint
    if path is None:
        return "was sampled from weights that its predict.yaml does not name"
    shown = os.path.relpath(path, sampled.folder.parent)
    if not path.is_file():
        return None if is_archived else f"was sampled from {shown}, which is gone"
    try:
        state = privacy_state(read_checkpoint(path))
        seeds = _fixed_seeds(path.parent.parent)
    except UserError as error:
        return f"was sampled from {shown}: {error}"
    if state is None:
        return f"was sampled from {shown}, which was trained without privacy"
    if scope is not None and state["scope"] != scope:
        return f"was sampled from {shown}, whose steps scope {state['scope']!r} has paid for"
    gap = ledger.gap(state)
    if gap is not None:
        return f"was sampled from {shown}: {gap}"
    if seeds and not ledger.voids(state["scope"]):  # older ledgers do not say it themselves
        return f"was sampled from {shown}, which was trained with a fixed {' and '.join(seeds)}"
    return None


def _fixed_seeds(stage: Path) -> list[str]:
    if not (stage / "config.yaml").is_file():
        return []
    config = StageConfig.read(stage)
    seeds = {
        "privacy.seed": None if config.privacy is None else config.privacy.seed,
        "data.sampling_seed": config.data.get("sampling_seed"),
    }
    return [name for name, seed in seeds.items() if seed is not None]
