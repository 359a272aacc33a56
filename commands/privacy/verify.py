"""The privacy card of a run: what a reader may rely on, or what prevents it."""

from __future__ import annotations

import datetime
import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands.privacy.coverage import (
    EVOLVE,
    FILE_NAME,
    check_budget,
    covered_summary,
    gaps,
    ledger_of,
    taken_as_given,
)
from commands.privacy.evolution_settings import generator_of
from commands.privacy.rows_card import check_rows
from commands.run_folder.manifest import REPORTS, SYNTHETIC, Entry, told_by_ledger
from commands.run_folder.private_files import learnt_by_parser
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import RELEASED
from doppel.errors import DataError, UserError
from doppel.files import sha256_of, write_json, write_text
from doppel.garbage import no_collection
from doppel.privacy.card import check_card
from doppel.privacy.plan import TRAININGS, counted_in
from doppel.run_folder import MANIFEST

CARD = "privacy_card"
_LIBRARIES = {"pld": "dp-accounting", "rdp": "dp-accounting", "prv": "opacus"}
_REDACTED = (
    "what redaction hides (redact): it is no part of the guarantee, whose ε is the same without it; and that its "
    "list of words was not made of the private rows"
)
_NOTHING_COVERED = (
    "Nothing covered: the ledger holds, and vouches for no file that is here. Of a training release what "
    "`python cli.py export` writes, with a card of its own."
)
_OLD = "quotes another guarantee than the ledger states by now: give python cli.py report RUN again"
#: What is so of every run, by the questions that NIST SP 800-226 asks of a guarantee.
_OF_EVERY_RUN = {
    "trust_model": "central: whoever runs Doppel sees the private file, and nobody else does",
    "composition": "all mechanisms of a budget by its accountant; the statement composes all budgets of the run",
    "post_processing": "sampling, choosing, evaluating and drawing from released shares read no private text",
    "side_channels": "noise is drawn in float64 from the entropy of the operating system; the time and the memory that "
    "a step takes depend on the private file and are not covered: the report leaves such times out",
}


@no_collection()
def verify(run_dir: Path, *, ledger: Path | None = None) -> int:
    """Check that the ledger of a run covers what it released, and write its privacy card.

    The chain of the ledger must be whole and ε, by two accountants, within its target. Every released file, and all
    that it was made of, must be as its step made it; every checkpoint among them a release of the ledger; every step
    that read private text must name the mechanism that paid for it. No checkpoint and no private file is opened. Writes
    RUN_DIR/privacy_card.json and .txt, which list the covered files by SHA-256; whatever else lies in the folder is not
    covered. Nothing is signed: sign the card with a tool and key of your own (docs/operations.md). In a folder that
    `export` wrote the weights must be those that its card tells of, and so must the base of LoRA weights, where it is
    on this machine. Where a run may only be read, its card is printed and not written.

    Example:
        python cli.py verify runs/mine
        python cli.py verify released/topics
        python cli.py verify attributes/rows.csv
        python cli.py verify attributes/rows.csv --ledger runs/mine

    Args:
        run_dir: Run folder, a folder that `export` wrote, or the .csv of `metadata`.
        ledger: Of rows of `metadata`: the --ledger that paid for them, if none lies beside them.

    Returns:
        Exit status: 0 where the run is VERIFIED, else 1.

    Raises:
        UserError: There is no ledger, or it or the manifest is damaged.
    """
    is_run, is_rows = (run_dir / MANIFEST).is_file(), run_dir.suffix == ".csv"  # a run's own card is written anew
    if ledger is not None and not is_rows:
        raise UserError("is for rows of `metadata`: a run has its ledger in its folder", about=f"--ledger {ledger}")
    stated = None if is_run else check_rows(run_dir, ledger) if is_rows else check_card(run_dir)
    if stated is not None:
        statement, reasons = stated
        print("\n".join([statement, *_verdict(reasons)]))
        return 1 if reasons else 0
    content = card(RunFolder(run_dir))
    print(render_card(content))
    try:
        write_card(content, run_dir)
    except DataError as error:
        print(f"This card is on no disk, and one that is there may be another: {error}", file=sys.stderr)
    return 0 if content["verified"] else 1


