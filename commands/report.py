"""Gather a pipeline's ledger, metrics and timings into report.json, and print them."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

from doppel.errors import UserError

SYSTEMS = {"one_stage": "synthetic_one_stage.jsonl", "two_stage": "synthetic.jsonl"}
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
    samples = _utterances(args.run_dir / SYSTEMS["two_stage"], args.samples)
    print(f"\nSynthetic utterances (two-stage; the first {len(samples)} different ones of four words or more):")
    print("\n".join(f"  {text}" for text in samples))
    print(f"\nWritten to {path}")


def build_report(run_dir: Path) -> dict[str, Any]:
    """What a pipeline spent and what it reached.

    Args:
        run_dir: Folder of the pipeline.

    Returns:
        ``privacy`` (ε actually spent, of the two-stage system and of each, and what it protects), ``metrics`` by
        system, ``timings`` in seconds by stage, ``versions``.

    Raises:
        UserError: There is no ledger or no evaluation yet.
    """
    from doppel.privacy.ledger import Ledger

    if not (run_dir / "ledger.jsonl").exists():
        raise UserError(
            f"{run_dir} has no ledger.jsonl: run the pipeline first, slurm/two_stage.sh --local CONFIG {run_dir}"
        )
    metrics = {}
    for system in SYSTEMS:
        path = run_dir / "evaluation" / f"{system}.json"
        if path.exists():
            metrics[system] = json.loads(path.read_text(encoding="utf-8"))
    if not metrics:
        raise UserError(
            f"{run_dir}/evaluation has no metrics: run `python cli.py evaluate … --out` or the pipeline first"
        )
    summary = Ledger(run_dir / "ledger.jsonl").summary()
    scopes = summary["scopes"]
    main = scopes.get("two_stage") or next(iter(scopes.values()))
    done = run_dir / ".done"
    timings = (
        {p.name: int(p.read_text()) for p in sorted(done.iterdir(), key=lambda p: p.stat().st_mtime)}
        if done.is_dir()
        else {}
    )
    return {
        "privacy": {
            **{k: main[k] for k in PRIVACY_FIELDS},
            "systems": scopes,
            "epsilon_if_all_systems_are_released": summary["epsilon"],
            "statement": summary["statement"],
        },
        "metrics": metrics,
        "timings": timings,
        "versions": {
            "doppel": importlib.metadata.version("doppel"),
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
    }


def render(report: dict[str, Any]) -> str:
    """The report as an aligned text table, one column per system."""
    systems = list(report["metrics"])
    scopes = report["privacy"]["systems"]
    rows: list[tuple[str, list[str]]] = []
    for key in ("epsilon", "delta", "unit", "accountant", "noise_multiplier"):
        rows.append((key, [_cell(scopes.get(system, {}).get(key)) for system in systems]))
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
    together = report["privacy"]["epsilon_if_all_systems_are_released"]
    lines += ["", f"ε if the samples of all systems are released: {_cell(together)}"]
    lines.append(report["privacy"]["statement"])
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
