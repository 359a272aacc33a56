"""Gather a pipeline's ledger, metrics and timings into report.json, and print them."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import yaml

from commands.results.adaptation import adaptation, render_adaptation, stage_seconds
from commands.results.wandb_report import log_report
from doppel.errors import UserError

#: Order of the systems of the paper; others follow by name.
ORDER = ("one_stage", "domain", "two_stage", "shuffled")
#: Systems that sample from the models of another one, whose budget is theirs too: sampling is post-processing.
MODELS_OF = {"constrained": "two_stage"}
PRIVACY_FIELDS = ("epsilon", "target_epsilon", "delta", "unit", "protects", "accountant", "noise_multiplier")
PACKAGES = ("torch", "lightning", "transformers", "opacus", "dp-accounting", "torchmetrics", "mauve-text")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``python cli.py report``."""
    parser.add_argument("run_dir", type=Path, help="folder of the pipeline, which holds ledger.jsonl and evaluation/")
    parser.add_argument("--samples", type=int, default=10, help="synthetic utterances to print (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Write ``RUN_DIR/report.json`` and print a table and samples."""
    report = build_report(args.run_dir)
    path = args.run_dir / "report.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(render(report))
    if "parser_metrics" in report:
        print(render_adaptation(report))
    shown = next(name for name in ("two_stage", *report["metrics"]) if name in report["metrics"])
    samples = _utterances(synthetic_path(args.run_dir, shown), args.samples)
    print(f"\nSynthetic utterances ({shown}; the first {len(samples)} different ones of four words or more):")
    print("\n".join(f"  {text}" for text in samples))
    print(f"\nWritten to {path}")
    log_report(args.run_dir, report, [synthetic_path(args.run_dir, system) for system in report["metrics"]])


def synthetic_path(run_dir: Path, system: str) -> Path:
    """File of a system's samples."""
    return run_dir / ("synthetic.jsonl" if system == "two_stage" else f"synthetic_{system}.jsonl")


def sampling_of(run_dir: Path, system: str) -> dict[str, dict[str, Any]]:
    """How a system was sampled: file of trees or utterances → ``model.init_args.sampling`` of its ``predict``.

    Without seed and ``max_rows``, on which the distribution does not depend. Empty where no ``predict.yaml`` names the
    files.
    """
    prefix = "" if system == "two_stage" else f"{system}_"
    files = (f"{prefix}trees.jsonl", synthetic_path(run_dir, system).name)
    if system == "iterative":  # the trees of the last round
        rounds = sorted((len(path.name), path.name) for path in run_dir.glob("iterative_*_trees.jsonl"))
        files = (*(name for _, name in rounds[-1:]), files[1])
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(run_dir.glob("sample_*/predict.yaml")):
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        outputs = (
            callback.get("init_args", {}).get("output_path") for callback in config["trainer"].get("callbacks") or ()
        )
        settings = config["model"]["init_args"]["sampling"]
        settings = {name: value for name, value in settings.items() if name not in ("seed", "max_rows")}
        found |= {Path(output).name: settings for output in outputs if output}
    return {name: found[name] for name in files if name in found}


def build_report(run_dir: Path) -> dict[str, Any]:
    """What a pipeline spent and what it reached.

    Args:
        run_dir: Folder of the pipeline.

    Returns:
        ``experiment``, ``seed``, ``epsilon`` (the target), ``commit``, ``base_model``, ``data``, ``num_samples`` and
        ``parser``: what was run. ``privacy`` (ε actually spent, of the two-stage system and of each, and what it
        protects), ``sampling`` and ``metrics`` by system, ``timings`` in seconds by stage, ``versions``. A run that was
        started with ``EPSILON=inf`` has null for ``privacy`` and ``epsilon``.

    Raises:
        UserError: There is no evaluation, or no ledger though the run is private.
    """
    from doppel.privacy.ledger import Ledger

    settings = _settings(run_dir / "settings.env")
    summary = None
    if (run_dir / "ledger.jsonl").exists():
        summary = Ledger(run_dir / "ledger.jsonl").summary()
    elif settings.get("EPSILON") != "inf":
        raise UserError(
            f"{run_dir} has no ledger.jsonl: run the pipeline first, slurm/two_stage.sh --local CONFIG {run_dir}"
        )
    files = {path.stem: path for path in (run_dir / "evaluation").glob("*.json")}
    systems = [name for name in ORDER if name in files] + sorted(files.keys() - set(ORDER))
    if not systems:
        raise UserError(
            f"{run_dir}/evaluation has no metrics: run `python cli.py evaluate … --out` or the pipeline first"
        )
    privacy = None if summary is None else _privacy(summary)
    report = {
        "experiment": settings.get("EXPERIMENT"),
        "seed": int(settings.get("SEED") or 1),
        "epsilon": None if privacy is None else privacy["target_epsilon"],
        "commit": settings.get("COMMIT"),
        **_inputs(run_dir, settings, summary),
        "num_samples": int(settings["NUM_SAMPLES"]) if "NUM_SAMPLES" in settings else None,
        "parser": settings.get("PARSER"),
        "privacy": privacy,
        "sampling": {name: sampling_of(run_dir, name) for name in systems},
        "metrics": {name: json.loads(files[name].read_text(encoding="utf-8")) for name in systems},
        "timings": stage_seconds(run_dir / ".done"),
        "versions": {
            "doppel": importlib.metadata.version("doppel"),
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
    }
    added = adaptation(run_dir)
    return {**report, **added, "data": {**report["data"], **added.get("data", {})}}


def _settings(path: Path) -> dict[str, str]:
    """What the pipeline was started with; several commits are joined by commas."""
    if not path.exists():
        return {}
    settings: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        settings[key] = f"{settings[key]}, {value}" if key == "COMMIT" and key in settings else value
    return {key: value for key, value in settings.items() if value}


def _privacy(summary: dict[str, Any]) -> dict[str, Any]:
    scopes = summary["scopes"]
    main = scopes.get("two_stage") or next(iter(scopes.values()))
    return {
        **{k: main[k] for k in PRIVACY_FIELDS},
        "systems": scopes,
        "epsilon_if_all_systems_are_released": summary["epsilon"],
        "statement": summary["statement"],
    }


def _inputs(run_dir: Path, settings: dict[str, str], summary: dict[str, Any] | None) -> dict[str, Any]:
    """The base model, and the data as the trained stages name them."""
    from datamodules.readers import data_fingerprint, expand_path
    from datamodules.selection import Selection

    mechanisms = [] if summary is None else summary["mechanisms"]
    mechanisms = [m for m in mechanisms if m["scope"] == "two_stage"] or mechanisms
    data: dict[str, Any] = {"train": None, "fingerprint": None, "reference": settings.get("REFERENCE")}
    data["num_units"] = mechanisms[0]["num_units"] if mechanisms else None
    base_model = None
    stages = (p for p in run_dir.glob("*/config.yaml") if not p.parent.name.startswith("parser_"))
    configs = sorted(stages, key=lambda p: p.parent.name != "parse_tree")
    for config_path in configs[:1]:
        config = yaml.safe_load(config_path.read_text(encoding="utf-8"))
        init = config["data"]["init_args"]
        base_model, data["train"] = config["model"]["init_args"].get("base_model"), init["train_path"]
        if not mechanisms and not (run_dir / "data" / "partition.json").exists():  # an adaptation has its own
            path = expand_path(init["train_path"])
            data["fingerprint"] = data_fingerprint(path, Selection.from_config(init))
    if mechanisms:
        data["fingerprint"] = mechanisms[0]["data_fingerprint"]
    return {"base_model": base_model, "data": data}


def render(report: dict[str, Any]) -> str:
    """The report as an aligned text table, one column per system."""
    systems = list(report["metrics"])
    privacy = report["privacy"]
    scopes = privacy["systems"] if privacy else {}
    rows: list[tuple[str, list[str]]] = []
    for key in () if not privacy else ("epsilon", "delta", "unit", "accountant", "noise_multiplier"):
        rows.append((key, [_cell(scopes.get(MODELS_OF.get(system, system), {}).get(key)) for system in systems]))
    names = dict.fromkeys(name for system in systems for name in report["metrics"][system])
    for name in names:
        values = [report["metrics"][system].get(name) for system in systems]
        if any(isinstance(v, int | float) for v in values):
            rows.append((name, [_cell(v) for v in values]))
    width = max(len(name) for name, _ in rows)
    columns = [max(len(systems[i]), *(len(cells[i]) for _, cells in rows)) for i in range(len(systems))]
    lines = [" " * width + "".join(f"  {s:>{w}}" for s, w in zip(systems, columns, strict=True))]
    lines += [
        f"{name:{width}}" + "".join(f"  {c:>{w}}" for c, w in zip(cells, columns, strict=True)) for name, cells in rows
    ]
    if not privacy:
        return "\n".join([*lines, "", "NOT PRIVATE: the run was started with EPSILON=inf"])
    lines += [
        "",
        f"ε if the samples of all systems are released: {_cell(privacy['epsilon_if_all_systems_are_released'])}",
    ]
    lines.append(privacy["statement"])
    if len({scope["unit"] for scope in scopes.values()}) > 1:
        lines += [f"{name}: adding or removing {scope['protects']}" for name, scope in scopes.items()]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _utterances(path: Path, number: int) -> list[str]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        texts = dict.fromkeys(json.loads(line)["utterance"] for line in file)
    return [text for text in texts if len(text.split()) >= 4][:number]