def write_card(content: dict[str, Any], folder: Path) -> None:
    """Write a card as JSON and as text.

    Raises:
        DataError: The folder cannot be written to.
    """
    write_json(folder / f"{CARD}.json", content)
    write_text(folder / f"{CARD}.txt", f"{render_card(content)}\n")


def card(record: RunFolder, *, renews: bool = False) -> dict[str, Any]:
    """Compute the privacy card of a run.

    Args:
        record: The run.
        renews: Whether report and page are about to be made anew, so that those that are there do not matter.

    Returns:
        ``verified``, ``reasons`` (why not; none if verified), ``statement``, ``budgets`` (the guarantee of each: its
        target, ``epsilon`` as it is spent so far, its parameters and mechanisms), ``everything`` (the same of all runs
        on the same data that this machine knows of), ``covered`` (files with their
        SHA-256), ``not_covered`` (file → why), ``not_checked`` (what the card takes as given), what is so of every run,
        ``registry_entry`` (for OpenDP's registry of deployments, None unless verified), the digests of ledger and
        manifest, and when it was made.

    Raises:
        UserError: There is no ledger, or it or the manifest is damaged.
    """
    manifest, ledger = record.manifest, ledger_of(record)
    systems = [entry.system for entry in manifest.find("metrics", verb="evaluate") if entry.system is not None]
    summary = covered_summary(record, systems)
    if summary is None:
        raise UserError(f"{record.folder} has no {FILE_NAME}: only a private run has a privacy card")
    statement = summary["statement"]
    spending = dict.fromkeys(m["scope"] for m in summary["mechanisms"])
    reasons = [] if spending else ["the ledger holds no mechanism of this run"]
    budgets = {name: _budget(name, summary, reasons) for name in spending}
    files = [made for made in manifest.files.values() if not (renews and made.path in REPORTS)]
    there = [made for made in files if manifest.path(made).exists()]
    released = [made for made in files if made.role in RELEASED]
    reasons += [text for made in released for text in gaps(manifest, ledger, made)]
    reasons += manifest.stale_inputs(*(made.path for made in released))
    reasons += manifest.stale_inputs(*(made.path for made in there), may_be_gone=True)  # the rest may be deleted
    synthetic = manifest.synthetic()
    if synthetic is None and (record.folder / SYNTHETIC).exists():
        reasons.append(f"{SYNTHETIC} is no longer what a system has sampled: delete it, and give `run` again")
    old = {made.path: _OLD for made in there if made.inputs.get(FILE_NAME) not in (None, told_by_ledger(statement))}
    reasons += [f"{path} {why}" for path, why in old.items()]
    learnt = learnt_by_parser(record.experiment)
    is_learnt = bool(learnt) or any(
        made.verb == "evaluate" and made.reads_private and not record.experiment.get("compare_with_private")
        for made in files
    )
    covered: list[dict[str, Any]] = []
    not_covered: dict[str, str] = {}
    for made in there:
        why = [old[made.path]] if made.path in old else manifest.stale_inputs(made.path, may_be_gone=True)
        shows_private = "--private" in made.command or is_learnt
        if made.path != REPORTS[1] or shows_private:
            why += gaps(manifest, ledger, made)
            why += summary["scopes"][made.budget]["voids"] if made.budget in summary["scopes"] else []
            why += _asked(record, made) if learnt else []
        if why:
            not_covered[made.path] = why[0]
        else:
            covered.append(_covered(record, made))
    if synthetic is not None and synthetic.path not in not_covered:
        covered.append({**_covered(record, synthetic), "file": SYNTHETIC})
    unknown = [path for path in manifest.unknown() if path != SYNTHETIC or synthetic is None]
    not_covered |= dict.fromkeys(unknown, "no step of the run made it")
    reasons = list(dict.fromkeys(reasons))
    content = {
        "verified": not reasons,
        "reasons": reasons,
        "run": record.folder.resolve().name,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "statement": statement,
        "budgets": budgets,
        "everything": summary["everything"],
        "covered": covered,
        "not_covered": not_covered,
        "not_checked": _not_checked(record),
        **_OF_EVERY_RUN,
        "sha256": {path.name: sha256_of(path) for path in (ledger.path, record.folder / MANIFEST) if path.is_file()},
    }
    return {**content, "registry_entry": None if reasons else _registry_entry(content, summary)}


