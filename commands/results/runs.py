"""Reads run folders for the result tables: what can be believed, and why the rest cannot."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from commands.results.privacy import OTHER_SYSTEMS, check_privacy, scope_of, training_of
from commands.results.report import MODELS_OF
from doppel.errors import UserError

#: Fields of a report that a number depends on: numbers that differ in one of them never share a cell.
KEY_FIELDS = [
    "kind",
    "system",
    "epsilon",
    "delta",
    "unit",
    "caveats",
    "accountant",
    "data",
    "fingerprint",
    "reference",
    "base_model",
    "num_samples",
    "num_compared",
    "parser",
    "featurizer",
    "counting",
    "missing_function",
    "experiment",
    "training",
    "sampling",
]
_TIME = re.compile(r', "time": "[^"]*"')


@dataclass(frozen=True)
class Point:
    """One system's numbers in one run.

    Attributes:
        key: Value of each of ``KEY_FIELDS``; ε is the target, infinity without privacy.
        seed: Seed of the run; None if its report does not say.
        values: Metric → number, or None where the report has null.
        notes: What the report says about its metrics.
        spent: ε spent, None without privacy.
        commit: Commit that made the run.
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
    """Something that keeps a run, or one system of it, out of the tables.

    Attributes:
        path: The run's folder.
        text: What is wrong.
        system: The system it concerns; None: cannot be told.
        epsilon: Target ε, None: cannot be told.
        fingerprint: Of the private data; None: cannot be told.
        experiment: Of the run; None: cannot be told.
    """

    path: str
    text: str
    system: str | None = None
    epsilon: float | None = None
    fingerprint: str | None = None
    experiment: str | None = None


@dataclass
class Runs:
    """What lies below a folder: the usable points, the problems, and remarks that keep nothing out."""

    points: list[Point] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def read_runs(root: Path) -> Runs:
    """Read every run below a folder; a folder with report.json, a ledger or a pipeline's marks is a run.

    Raises:
        UserError: ``root`` is no folder.
    """
    if not root.is_dir():
        raise UserError(f"{root} is no folder: give the folder that holds the runs")
    runs = Runs()
    for folder, subfolders, files in os.walk(root):
        subfolders.sort()
        marks = {"report.json", "ledger.jsonl", "settings.env"} & set(files)
        if marks or ".done" in subfolders:
            _read_run(Path(folder), os.path.relpath(folder, root), runs)
    return runs


def _read_run(folder: Path, name: str, runs: Runs) -> None:
    ledger, broken = _read_ledger(folder)
    settings = _read_settings(folder / "settings.env")
    path = folder / "report.json"
    if not path.exists():
        _half_done(name, "half-done: the folder has no report.json", ledger, settings, runs)
        return
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        _half_done(name, f"report.json is no JSON ({error})", ledger, settings, runs)
        return
    if not isinstance(report, dict):
        _half_done(name, "report.json is not as `report` writes it", ledger, settings, runs)
        return
    if broken:
        runs.problems.append(Problem(name, f"the ledger cannot be read: {broken}"))
        return
    is_sweep = any("sweep" in part for part in folder.resolve().parts)  # one setting a run: not for the paper's tables
    _read_report(report, ledger, settings, name, is_sweep, runs)


