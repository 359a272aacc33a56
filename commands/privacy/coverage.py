"""What the ledger of a run covers, from ledger and manifest alone: no checkpoint and no private file is opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commands.run_folder.manifest import Entry, Manifest
from commands.run_folder.places import public_names
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import RELEASED
from commands.run_folder.systems import system
from doppel.console.ledger import FILE_NAME, what_is_torn
from doppel.errors import UserError
from doppel.privacy.accounting import Accountant, CalibrationError, Mechanism, compute_epsilon, cross_check
from doppel.privacy.ledger import Ledger
from doppel.run_folder import run_of

#: The command that lets samples evolve by private votes.
EVOLVE = "evolve"


def ledger_of(record: RunFolder) -> Ledger:
    """Open the ledger of a run, whose file may not be there."""
    return Ledger(record.folder / FILE_NAME)


def covered_summary(
    record: RunFolder, systems: Collection[str] = (), archived: Collection[str] = ()
) -> dict[str, Any] | None:
    """Return a ledger's summary, in which a budget is void where the ledger does not cover what was sampled.

    Args:
        record: The run.
        systems: Those that something is to be said of: void where no step has made samples of one.
        archived: Budgets of which an earlier report vouched: their samples need not be there any more.

    Returns:
        As :meth:`~doppel.privacy.ledger.Ledger.summary`; None where there is no ledger.

    Raises:
        UserError: The ledger or the manifest is damaged.
    """
    ledger, manifest = ledger_of(record), record.manifest
    if not ledger.exists():
        return None
    voids: dict[str, list[str]] = {}
    for made in manifest.released():
        voids.setdefault(made.budget or made.path, []).extend(gaps(manifest, ledger, made))
    for name in systems:
        if (budget := system(name).scope) not in archived and name not in manifest.samples():
            text = f"no step of this run has made samples of {name}, so that nothing tells what they came from"
            voids.setdefault(budget, []).append(text)
    return ledger.summary({budget: list(dict.fromkeys(texts)) for budget, texts in voids.items() if texts})


def gaps(manifest: Manifest, ledger: Ledger, made: Entry) -> list[str]:
    """Return why no budget covers a file, in words; nothing where the budget of the file does.

    Formal guarantees:
        Every step behind the file that read private text names mechanisms, the ledger has spent steps of each, and all
        of them stand in the budget of the file: so what the steps learnt is in its ε, whatever else the budget has
        paid for. Every checkpoint of a private training, and what evolved by votes, is a release of that budget by its
        SHA-256; and every file is the one that the next step read, as its own step made it, or is gone. All other steps
        read public text and what these have made: post-processing. A private file that a step has made is followed no
        further, for whoever reads it names what paid for that.
    """
    found: list[str] = []
    chain = manifest.upstream(made.path, through_private=False)
    for entry in chain:
        budget = made.budget or entry.budget
        if entry.is_private:
            found.append(f"{entry.path} holds private text")
        if entry.budget not in (None, budget):
            found.append(
                f"{made.path}, charged to {budget}, was made of {entry.path}, which is charged to {entry.budget}"
            )
        if entry.reads_private and not entry.mechanisms:
            names = ", ".join(public_names(entry.private_inputs))
            found.append(
                f"{entry.path}: {entry.step} read private text ({names}), and no mechanism was charged for that"
            )
        found += [
            f"{entry.path}: {entry.step} names {name}, of which the ledger has no step in {budget}"
            for name in entry.mechanisms
            if not _is_spent(ledger, name, budget)
        ]
        is_trained = entry.role == "checkpoint" and (entry.budget is not None or entry.reads_private)
        if is_trained or (entry.verb == EVOLVE and entry.role in RELEASED):
            reason = ledger.unpaid_reason(entry.sha256, str(budget))
            found += [] if reason is None else [f"{entry.path}: {reason}"]
        found += manifest.changes(entry.path, may_be_gone=True)
    if made.role in RELEASED and not any(entry.mechanisms for entry in chain):
        found.append(f"{made.path} was made of nothing that a mechanism released: {made.step} read no checkpoint")
    return [text.replace(f"{manifest.folder.resolve()}/", "") for text in found]


def _is_spent(ledger: Ledger, name: str, budget: str | None) -> bool:
    scope, _, stage = name.rpartition("/")
    known = ledger.mechanisms.get(ledger.mechanism_id(scope, stage))
    return scope == budget and known is not None and known.done_steps > 0


def check_budget(summary: Mapping[str, Any], name: str) -> tuple[dict[str, float], list[str]]:
    """Return ε of a budget by two accountants, computed anew, and why it does not hold.

    Args:
        summary: Of the ledger.
        name: The budget.

    Returns:
        ε by each accountant, that of the budget first; empty where it cannot be computed or the budget is void. And
        what is wrong, in words.
    """
    scope = summary["scopes"][name]
    own = [m for m in summary["mechanisms"] if m["scope"] == name]
    wrong = list(scope["voids"])
    if len({m["num_units"] for m in own}) > 1:
        wrong.append(f"{' and '.join(m['stage'] for m in own)} were given different numbers of units")
    first: Accountant = scope["accountant"]
    spent = [Mechanism(m["sample_rate"], m["noise_multiplier"], m["done_steps"]) for m in own]
    try:
        found, contradiction = cross_check(spent, scope["delta"], first)
    except CalibrationError as error:
        return {}, [*wrong, str(error)]
    wrong += [contradiction] if contradiction else []
    if found[first] > scope["target_epsilon"] * (1 + 1e-6):
        torn = "".join(f". {what_is_torn(m)}" for m in own if m.get("torn_lines"))
        wrong.append(f"ε is {found[first]:.4g} by {first}, above its target {scope['target_epsilon']:g}{torn}")
    return {} if scope["voids"] else found, wrong


def taken_as_given(record: RunFolder, entries: Iterable[Entry], bases: Iterable[str | None]) -> list[str]:
    """Return what no card checks, in words that follow "not checked".

    Args:
        record: The run.
        entries: Files of the run that a card speaks of, with all that they were made of.
        bases: Base models of the trainings, and generators of texts.
    """
    entries = list(entries)
    named = ", ".join(dict.fromkeys("/".join(name.split("/")[-2:]) for name in bases if name))
    code = ", ".join(dict.fromkeys(name for name in record.experiment.get("commit") or () if name))
    hidden = {path for entry in entries for path in entry.private_inputs}
    read = {path: digest for entry in entries for path, digest in entry.inputs.items() if path not in hidden}
    public = sorted({_tail(path) for path, digest in read.items() if os.path.isabs(path) and digest})
    unread = sorted(path for path, digest in read.items() if digest is None)
    settings = [record.settings_of(entry) for entry in entries]
    encoders = sorted({"/".join(name.split("/")[-2:]) for own in settings for name in _encoders(own)})
    has_words = any(own.get("label_words") for own in settings)
    return [
        "that all lines of one person are one unit of the private file",
        f"that the base model ({named or 'not named'}) and its tokenizer are public",
        *([f"that the sentence encoder ({', '.join(encoders)}) is public"] if encoders else []),
        f"that the code which ran ({code or 'of unknown version'}) is Doppel's as it was published, with the settings "
        "on file",
        "that nobody forged the files of the run",
        *([f"that no private text is in {', '.join(public)}, or was learnt by it"] if public else []),
        *(["that the words of label_words come from no private text"] if has_words else []),
        *([f"that {', '.join(unread)} stayed the same between two steps"] if unread else []),
    ]


def _encoders(settings: Mapping[str, Any]) -> list[str]:
    """Sentence encoders that a step has read texts by; a judge of labels has the shipped one unless it is named."""
    found = [own.get("encoder") for own in (settings, settings.get("settings") or {})]
    found += ["minilm"] if "candidates" in settings and not settings.get("parser") else []
    return [str(name) for name in found if name]


def _tail(path: str) -> str:
    """The name of a file; of a checkpoint with its folder."""
    parts = path.split("/")
    return "/".join(parts[-3:] if path.endswith(".ckpt") else parts[-1:])


def of_same_data(records: Iterable[RunFolder]) -> list[str]:
    """Return what runs on the same data cost together, in a sentence for each data set that several have spent on.

    Formal guarantees:
        Each mechanism that has begun counts with all of its planned steps, at the smallest of the deltas, as of one
        run's budgets (:func:`~doppel.privacy._ledger_summary.compose`). A copy of a run counts again. No epsilon is
        stated where the ledger does not cover a run, or where the runs protect different units. A run whose record
        cannot be read is left out.
    """
    by_data: dict[str, dict[Path, list[Mapping[str, Any]]]] = {}
    for record in records:
        with contextlib.suppress(UserError):
            for own in (covered_summary(record) or {"mechanisms": []})["mechanisms"]:
                if own["done_steps"]:
                    by_data.setdefault(own["data_fingerprint"], {}).setdefault(record.folder, []).append(own)
    return [_together(runs) for runs in by_data.values() if len(runs) > 1]


def _together(runs: Mapping[Path, Sequence[Mapping[str, Any]]]) -> str:
    """What runs on one data set come to, by the mechanisms of each."""
    paid = [own for mechanisms in runs.values() for own in mechanisms]
    void = [path.name for path, mechanisms in runs.items() if any(own["epsilon"] is None for own in mechanisms)]
    who = f"{len(runs)} runs ({', '.join(path.name for path in runs)}) learnt from the same data"
    if void:
        return f"{who}, and no ε holds for all of them: NOT PRIVATE is {', '.join(void)}."
    if len({own["unit"] for own in paid}) > 1:
        return f"{who}, and no ε holds for all of them, for they protect different units."
    delta, accountants = min(own["delta"] for own in paid), {own["accountant"] for own in paid}
    epsilon = compute_epsilon(_planned(paid), delta, accountants.pop() if len(accountants) == 1 else "pld")
    return f"{who}: released together, they come to ε = {epsilon:.4g} at δ = {delta:.3g}, all planned steps counted."


def _planned(mechanisms: Iterable[Mapping[str, Any]]) -> list[Mechanism]:
    """Mechanisms that have begun, with all of their planned steps."""
    return [
        Mechanism(own["sample_rate"], own["noise_multiplier"], max(own["planned_steps"], own["done_steps"]))
        for own in mechanisms
        if own["done_steps"]
    ]


def of_runs(folder: Path) -> str | None:
    """Return ε of each run of a folder, and of all together on the same people; None where it holds no runs."""
    if not folder.is_dir() or (folder / FILE_NAME).is_file() or (run_of(folder) / FILE_NAME).is_file():
        return None
    summaries = {
        record.folder: Ledger(record.folder / FILE_NAME).summary()
        for record in RunFolder.find(folder)
        if (record.folder / FILE_NAME).is_file()
    }
    mechanisms = [m for summary in summaries.values() for m in summary["mechanisms"]]
    if not mechanisms:
        return None
    lines = [f"{path.relative_to(folder)}: {summary['statement']}" for path, summary in summaries.items()]
    delta = min(m["delta"] for m in mechanisms)
    spent = [Mechanism(m["sample_rate"], m["noise_multiplier"], m["done_steps"]) for m in mechanisms]
    epsilon, so_far = compute_epsilon(_planned(mechanisms), delta), compute_epsilon(spent, delta)
    text = f"All {len(summaries)} runs together, on the same people: epsilon = {epsilon:.4g} at delta = {delta:.3g}"
    return "\n".join([*lines, f"{text}, by the pld accountant; spent so far: epsilon = {so_far:.4g}."])
