"""What a run spent and what it reached, of ledger, metrics and timings: the content of report.json."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from contextlib import suppress
from typing import Any

from commands.privacy.coverage import covered_summary, ledger_of
from commands.privacy.verify import card, write_card
from commands.quality import run_numbers
from commands.run_folder.manifest_writer import enter_report
from commands.run_folder.places import public_names
from commands.run_folder.private_files import learnt_by_parser
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.systems import in_order, main_of
from datamodules.training_rows import TrainingRows
from doppel.errors import UserError
from doppel.files import write_json
from doppel.privacy.fingerprint import keyed_fingerprint

PRIVACY_FIELDS = ("epsilon", "target_epsilon", "delta", "unit", "protects", "accountant", "noise_multiplier")
PACKAGES = ("doppel", "torch", "lightning", "transformers", "opacus", "dp-accounting", "torchmetrics", "mauve-text")
#: What makes two adaptations comparable, whatever their seeds.
SPLIT_FIELDS = ("fingerprint", "missing_function", "public_share", "test_fingerprint", "test_share", "by")
#: Of parsers whose training data a parser has annotated that read private trees.
_NOT_COVERED = (
    "what taught the parsers was annotated, in the place of people, by one that learnt private trees without privacy: "
    "no ε covers their figures (parser_metrics), but those of none"
)


def write_report(record: RunFolder, report: dict[str, Any]) -> dict[str, Any]:
    """Write ``report.json``, and of a private run the privacy card.

    Args:
        record: The run.
        report: As :func:`build_report` makes it.

    Returns:
        The report as it was written: with the card, and without folders.
    """
    statement = None
    if report["privacy"] is not None:
        report = {**report, "card": card(record, renews=True)}
        write_card(report["card"], record.folder)
        statement = report["card"]["statement"]
    report = json.loads(record.without_folders(json.dumps(report, ensure_ascii=False)))
    write_json(record.folder / "report.json", report)
    enter_report(record.folder, ["report.json"], ["report", "."], statement)
    return report


def build_report(record: RunFolder) -> dict[str, Any]:
    """Collect what a pipeline spent and what it reached.

    Args:
        record: The run.

    Returns:
        ``epsilon`` (the target), ``privacy`` (target and ε spent so far, of the two-stage system and of each; what
        holds for all together; and what it protects), both null without privacy; ``sampling``, ``resampling`` (of the
        trees), ``draws`` (how many texts, and how many dropped) and ``metrics`` by system; ``left_out`` (why a system
        has no metrics); ``timings`` in seconds by stage, but for those that read private text; and what was run. Files
        are called by their names, and folders not at all, for anybody may read it. An
        adaptation also has ``parser_metrics`` by the system whose samples taught the parser, and ``parsers_note`` where
        no ε covers them.

    Raises:
        UserError: There is neither an evaluation nor a sample, or no ledger though the run is private.
    """
    experiment = record.experiment
    metrics, left_out = run_numbers.values(record, "evaluate")
    if not metrics and not left_out:  # of a run without a reference nothing is compared
        metrics = {name: {} for name in in_order(record.manifest.samples())}
    ledger = covered_summary(record, metrics)
    if ledger is None and record.is_private:
        raise UserError(
            f"{record.folder} has no ledger.jsonl: run the pipeline first, python cli.py run EXPERIMENT {record.folder}"
        )
    if not metrics:
        why = "; ".join(left_out.values()) or "run the pipeline first, with a reference"
        raise UserError(f"{record.folder} has no metrics: {why}")
    if ledger is not None and not ledger["scopes"]:
        raise UserError(
            "it holds nothing of this run, so no ε holds for what the run has made: restore the file from a copy",
            about=ledger_of(record).path,
        )
    privacy = None if ledger is None else _privacy(ledger)
    return {
        "experiment": experiment.get("name"),
        "table": experiment.get("table"),
        "seed": 1 if experiment.get("seed") is None else experiment["seed"],
        "epsilon": None if privacy is None else privacy["target_epsilon"],
        "commit": ", ".join(experiment.get("commit") or ()) or None,
        "base_model": public_names(record.trainings[0].model.get("base_model")) if record.trainings else None,
        "num_samples": experiment.get("num_samples"),
        "parser": record.parser,
        "privacy": privacy,
        "sampling": {name: run_numbers.sampling(record, name) for name in metrics},
        "resampling": {name: told for name in metrics if (told := run_numbers.resampling(record, name))},
        "draws": {name: run_numbers.draws(record, name) for name in metrics},
        "metrics": public_names(metrics),
        "left_out": left_out,
        "timings": run_numbers.stage_seconds(record),
        "versions": {"python": platform.python_version(), **_installed()},
        **public_names(_adaptation(record, _data(record, ledger))),
    }


def _installed() -> dict[str, str]:
    """Versions of the packages, of those that are there: some metrics are an extra."""
    found = {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _privacy(ledger: dict[str, Any]) -> dict[str, Any]:
    scopes = ledger["scopes"]
    main = scopes[main_of(scopes)]
    return {
        **{k: main[k] for k in PRIVACY_FIELDS},
        "systems": scopes,
        "epsilon_if_all_systems_are_released": ledger["target_epsilon"],
        "statement": ledger["statement"],
        "everything": ledger["everything"],
    }


def _data(record: RunFolder, ledger: dict[str, Any] | None) -> dict[str, Any]:
    """The data as the trained stages name them."""
    mechanisms = [] if ledger is None else ledger["mechanisms"]
    main = main_of(m["scope"] for m in mechanisms)
    mechanisms = [m for m in mechanisms if m["scope"] == main]
    first = next(iter(record.trainings), None)
    data = {
        "train": first.data["train_path"] if first else (record.experiment.get("data") or {}).get("train_path"),
        "fingerprint": None,
        "reference": record.reference,
        "num_units": mechanisms[0]["num_units"] if mechanisms else None,
    }
    if mechanisms:
        data["fingerprint"] = mechanisms[0]["data_fingerprint"]
    elif first and record.split() is None:  # an adaptation has its own
        data["fingerprint"] = keyed_fingerprint(TrainingRows.from_config(first.data).fingerprint)
    return data


def _adaptation(record: RunFolder, data: dict[str, Any]) -> dict[str, Any]:
    """The data, and where the run is an adaptation also its parsers' accuracy and how it was split.

    The files that the stages read depend on the seed (who is private) and on the low-resource parser (their trees), so
    ``data`` names what they were split from, and its fingerprint covers that and the way of the split. A high-resource
    parser that the run trained itself is named as runs with other seeds name theirs.
    """
    split = record.split()
    if split is None:
        return {"data": data}
    values, left_out = run_numbers.values(record, "parser-metrics")
    fingerprint = hashlib.sha256(json.dumps([split[name] for name in SPLIT_FIELDS]).encode()).hexdigest()
    trained = [made for made in record.manifest.find("checkpoint") if made.step in ("full-parser", "parser_full")]
    is_covered = not record.is_private or not (trained or learnt_by_parser(record.experiment))
    shown = ("public_share", "by", "num_public", "num_private", "num_test", "num_test_with_function")
    return {
        **({"parser": "parser_full"} if trained else {}),
        "missing_function": split["missing_function"],
        "parser_metrics": values,
        **({} if is_covered else {"parsers_note": _NOT_COVERED}),
        "parsers_left_out": left_out,
        "data": {
            **data,
            "train": split["train"],
            "fingerprint": fingerprint,
            "reference": data["reference"] or str(record.folder / "data" / "test.jsonl"),
            **{name: split[name] for name in shown},
        },
    }
