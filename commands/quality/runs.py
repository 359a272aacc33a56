"""Reads run folders for the result tables: what can be believed, and why the rest cannot."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from commands.pipeline.run_record import RunRecord, table_of
from commands.pipeline.systems import system as system_of
from commands.privacy.attestation import attested
from doppel.errors import UserError
from doppel.privacy.fingerprint import sealed

#: Starts the caveats of a system whose ε is void.
VOID = "NOT PRIVATE"
#: Parsers of an adaptation that no private training made.
BASELINES = ("none", "full")
_TOLERANCE = 1e-6  # of ε: rounding in JSON and in the accountant's search
_SAME = ("target_epsilon", "delta", "unit", "accountant", "noise_multiplier", "steps_done", "steps_planned")
_MEASURED = ("data", "fingerprint", "reference", "base_model", "num_samples", "parser", "featurizer", "counting")
#: What all rows of one printed table share.
SECTION_FIELDS = (*_MEASURED, "missing_function")
_MADE = ("epsilon", "delta", "unit", "caveats", "accountant", "experiment", "table", "training", "sampling")
#: Fields that a number depends on: numbers that differ in one of them never share a cell.
KEY_FIELDS = ("kind", "system", *SECTION_FIELDS, "num_compared", *_MADE)


@dataclass(frozen=True)
class Point:
    """One system's numbers in one run.

    Attributes:
        key: Value of each of ``KEY_FIELDS``; ε is the target, infinity without privacy.
        seed: Seed of the run; None if its report does not say.
        values: Metric → number, or None where the report has null.
        notes: What the report says about its metrics.
        spent: ε spent, None without privacy.
        path: The run's folder, relative to the folder that was searched.
    """

    key: Mapping[str, Any]
    seed: int | None
    values: Mapping[str, float | None]
    notes: tuple[str, ...]
    spent: float | None
    commit: str
    path: str


@dataclass(frozen=True)
class Problem:
    """Something that keeps a run, or one system of it, out of the tables; None where a field cannot be told.

    Attributes:
        path: The run's folder.
        text: What is wrong.
        epsilon: Target ε.
        fingerprint: Of the private data.
    """

    path: str
    text: str
    system: str | None = None
    epsilon: float | None = None
    fingerprint: str | None = None
    experiment: str | None = None

    def __str__(self) -> str:
        """One line on what was left out and why."""
        return f"{self.path}{f', {self.system}' if self.system else ''}: {self.text}"


@dataclass
class Runs:
    """What lies below a folder: usable points, problems, and remarks that keep nothing out."""

    points: list[Point] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def read_runs(root: Path) -> Runs:
    """Read every run below a folder.

    Raises:
        UserError: ``root`` is no folder.
    """
    runs = Runs()
    for record in RunRecord.find(root):
        name = os.path.relpath(record.folder, root)
        ledger, broken = None, ""
        try:
            ledger = attested(record, archived=_vouched(record))
        except UserError as error:
            broken = f"the ledger cannot be read: {error}"
        try:
            report = record.report()
            if report is None:
                runs.problems += _without_report(record, name, "half-done: the folder has no report.json", ledger)
            elif broken:
                runs.problems.append(Problem(name, broken))
            else:
                _read_report(report, ledger, record, name, runs)
        except UserError as error:
            runs.problems += _without_report(record, name, str(error), ledger)
    return runs


def _vouched(record: RunRecord) -> set[str]:
    """Scopes whose checkpoints were found covered when the report was made."""
    try:
        privacy = _mapping(_mapping(record.report()).get("privacy"))
    except UserError:  # which is told where the report is read
        return set()
    return {name for name, told in _mapping(privacy.get("systems")).items() if _mapping(told).get("voids") == []}


def _without_report(record: RunRecord, name: str, text: str, ledger: dict[str, Any] | None) -> list[Problem]:
    """A run without a usable report, under every system that its ledger or its settings name."""
    try:
        experiment = record.experiment
    except UserError as error:
        return [Problem(name, str(error) if str(error) in text else f"{text}; {error}")]
    seed = f" (seed {experiment['seed']})" if experiment.get("seed") else ""
    called = experiment.get("name")
    problems = []
    for scope, told in (ledger or {"scopes": {}})["scopes"].items():
        steps = f"; {told['steps_done']} of {told['steps_planned']} planned steps of {scope} are done"
        fingerprint = _only_fingerprint(ledger, scope)
        problems.append(Problem(name, text + steps + seed, scope, told["target_epsilon"], fingerprint, called))
    return problems or [Problem(name, text + seed, None, experiment.get("epsilon"), None, called)]


def _read_report(
    report: dict[str, Any], ledger: dict[str, Any] | None, record: RunRecord, name: str, runs: Runs
) -> None:
    data, privacy, called = _mapping(report.get("data")), report.get("privacy"), report.get("experiment")
    fingerprint = sealed(data.get("fingerprint") or "") or _only_fingerprint(ledger)
    problem = partial(Problem, name, fingerprint=fingerprint, experiment=called)
    blocks = [("generation", *item) for item in _mapping(report.get("metrics")).items()]
    blocks += [("adaptation", *item) for item in _mapping(report.get("parser_metrics")).items()]
    wrong = None
    if not blocks:
        wrong = "report.json has neither metrics nor parser_metrics"
    elif "privacy" not in report:
        wrong = 'report.json has no "privacy": whether the run was private cannot be told'
    elif privacy is not None and not isinstance(_mapping(privacy).get("systems"), dict):
        wrong = 'report.json has a "privacy" without "systems"'
    if wrong:
        runs.problems.append(problem(wrong))
        return
    for left_out, text in _mapping(report.get("left_out")).items():
        runs.problems.append(problem(text, left_out, report.get("epsilon") or math.inf))
    seed = report.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool):
        seed = None
        runs.remarks.append(f"{name}: the report names no seed")
    if privacy is not None and ledger is None:
        runs.remarks.append(f"{name}: there is no ledger beside the report, so its ε was not checked")
    common = {
        # what a report does not say must not be taken for equal
        "data": _data_name(data.get("train")),
        "fingerprint": fingerprint or f"unknown ({name})",
        "reference": _tail(data.get("reference")) or "unknown",
        "base_model": _tail(report.get("base_model")) or f"unknown ({name})",
        "parser": _parser(report.get("parser")),
        "missing_function": report.get("missing_function"),
        "experiment": called or f"unknown ({name})",
        "table": report["table"] if "table" in report else table_of(str(called)),
    }
    # an adaptation's private part is cut by its seed: its report names what it was cut from
    own = None if report.get("missing_function") else fingerprint
    vouched = _vouched(record)
    for kind, system, values in blocks:
        if not isinstance(values, dict):
            text = f"report.json: {system} is {type(values).__name__}, not a table of metrics"
            runs.problems.append(problem(text, system))
            continue
        scope = system_of(system).scope
        told, wrong = check_privacy(scope, privacy, ledger, own)
        is_claimed = privacy is not None and scope not in vouched and system not in BASELINES
        if is_claimed and not wrong and all(each.system != system for each in record.passes()):
            told["caveats"] = _void(["nothing tells which checkpoint was sampled from"], told["caveats"])
        if wrong:
            runs.problems.append(problem(wrong, system, told["epsilon"]))
            continue
        budget = scope_of(privacy, scope)
        key = {
            **common,
            **told,
            "kind": kind,
            "system": system,
            "num_samples": report.get("num_samples") or values.get("num_synthetic"),
            "num_compared": values.get("num_compared"),
            "featurizer": _tail(values.get("featurizer")) or "none",
            "counting": values.get("counting") or "none",
            "training": _training(scope, budget, ledger, record, own is not None),
            "sampling": json.dumps(_mapping(report.get("sampling")).get(system), sort_keys=True),
        }
        numbers = {k: _number(v) for k, v in values.items() if not k.startswith("private/") and _is_metric(v)}
        notes = tuple(str(note) for note in values.get("notes") or ())
        is_void = told["caveats"].startswith(VOID)
        spent = budget["epsilon"] if budget and system not in BASELINES and not is_void else None
        commit = str(report.get("commit") or "unknown")
        runs.points.append(Point({k: key[k] for k in KEY_FIELDS}, seed, numbers, notes, spent, commit, name))


def _training(
    scope: str, budget: dict[str, Any] | None, ledger: dict[str, Any] | None, record: RunRecord, has_own_data: bool
) -> str:
    """Settings of the training as far as the run folder tells, so that sweeps are not taken for seeds."""
    parts = []
    if budget:
        sigma = budget.get("noise_multiplier")
        parts.append(f"σ {sigma:.4g}" if isinstance(sigma, float) else f"σ {sigma}")
        parts.append(f"{budget.get('steps_planned')} steps")
    for m in ledger["mechanisms"] if ledger else ():
        if m["scope"] == scope:
            parts.append(f"{m['stage']}: C {m['max_grad_norm']:g}, batch {m['batch_size']}, {m['planned_steps']} steps")
            parts += [f"data {str(m['data_fingerprint'])[:8]}"] * has_own_data
    return "; ".join(part for part in (*parts, record.training_settings(scope)) if part)


def _only_fingerprint(ledger: dict[str, Any] | None, scope: str | None = None) -> str | None:
    """The data of all mechanisms of a scope, or of the ledger; None where they differ."""
    mechanisms = ledger["mechanisms"] if ledger else ()
    prints = {m["data_fingerprint"] for m in mechanisms if scope in (None, m["scope"])}
    return prints.pop() if len(prints) == 1 else None


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_metric(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _tail(path: Any) -> str | None:
    """A path's last two parts: the same on every machine."""
    if not isinstance(path, str) or not path:
        return None
    return path if path.startswith("embedded:") else "/".join(path.rstrip("/").split("/")[-2:])


