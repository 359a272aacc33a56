"""One long frame of all runs: a row is one metric of one system in one run, beside all settings that it depends on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from commands.privacy.coverage import covered_summary
from commands.quality.measures import human_value, is_baseline
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.systems import in_order, main_of, system
from doppel.errors import UserError
from doppel.files import write_text

#: Starts the caveats of a system whose ε is void.
VOID = "NOT PRIVATE"
#: The system of a row that says what human turns have.
HUMAN = "human"
#: Parsers of an adaptation that no private training made.
BASELINES = ("none", "full")
#: What the rows of one printed table share.
CONTEXT = ["table", "data", "reference", "base_model", "num_samples", "parser", "featurizer", "counting"]
CONTEXT += ["missing_function"]
#: All settings: numbers that differ in one of them never share a cell.
SETTINGS = ["epsilon", "system", *CONTEXT, "delta", "unit", "accountant", "caveats", "experiment", "num_compared"]
SETTINGS += ["setting"]
#: ``std`` and ``seeds`` are filled where ``value`` is the mean of several runs that are not rows themselves.
COLUMNS = [*SETTINGS, "seed", "metric", "value", "std", "seeds", "spent", "commit", "run"]
_FLOATS = ("epsilon", "delta", "value", "std", "spent")
_WHOLE = ("seed", "seeds", "num_samples", "num_compared")
_TEXTS = [name for name in COLUMNS if name not in (*_FLOATS, *_WHOLE)]


def read_runs(folders: Iterable[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Read every run at or below some folders.

    Formal guarantees:
        ε, δ and unit come from the run's ledger, and what was sampled is followed back through the manifest again: a
        system that the ledger does not cover has no ε spent, and its ``caveats`` begin with :data:`VOID`. Metrics
        named ``private/…``, which compare with private text, are not read.

    Returns:
        The frame, with :data:`COLUMNS`; and what was left out, a line each.

    Raises:
        UserError: A folder is none, or holds no run.
    """
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    found = {root: list(RunFolder.find(root)) for root in folders}
    every = [record for records in found.values() for record in records]
    for root, records in found.items():
        if not records:
            raise UserError(f"{root} holds no run: a run is a folder with experiment.yaml, ledger.jsonl or report.json")
        for record in records:
            name = os.path.relpath(record.folder, root if record.folder != root else root.parent)
            try:
                rows += _rows(record, name, problems, every)
            except UserError as error:
                problems.append(f"{name}: {str(error).replace(f'{record.folder}/', '')}")  # a page shows it to anybody
    return _typed(pd.DataFrame(rows, columns=COLUMNS)), problems


def read_csv(path: Path) -> pd.DataFrame:
    """Read a frame that :func:`write_csv` wrote; columns that it does not have are empty."""
    read = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(_TEXTS, "str"))
    return _typed(read.reindex(columns=COLUMNS))


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame, without columns that are empty."""
    kept = [name for name in COLUMNS if frame.empty or frame[name].notna().any()]
    write_text(path, frame[kept].to_csv(index=False))


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    kinds = dict.fromkeys(_FLOATS, "float") | dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(_TEXTS, "object")
    return frame.where(frame.notna(), math.nan).astype(kinds)


def counted(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows that count, and why others do not.

    A seed that occurs twice counts once if both runs have the same numbers; otherwise neither counts, for nothing tells
    which is right.
    """
    keys = [*SETTINGS, "metric", "seed"]
    frame = frame.drop_duplicates([*keys, "value"])
    twice = frame.duplicated(keys, keep=False)
    notes = [
        f"{' and '.join(same['run'].unique())}, {name}: seed {seed} has different numbers, so neither counts"
        for (name, seed), same in frame[twice].groupby(["system", "seed"], dropna=False)
    ]
    return frame[~twice], notes