def _read_ledger(folder: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The ledger's summary, and what is wrong with the file."""
    from doppel.privacy.ledger import LedgerError

    path = folder / "ledger.jsonl"
    if not path.exists():
        return None, None
    try:
        return _Ledger(_TIME.sub("", path.read_text(encoding="utf-8")), path).summary(), None
    except (OSError, UnicodeDecodeError, LedgerError) as error:
        return None, str(error)


@dataclass(frozen=True)
class _Ledger:
    """A ledger by what it says but for the times: the seeds of one setting need one accounting between them."""

    text: str
    path: Path = field(compare=False)

    @cache  # noqa: B019 (one process reads a folder once)
    def summary(self) -> dict[str, Any]:
        from doppel.privacy.ledger import Ledger

        return Ledger(self.path).summary()


def _read_settings(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines())
    return {key: value for key, _, value in pairs}


def _half_done(name: str, text: str, ledger: dict[str, Any] | None, settings: Mapping[str, str], runs: Runs) -> None:
    """Note a run without a usable report under every system that its ledger or settings name."""
    seed = f" (seed {settings['SEED']})" if settings.get("SEED") else ""
    experiment = settings.get("EXPERIMENT")
    if ledger and ledger["scopes"]:
        for scope, told in ledger["scopes"].items():
            steps = f"; {told['steps_done']} of {told['steps_planned']} planned steps of {scope} are done"
            prints = {m["data_fingerprint"] for m in ledger["mechanisms"] if m["scope"] == scope}
            fingerprint = prints.pop() if len(prints) == 1 else None
            epsilon = told["target_epsilon"]
            runs.problems.append(Problem(name, text + steps + seed, scope, epsilon, fingerprint, experiment))
    else:
        epsilon = float(settings["EPSILON"]) if settings.get("EPSILON") else None
        runs.problems.append(Problem(name, text + seed, None, epsilon, None, experiment))


def _read_report(
    report: dict[str, Any],
    ledger: dict[str, Any] | None,
    settings: Mapping[str, str],
    name: str,
    is_sweep: bool,
    runs: Runs,
) -> None:
    data = _mapping(report.get("data"))
    privacy = report.get("privacy")
    fingerprint = data.get("fingerprint") or _only_fingerprint(ledger)
    blocks = [("generation", system, values) for system, values in _mapping(report.get("metrics")).items()]
    blocks += [("adaptation", system, values) for system, values in _mapping(report.get("parser_metrics")).items()]

    def problem(text: str, system: str | None = None, epsilon: float | None = None) -> None:
        runs.problems.append(Problem(name, text, system, epsilon, fingerprint, report.get("experiment")))

    if not blocks:
        return problem("report.json has neither metrics nor parser_metrics")
    if "privacy" not in report:
        return problem('report.json has no "privacy": whether the run was private cannot be told')
    if privacy is not None and not isinstance(privacy.get("systems"), dict):
        return problem('report.json has a "privacy" without "systems"')
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
        "experiment": (report.get("experiment") or f"unknown ({name})") + (" (sweep)" if is_sweep else ""),
    }
    for kind, system, values in blocks:
        if not isinstance(values, dict):
            problem(f"report.json: {system} is {type(values).__name__}, not a table of metrics", system)
            continue
        made_by = MODELS_OF.get(system, system)
        scope = scope_of(privacy, made_by)
        # an adaptation's private part is cut by its seed: its report names what it was cut from
        own = None if report.get("missing_function") else fingerprint
        told, wrong = check_privacy(made_by, scope, privacy, ledger, own)
        if wrong:
            problem(wrong, system, told["epsilon"])
            continue
        numbers = {k: _number(v) for k, v in values.items() if not k.startswith("private/") and _is_metric(v)}
        key = {
            **common,
            **told,
            "kind": kind,
            "system": system,
            "num_samples": report.get("num_samples") or values.get("num_synthetic"),
            "num_compared": values.get("num_compared"),
            "featurizer": _tail(values.get("featurizer")) or "none",
            "counting": values.get("counting") or "none",
            "training": training_of(made_by, scope, ledger, settings, own is not None),
            "sampling": json.dumps(_mapping(report.get("sampling")).get(system), sort_keys=True),
        }
        runs.points.append(
            Point(
                key={k: key[k] for k in KEY_FIELDS},
                seed=seed,
                values=numbers,
                notes=tuple(str(note) for note in values.get("notes") or ()),
                spent=scope["epsilon"] if scope and system not in OTHER_SYSTEMS else None,
                commit=str(report.get("commit") or "unknown"),
                path=name,
            )
        )


def _only_fingerprint(ledger: dict[str, Any] | None) -> str | None:
    prints = {m["data_fingerprint"] for m in ledger["mechanisms"]} if ledger else set()
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
    if not parser:
        return "none"
    words = str(parser).split()
    kind: Literal["fingerprint", "path"] = "fingerprint" if len(words) > 1 else "path"
    return words[-1] if kind == "fingerprint" else _tail(words[0]) or "none"