def _data_name(train: Any) -> str:
    """A data set's folder, for people; what may share a cell is decided by the fingerprint."""
    if not isinstance(train, str) or not train:
        return "unknown"
    if train.startswith("embedded:"):
        return "embedded"
    parts = [part for part in train.rstrip("/").split("/") if not part.startswith("$")]  # ${PREPARED} names no data
    return parts[-2] if len(parts) > 1 else (parts or [train])[0]


def _parser(parser: Any) -> str:
    """A parser by its fingerprint where there is one (``path fingerprint`` or a mapping), else by its path."""
    if isinstance(parser, dict):
        parser = parser.get("fingerprint") or parser.get("path")
    words = str(parser or "").split()
    return words[-1] if len(words) > 1 else _tail(" ".join(words)) or "none"


def scope_of(privacy: dict[str, Any] | None, system: str) -> dict[str, Any] | None:
    """The budget that a system was made under; a baseline parser stands beside the private systems of its run."""
    scopes: dict[str, Any] = privacy["systems"] if privacy else {}
    if system in BASELINES and system not in scopes:
        return scopes.get("two_stage") or next(iter(scopes.values()), None)
    return scopes.get(system)


def check_privacy(
    system: str,
    privacy: dict[str, Any] | None,
    ledger: dict[str, Any] | None,
    fingerprint: str | None,
) -> tuple[dict[str, Any], str | None]:
    """ε, δ, unit and accountant of a system, and why they cannot be believed.

    Args:
        system: The scope.
        privacy: What the report says; None: the run is not private.
        ledger: Summary of the ledger; None: there is none beside the report.
        fingerprint: Of the private data; None: the ledger need not name it.
    """
    told: dict[str, Any] = {"epsilon": math.inf, "delta": None, "unit": None, "accountant": None, "caveats": ""}
    recorded = (ledger or {"scopes": {}})["scopes"].get(system)
    if privacy is None:
        if recorded and recorded["steps_done"]:
            return told, "contradiction: the report says ε = ∞, but the ledger holds private steps of this system"
        return told, None
    told["epsilon"] = None
    scope = scope_of(privacy, system)
    if scope is None:
        return told, "the run is private, but the report has no budget for this system"
    try:
        # a scope that also released something without noise has no ε: what its other mechanisms spent is checked then
        spent = float(scope["epsilon_of_mechanisms"] if scope["epsilon"] is None else scope["epsilon"])
        target, delta, unit = float(scope["target_epsilon"]), float(scope["delta"]), scope["unit"]
        done, planned = int(scope["steps_done"]), int(scope["steps_planned"])
    except (KeyError, TypeError, ValueError) as error:
        return told, f"the report's budget of this system is incomplete ({error})"
    told |= {"epsilon": target, "delta": delta, "unit": unit, "accountant": scope.get("accountant")}
    voids = [*(scope.get("voids") or ()), *(recorded or {}).get("voids", ())]
    if scope["epsilon"] is None and not voids:  # of reports that did not say which of them voids it
        voids, scope = list(scope.get("caveats") or ["the report does not say why"]), {**scope, "caveats": []}
    told["caveats"] = _void(voids, "; ".join(text for text in scope.get("caveats") or () if text not in voids))
    if spent > target * (1 + _TOLERANCE):
        return told, f"contradiction: the report's ε, {spent:.4g}, is above its target {target:g}"
    if done < planned:
        return told, f"half-done: {done} of {planned} planned steps are done"
    if ledger is None or system in BASELINES:
        return told, None
    disagrees = _disagreement(scope, recorded, spent)
    prints = {mechanism["data_fingerprint"] for mechanism in ledger["mechanisms"]}
    if not disagrees and prints and fingerprint is not None and fingerprint not in prints:
        disagrees = ": the data's fingerprint is another one"
    return told, f"the ledger disagrees with the report{disagrees}" if disagrees else None


def _void(reasons: Iterable[str], caveats: str) -> str:
    """Caveats that begin with what voids the guarantee, if anything does."""
    told = "; ".join(dict.fromkeys(reasons))
    return "; ".join(filter(None, (f"{VOID}: {told}" if told else "", caveats)))


def _disagreement(scope: dict[str, Any], recorded: dict[str, Any] | None, spent: float) -> str:
    if recorded is None:
        return ": it has no budget for this system"
    for name in _SAME:
        if name in scope and not _equal(recorded[name], scope[name]):
            return f": {name} is {recorded[name]}, not {scope[name]}"
    if recorded["epsilon_of_mechanisms"] > spent * (1 + 1e-3):
        return f": ε is {recorded['epsilon_of_mechanisms']:.4g}, not {spent:.4g}"
    return ""


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)
