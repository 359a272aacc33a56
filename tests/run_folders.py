"""Run folders as the pipeline leaves them, with numbers made up."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from commands.run.experiment.changes import changes, run_anew
from commands.run.experiment.settings import Experiment
from commands.run.steps.recipes import steps_of
from commands.run.steps.run_plan import RunPlan
from commands.run_folder.manifest_writer import declare, enter
from commands.run_folder.steps import File, Role, Step
from commands.run_folder.systems import system
from doppel.files import sha256_of
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import DPPlan, PrivacyBudget, plan

FINGERPRINT = "f00dfeed" * 8
METRICS = {
    "word_overlap": 0.2,
    "mauve_own_base": 0.5,
    "parsed_chi_square": 0.06,
    "parsed_function_overlap": 0.7,
    "parsed_top_10_overlap": 0.6,
    "parsed_top_25_overlap": 0.7,
    "parsed_top_50_overlap": 0.8,
    "parsed_top_100_overlap": 0.9,
    "num_compared": 1711,
}


def work_of(experiment: Experiment, run: Path = Path("RUN")) -> RunPlan:
    """All that an experiment has to do in a new folder."""
    return RunPlan(experiment, run, steps_of(experiment, run), True, frozenset(), {})


@cache
def _least() -> DPPlan:
    return plan(2000, 100, 1, 3.0, delta=1e-5, accountant="rdp")


def spec(epsilon: float, delta: float = 1e-5, unit: str = "utterance") -> DPPlan:
    """Terms of ε ≥ 3, all with the noise of ε = 3: planning each would take seconds."""
    rows = None if unit == "utterance" else 4
    budget = PrivacyBudget(epsilon, delta, "rdp", unit)
    return replace(_least(), budget=budget, max_rows_per_unit=rows)


def make_run(
    folder: Path,
    *,
    epsilon: float | None = 3.0,
    seed: int | None = 1,
    metrics: dict[str, dict[str, Any]] | None = None,
    done: int = 20,
    report: bool = True,
    fingerprint: str = FINGERPRINT,
    delta: float = 1e-5,
    unit: str = "utterance",
    **fields: Any,
) -> dict[str, Any]:
    """Write a run with a true ledger, and a report made from it.

    Args:
        folder: Made; holds ledger.jsonl (unless ε is infinite) and report.json.
        epsilon: Target of every system; None for a run without privacy.
        seed: Of the report.
        metrics: System → metrics, over the defaults; one-stage and two-stage by default.
        done: Steps spent of 20.
        report: Whether the run came as far as its report.
        fingerprint: Of the private data.
        delta: Of the budget.
        unit: Of the budget.
        fields: Put into the report over the others.

    Returns:
        The report.
    """
    folder.mkdir(parents=True)
    systems = {"one_stage": {}, "two_stage": {}} if metrics is None else metrics
    privacy = None
    if epsilon is not None:
        names = {**systems, **fields.get("parser_metrics", {})}.keys() - {"none", "full"}
        private = {name for name in names if system(name).scope == name}
        text, scopes = _ledger(tuple(sorted(private)), spec(epsilon, delta, unit), done, fingerprint)
        (folder / "ledger.jsonl").write_text(text)
        scopes = json.loads(json.dumps(scopes))
        privacy = {**next(iter(scopes.values())), "systems": scopes}
    content: dict[str, Any] = {
        "experiment": "smcalflow-small",
        "table": "main",
        "seed": seed,
        "commit": "0123456789abcdef",
        "base_model": "models/base",
        "epsilon": epsilon,
        "data": {"train": "/data/smcalflow/train.zip", "fingerprint": fingerprint, "reference": "smcalflow/valid.zip"},
        "num_samples": 1711,
        "parser": "runs/parser/last.ckpt cafe0123",
        "privacy": privacy,
        "metrics": {name: {**METRICS, "featurizer": "models/base", **values} for name, values in systems.items()},
        **fields,
    }
    if report:
        (folder / "report.json").write_text(json.dumps(content))
    return content


def end_step(
    run: Path,
    name: str,
    words: Iterable[str],
    writes: Iterable[File],
    reads: Iterable[str] = (),
    private: str = "",
    mechanisms: Iterable[str] = (),
) -> None:
    """Enter files that are there into the manifest, as a step of a run does when it ends.

    Args:
        run: The run folder.
        name: Of the step.
        words: Its command.
        writes: What it made.
        reads: Of what.
        private: A file that it also read, which holds private text.
        mechanisms: What paid for that.
    """
    hidden = (private,) if private else ()
    files = {"writes": tuple(writes), "reads": (*reads, *hidden), "protected": hidden}
    command, *more = words
    folder = more[more.index("--run_dir") + 1].removeprefix(f"{run}/") if "--run_dir" in more else None
    declare(Step(name, command, folder=folder, **files, mechanisms=tuple(mechanisms)), run)
    enter(run, name)


def edit_manifest(run: Path, path: str, **changes: Any) -> None:
    """Change the entry of a file by hand; without changes it goes."""
    manifest = json.loads((run / "manifest.json").read_text())
    entry = manifest["files"].pop(path)
    if changes:
        manifest["files"][path] = entry | changes
    (run / "manifest.json").write_text(json.dumps(manifest))


def evaluate(run: Path, name: str, values: Any) -> None:
    """Leave what the evaluation of a system leaves; ``values`` that are a text are written as they are."""
    path = run / name / "evaluation.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    own = system(name)
    file = File(f"{name}/evaluation.json", "metrics", name, own.scope)
    end_step(run, f"{name}-evaluate", ["evaluate"], [file], [f"{name}/samples.jsonl"])


def sample(
    run: Path,
    name: str,
    output: str | None = None,
    role: Role = "release",
    lines: bytes = b'{"utterance": "yes"}\n',
    is_paid: bool = True,
) -> None:
    """Leave what the sampling of a system leaves: a checkpoint that the ledger has paid for, and how it was sampled.

    Args:
        run: The run folder, with its ledger.
        name: The system.
        output: What is sampled, in place of the system's samples.
        role: Of that.
        lines: Its content.
        is_paid: Whether the ledger has released the checkpoint, if it has spent a step of the system's training.
    """
    ledger, scope = Ledger(run / "ledger.jsonl"), system(name).scope
    checkpoint, private = run / f"model_{name}" / "checkpoints" / "last.ckpt", run.parent / "people.jsonl"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text(f"weights of {run.name}/{name}, {'paid' if is_paid else 'not paid'}")
    private.write_text('{"utterance": "what they said"}\n')
    spent = [own for own in ledger.spent(scope) if own.stage == "fit"]
    if is_paid and spent:
        ledger.release(spent[0].id, sha256=sha256_of(checkpoint))
    output = output or f"{name}/samples.jsonl"
    (run / output).parent.mkdir(exist_ok=True)
    (run / output).write_bytes(lines)
    (run / f"{output}.metrics.json").write_text(json.dumps({"sha256": hashlib.sha256(lines).hexdigest()}))
    (run / f"sample_{name}").mkdir(exist_ok=True)
    (run / f"sample_{name}" / "predict.yaml").write_text(yaml.safe_dump({"ckpt_path": str(checkpoint)}))
    weights = File(f"model_{name}/checkpoints/last.ckpt", "checkpoint", name, scope)
    words = ["fit", "--run_dir", f"{run}/model_{name}"]
    end_step(run, f"model_{name}", words, [weights], private=str(private), mechanisms=[f"{scope}/fit"])
    files = [File(output, role, name, scope), File(f"{output}.metrics.json", "metrics", name, scope)]
    words = ["predict", "--run_dir", f"{run}/sample_{name}"]
    end_step(run, f"sample_{name}", words, files, [weights.path])


@cache
def _ledger(systems: tuple[str, ...], terms: DPPlan, done: int, fingerprint: str) -> tuple[str, dict[str, Any]]:
    """A ledger's text and the scopes of its summary."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        for scope in systems:
            name = ledger.open(scope=scope, stage="fit", spec=terms, planned_steps=20, data_fingerprint=fingerprint)
            if done:
                for _ in range(done):
                    ledger.spend(name)
        return ledger.path.read_text(), ledger.summary()["scopes"]


def go_on(run: Path, old: Experiment, new: Experiment, jobs: Iterable[str] = ()) -> frozenset[str]:
    """The steps that a run does anew which goes on under other settings; refused where these bind what has begun."""
    return run_anew(run, steps_of(old, run), steps_of(new, run), changes(old, new), list(jobs))[0]


def mark(run: Path, *steps: str) -> None:
    """Steps that are done, as their marks say."""
    (run / ".done").mkdir(parents=True, exist_ok=True)
    for step in steps:
        (run / ".done" / step).touch()