def pool(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean and unbiased standard deviation over the seeds of each setting, in the order of tables.

    Returns:
        :data:`SETTINGS`, ``metric``, ``value``, ``std``, ``seeds``, ``spent`` and ``commit``.
    """
    pooled = frame.groupby([*SETTINGS, "metric"], dropna=False, sort=False).agg(
        value=("value", "mean"),
        std=("value", "std"),
        seeds=("value", "count"),
        told_std=("std", "max"),
        told_seeds=("seeds", "max"),
        spent=("spent", "max"),
        commit=("commit", _commits),
    )
    for column in ("std", "seeds"):
        pooled[column] = pooled.pop(f"told_{column}").fillna(pooled[column])
    return by_system(pooled.reset_index())


def by_system(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows of a table: human turns, then ε = ∞, then falling ε; systems in the order of their table."""
    places = {name: place for place, name in enumerate([HUMAN, *in_order(frame["system"].dropna().unique())])}
    falling = frame["epsilon"].map(lambda epsilon: -math.inf if math.isnan(epsilon) else max(-epsilon, -1e300))
    order = frame.assign(_first=falling, _second=frame["system"].map(places))
    return order.sort_values(["_first", "_second"], kind="stable").drop(columns=["_first", "_second"])


def _commits(commits: pd.Series) -> str | None:
    parts = [part for told in commits.dropna() for part in told.split(", ")]
    return ", ".join(dict.fromkeys(f"{part[:8]}{'+dirty' * part.endswith('+dirty')}" for part in parts)) or None


def _rows(record: RunFolder, name: str, problems: list[str], beside: Sequence[RunFolder]) -> Iterator[dict[str, Any]]:
    """The rows of one run."""
    report = record.report()
    if report is None:
        raise UserError("it is half-done, and has no report.json")
    blocks = [block for kind in ("metrics", "parser_metrics") for block in (report.get(kind) or {}).items()]
    if not blocks or "privacy" not in report:
        raise UserError("its report.json has no metrics, or does not say whether the run was private")
    scopes, has_ledger = _scopes(record, report, [own for own, _ in blocks if own not in BASELINES])
    common = _settings(report, name)
    missing = report.get("missing_function")
    human: dict[tuple[str, Any], dict[str, Any]] = {}
    for own, values in blocks:
        scope = system(own).scope
        told: dict[str, Any] = scopes.get(scope, {})
        if own in BASELINES and not told:
            told = scopes[main_of(scopes)] if scopes else {}
        if scopes and not told:
            problems.append(f"{name}, {own}: the run is private, but nothing says what this system spent")
            continue
        if told and told["steps_done"] < told["steps_planned"]:
            steps = f"{told['steps_done']} of {told['steps_planned']} planned steps"
            problems.append(f"{name}, {own}: it is half-done, {steps}")
            continue
        row = common | {
            "system": own,
            "epsilon": told["target_epsilon"] if told else math.inf,
            **{key: told.get(key) for key in ("delta", "unit", "accountant")},
            "caveats": _caveats(told, has_ledger),
            "spent": None if own in BASELINES else told.get("epsilon"),
            "num_samples": report.get("num_samples") or values.get("num_synthetic"),
            "num_compared": values.get("num_compared"),
            "featurizer": _tail(values.get("featurizer")),
            "counting": values.get("counting"),
            "setting": _training(record, scope, (report.get("sampling") or {}).get(own), beside),
        }
        for key, value in values.items():
            if not _is_number(value) or key.startswith("private/") or is_baseline(key):
                continue
            metric = key if missing is None else key.replace(missing, "missing").replace("@not missing", "@rest")
            yield row | {"metric": metric, "value": value}
            if (real := human_value(values, key)) is not None:
                kept = {key: row[key] for key in (*CONTEXT, "experiment", "num_compared", "seed", "run", "commit")}
                human[metric, row["num_compared"]] = kept | {"system": HUMAN, "metric": metric, "value": real}
    yield from human.values()
    problems += [f"{name}, {own}: {why}" for own, why in (report.get("left_out") or {}).items()]


def _scopes(record: RunFolder, report: Mapping[str, Any], systems: list[str]) -> tuple[dict[str, Any], bool]:
    """What each scope promised and spent, and whether the ledger says so as it is now, or the report alone.

    Samples of budgets that the report found covered need not be in a manifest any more.
    """
    told: dict[str, Any] = (report["privacy"] or {}).get("systems", {})
    archived = {name for name, scope in told.items() if scope.get("voids") == []}
    ledger = covered_summary(record, systems, archived)
    return (told, False) if ledger is None else (ledger["scopes"], True)


def _caveats(told: Mapping[str, Any], has_ledger: bool) -> str | None:
    """What ε does not cover, beginning with what voids it."""
    caveats = [*(told.get("voids") or ()), *(told.get("caveats") or ())]
    if told and not has_ledger:
        caveats.append("no ledger lies beside the report")
    is_void = bool(told) and told["epsilon"] is None
    return (f"{VOID}: " if is_void else "") + "; ".join(dict.fromkeys(caveats)) or None


def _settings(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Settings of a whole run; what a report does not say must not be taken for equal."""
    data = report.get("data") or {}
    fingerprint = (data.get("fingerprint") or "")[:8] or f"unknown ({name})"
    return {
        "experiment": report.get("experiment") or f"unknown ({name})",
        "table": report.get("table"),
        "data": f"{_data_name(data.get('train'))} {fingerprint}",
        "reference": _tail(data.get("reference")),
        "base_model": _tail(report.get("base_model")) or f"unknown ({name})",
        "parser": str(report.get("parser") or "").split(" ")[-1] or None,
        "missing_function": report.get("missing_function"),
        "seed": report.get("seed"),
        "commit": report.get("commit"),
        "run": name,
    }


def _training(record: RunFolder, scope: str, sampling: Any, beside: Sequence[RunFolder]) -> str | None:
    """Settings of training and sampling in words, so that points of a grid are not taken for seeds."""
    parts = [record.training_settings(scope, beside), json.dumps(sampling, sort_keys=True) if sampling else ""]
    return "; ".join(filter(None, parts)) or None


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value is None or is_number


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