def _budget(name: str, summary: Mapping[str, Any], reasons: list[str]) -> dict[str, Any]:
    """What a budget promises, has spent, and by what."""
    scope = summary["scopes"][name]
    found, wrong = check_budget(summary, name)
    reasons += [f"{name}: {text}" for text in wrong]
    epsilon = found.get(scope["accountant"])
    own = [m for m in summary["mechanisms"] if m["scope"] == name]
    caveats = [text for text in scope["caveats"] if text not in scope["voids"]]
    if own and scope["delta"] * own[0]["num_units"] >= 1:
        caveats.append(f"δ = {scope['delta']:.3g} is not below 1/N: to publish one unit whole would satisfy it")
    holds = f"(ε = {scope['target_epsilon']:.4g}, δ = {scope['delta']:.3g})-differentially private"
    return {
        "guarantee": "NOT PRIVATE"
        if epsilon is None
        else f"all that is released under {name} together is {holds} under adding or removing {scope['protects']}",
        "epsilon": epsilon,
        "epsilon_by_accountant": found,
        "target_epsilon": scope["target_epsilon"],
        "delta": scope["delta"],
        "privacy_unit": scope["unit"],
        "neighbouring_relation": f"add or remove {scope['protects']}",
        "accountant": {"name": scope["accountant"], "library": _library(scope["accountant"])},
        "mechanisms": [_mechanism(m) for m in own],
        "caveats": caveats,
        "voids": scope["voids"],
    }


def _mechanism(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A mechanism by the field's names: σ, q, C, B, N, and its steps; with bands its rounds, and their q."""
    names = ("sample_rate", "noise_multiplier", "max_grad_norm", "batch_size", "num_units", "max_rows_per_unit")
    if recorded["kind"] not in TRAININGS:  # a release has neither steps' batches nor gradients
        names = ("sample_rate", "noise_multiplier", "num_units")
    kind = recorded["kind"].replace("_", " ")
    steps = {"steps_done": recorded["done_steps"], "steps_planned": recorded["planned_steps"]}
    steps |= {"bands": recorded["bands"]} if "bands" in recorded else {}
    return {"stage": recorded["stage"], "mechanism": kind, **{name: recorded[name] for name in names}, **steps}


def _covered(record: RunFolder, made: Entry) -> dict[str, Any]:
    told: dict[str, Any] = {"file": made.path, "sha256": made.sha256}
    told |= {"role": made.role, "system": made.system, "budget": made.budget}
    num = {"num_lines": record.manifest.path(made).read_bytes().count(b"\n")} if made.role in RELEASED else {}
    return told | num


def _not_checked(record: RunFolder) -> list[str]:
    """What the card takes as given, in words that follow "not checked"."""
    bases = [config.model.get("base_model") for config in record.trainings]
    bases += [generator_of(record.experiment)] if record.manifest.find("release", verb=EVOLVE) else []
    given = taken_as_given(record, record.manifest.files.values(), bases)
    return [*given, *([_REDACTED] if record.redactions else [])]


def _registry_entry(content: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """An entry of OpenDP's registry of deployments, by the keys of its schema; what nobody but you knows says TODO.

    None where no one ε holds for all that was released, as of budgets that protect different units.
    """
    if summary["target_epsilon"] is None:
        return None
    budgets = content["budgets"]
    first = next(iter(budgets.values()))
    noises = [
        f"{m['mechanism']}, σ = {m['noise_multiplier']:.4g}" for own in budgets.values() for m in own["mechanisms"]
    ]
    told = ", ".join(content["not_covered"]) or "nothing"
    return {
        "url_slug": "".join(c if c.isalnum() else "-" for c in content["run"].lower()),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": content["run"],
                "data_curators": ["TODO: who publishes it"],
                "intended_use": "TODO: what it is for",
                "data_product_type": "Synthetic data",
                "data_product_region": "TODO: whom the data are of",
                "description": "Synthetic requests to an assistant, sampled from models of private ones (Doppel).",
                "publication_date": content["made"][:10],
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": "Sets of requests, each of one privacy unit.",
                "unprotected_quantities": f"The number of units. In the run folder, and not to be handed out: {told}.",
            },
            "privacy_loss": {
                "privacy_unit": first["privacy_unit"],
                "privacy_unit_details": first["neighbouring_relation"],
                "privacy_parameters": {"epsilon": summary["target_epsilon"], "delta": summary["delta"]},
                "privacy_parameters_details": "; ".join(own["guarantee"] for own in budgets.values()),
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": content["trust_model"],
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {"post_processing": content["post_processing"], "composition": content["composition"]},
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "TODO: what was tried on these people before, and its ε",
                "mechanisms": f"{'; '.join(dict.fromkeys(noises))}. {content['side_channels']}.",
                "justification": "TODO: why this ε and this unit",
            },
            "administrative": {"registry_authors": ["TODO: who filled this in"]},
        },
    }


