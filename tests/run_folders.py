"""Run folders as the pipeline leaves them, with numbers made up."""

from __future__ import annotations

import hashlib
import json
import secrets
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from commands.pipeline.manifest import declare, enter
from commands.pipeline.steps import File, Role, Step
from commands.pipeline.systems import system
from doppel.privacy.checkpoint import weights_fingerprint
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
        write_ledger(folder / "ledger.jsonl", text, secrets.token_hex(16))
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


def write_ledger(path: Path, text: str, identity: str | None = None) -> None:
    """Write the lines of a ledger with chains that fit them, and its head; under another name if there is one."""
    lines: list[str] = []
    chain = ""
    for line in text.splitlines():
        record = json.loads(line)
        del record["chain"]
        if record["type"] == "ledger" and identity is not None:
            record["identity"] = identity
        body = json.dumps(record)[:-1]
        chain = hashlib.sha256((chain + body).encode()).hexdigest()
        lines.append(f'{body}, "chain": "{chain}"}}\n')
    path.write_text("".join(lines))
    path.with_name(f"{path.name}.head").write_text(f"{len(lines):12d} {chain}\n")


def end_step(
    run: Path, name: str, words: Iterable[str], writes: Iterable[File], reads: Iterable[str] = (), private: str = ""
) -> None:
    """Enter files that are there into the manifest, as a step of a run does when it ends.

    Args:
        run: The run folder.
        name: Of the step.
        words: Its command.
        writes: What it made.
        reads: Of what.
        private: A file that it also read, which holds private text.
    """
    hidden = (private,) if private else ()
    step = Step(name, "tool", tuple(words), writes=tuple(writes), reads=(*reads, *hidden), protected=hidden)
    declare(step, run)
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
    path = run / "evaluation" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    own = system(name)
    file = File(f"evaluation/{name}.json", "metrics", name, own.scope)
    end_step(run, f"evaluate_{name}", ["evaluate"], [file], [own.synthetic])


def sample(
    run: Path,
    name: str,
    output: str | None = None,
    role: Role = "release",
    lines: bytes = b'{"utterance": "yes"}\n',
    **changes: Any,
) -> None:
    """Leave what the sampling of a system leaves: a checkpoint that the ledger has paid for, and how it was sampled.

    Args:
        run: The run folder, with its ledger.
        name: The system.
        output: What is sampled, in place of the system's samples.
        role: Of that.
        lines: Its content.
        changes: Put into the privacy state of the checkpoint; ``state=None`` leaves it out.
    """
    ledger = Ledger(run / "ledger.jsonl")
    scope = system(name).scope
    recorded = next((m for m in ledger.summary()["mechanisms"] if m["scope"] == scope), {"id": "", "done_steps": 0})
    terms = {name: value for name, value in recorded.items() if name not in ("id", "done_steps")}
    state = {
        "spec": terms or {"target_epsilon": 6.0},
        "scope": scope,
        "mechanism_id": recorded["id"],
        "ledger": ledger.anchor,
    }
    state |= {"num_steps": recorded["done_steps"], **changes}
    checkpoint = run / f"model_{name}" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    callbacks = {} if changes.get("state", state) is None else {"DifferentialPrivacy": state}
    weights = {"weight": torch.ones(2)}
    torch.save({"state_dict": weights, "callbacks": callbacks}, checkpoint)
    if recorded["done_steps"]:
        ledger.note_weights(recorded["id"], recorded["done_steps"], weights_fingerprint(weights))
    output = output or system(name).synthetic
    (run / output).write_bytes(lines)
    drawn = {"weights": weights_fingerprint(weights), "sha256": hashlib.sha256(lines).hexdigest()}
    (run / f"{output}.metrics.json").write_text(json.dumps(drawn))
    config = {"ckpt_path": str(checkpoint)}
    (run / f"sample_{name}").mkdir(exist_ok=True)
    (run / f"sample_{name}" / "predict.yaml").write_text(yaml.safe_dump(config))
    weights_file = File(f"model_{name}/checkpoints/last.ckpt", "checkpoint", name, scope)
    end_step(run, f"model_{name}", ["fit", "--run_dir", f"{run}/model_{name}"], [weights_file])
    files = [File(output, role, name, scope), File(f"{output}.metrics.json", "metrics", name, scope)]
    words = ["predict", "--run_dir", f"{run}/sample_{name}"]
    end_step(run, f"sample_{name}", words, files, [weights_file.path])


@cache
def _ledger(systems: tuple[str, ...], terms: DPPlan, done: int, fingerprint: str) -> tuple[str, dict[str, Any]]:
    """A ledger's text and the scopes of its summary."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        for scope in systems:
            name = ledger.open_mechanism(
                scope=scope, stage="fit", spec=terms, planned_steps=20, data_fingerprint=fingerprint
            )
            if done:
                for _ in range(done):
                    ledger.spend(name)
        return ledger.path.read_text(), ledger.summary()["scopes"]