def _library(accountant: str) -> str:
    name = _LIBRARIES[accountant]
    return f"{name} {importlib.metadata.version(name)}"


def _asked(record: RunFolder, made: Entry) -> list[str]:
    """That a parser which learnt private text was asked for a file, which an earlier version did not write down."""
    chain = record.manifest.upstream(made.path)
    steps = [own.step for own in chain if record.experiment["parser"] in own.inputs and not own.reads_private]
    return [f"{step} asked a parser that learnt private text" for step in dict.fromkeys(steps)]


def _verdict(reasons: list[str]) -> list[str]:
    return ["NOT VERIFIED:", *(f"- {text}" for text in reasons)] if reasons else ["VERIFIED"]


def _batches(mechanism: Mapping[str, Any]) -> str:
    """C and B of a training."""
    return f"C = {mechanism['max_grad_norm']:g}, B = {mechanism['batch_size']}, " if "batch_size" in mechanism else ""


def render_card(content: Mapping[str, Any]) -> str:
    """Render a card as text for people."""
    lines = [f"Privacy card of {content['run']}, {content['made']}", "", content["statement"]]
    if content["everything"]["num_runs"] > 1:
        lines.append(content["everything"]["statement"])
    for name, own in content["budgets"].items():
        lines += ["", f"Budget {name}: {own['guarantee']}."]
        first, *others = [f"{value:.4g} by {by}" for by, value in own["epsilon_by_accountant"].items()] or [""]
        if first:
            checks = f"; a second accountant, whose bound may be looser or coarser, finds {', '.join(others)}"
            library = own["accountant"]["library"]
            lines.append(f"  spent so far: ε = {first} ({library}){checks if others else ''}")
        lines += [
            f"  {m['stage']}: {m['mechanism']}, q = {m['sample_rate']:.4g}, σ = {m['noise_multiplier']:.4g}, "
            f"{_batches(m)}N = {m['num_units']}, "
            f"{m['steps_done']} of {m['steps_planned']} {counted_in(m.get('bands', 1))}"
            for m in own["mechanisms"]
        ]
        lines += [f"  caveat: {text}" for text in own["caveats"]]
    lines += ["", "Covered files, by SHA-256:"]
    lines += [f"  {told['sha256']}  {told['file']}" for told in content["covered"]]  # as sha256sum --check reads them
    lines += [] if content["covered"] else ["  nothing"]
    samples = [f"{told['num_lines']} in {told['file']}" for told in content["covered"] if "num_lines" in told]
    lines += [f"Samples: {', '.join(samples)}."] if samples else []
    lines += ["", "Not covered, whatever else is said:"]
    by_reason: dict[str, list[str]] = {}
    for path, why in content["not_covered"].items():
        by_reason.setdefault(why, []).append(path)
    lines += [f"  {', '.join(paths)}: {why}" for why, paths in by_reason.items()]
    lines += ["", *(f"{name.replace('_', ' ').capitalize()}: {content[name]}." for name in _OF_EVERY_RUN)]
    lines.append(f"Not checked: {'; '.join(content['not_checked'])}.")
    verdict = _verdict(content["reasons"])
    verdict += [] if content["covered"] or content["reasons"] else [_NOTHING_COVERED]
    return "\n".join([*lines, "", *verdict])
