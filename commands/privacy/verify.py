"""The privacy card of a run: what a reader may rely on, or what prevents it."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commands.pipeline.run_record import Pass, RunRecord, StageConfig
from commands.privacy.attestation import FILE_NAME, attested, unvouched
from doppel.errors import UserError
from doppel.files import write_json, write_text
from doppel.privacy.accounting import Accountant, CalibrationError, Mechanism, compute_epsilon
from doppel.privacy.checkpoint import privacy_state, read_checkpoint
from doppel.privacy.ledger import Ledger

CARD = "privacy_card"
#: What a checkpoint, the configuration beside it and the ledger must agree in.
_SPEC = ("unit", "sample_rate", "noise_multiplier", "max_grad_norm", "batch_size", "num_units", "delta", "accountant")
_SLACK = 0.02  # by which two accountants may differ: PRV states the upper end of an interval


def verify(run_dir: Path) -> int:
    """Sign off the privacy of a finished run, or list what prevents it.

    Reads the ledger, every checkpoint, the configurations and the samples; nothing is trained and no private file is
    opened. The chain of the ledger must be whole, every stage finished, ε (computed anew with two accountants) within
    its target; checkpoints must agree with ledger and configuration; samples must come from the weights of such a
    checkpoint. Writes RUN_DIR/privacy_card.json and privacy_card.txt, for whoever gets the release.

    Args:
        run_dir: Run folder.

    Returns:
        Exit status: 0 where the card is signed, else 1.

    Raises:
        UserError: There is no ledger.
    """
    content = card(RunRecord(run_dir))
    print(write_card(content, run_dir))
    return 0 if content["signed"] else 1


def write_card(content: dict[str, Any], folder: Path) -> str:
    """Write a card as JSON and as text; the text."""
    text = render_card(content)
    write_json(folder / f"{CARD}.json", content)
    write_text(folder / f"{CARD}.txt", f"{text}\n")
    return text


def card(record: RunRecord) -> dict[str, Any]:
    """What holds for a run.

    Returns:
        ``signed``, ``prevents`` (reasons; none if signed), ``statement``, ``scopes`` (what was promised and spent, ε by
        two accountants), ``everything`` (what all runs of the ledger spend), ``ledger`` (identity and newest chain),
        ``checkpoints`` and ``samples`` with their fingerprints, ``not_covered``, and when it was made.

    Raises:
        UserError: There is no ledger, or it is damaged.
    """
    ledger = Ledger(record.folder / FILE_NAME)
    systems = [path.stem for path in sorted((record.folder / "evaluation").glob("*.json"))]
    summary = attested(record, systems)
    if summary is None:
        raise UserError(f"{record.folder} has no {FILE_NAME}: only a private run can be signed off")
    prevents: list[str] = []
    for name, scope in summary["scopes"].items():
        prevents += [f"{name}: {text}" for text in scope["voids"]]
    outside = unvouched(record, ledger, systems)
    prevents += [
        f"{name}: {text}" for name, texts in outside.items() if name not in summary["scopes"] for text in texts
    ]
    checkpoints, not_covered = _checkpoints(record, ledger, summary, prevents)
    content = {
        "signed": False,
        "prevents": prevents,
        "run": record.folder.resolve().name,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "statement": summary["statement"],
        "scopes": {name: _scope(name, scope, summary, prevents) for name, scope in summary["scopes"].items()},
        "everything": summary["everything"],
        "ledger": ledger.anchor,
        "checkpoints": checkpoints,
        "samples": [
            told for each in record.passes() if (told := _sample(record, each, checkpoints, prevents)) is not None
        ],
        "not_covered": not_covered,
    }
    if not summary["scopes"]:
        prevents.append("the ledger holds no mechanism of this run")
    return {**content, "signed": not prevents}


def _scope(name: str, scope: dict[str, Any], summary: dict[str, Any], prevents: list[str]) -> dict[str, Any]:
    """What a scope has promised and spent, computed anew."""
    own = [m for m in summary["mechanisms"] if m["scope"] == name]
    mechanisms = [Mechanism(m["sample_rate"], m["noise_multiplier"], m["done_steps"]) for m in own]
    first: Accountant = scope["accountant"]
    second: Accountant = "prv" if first == "pld" else "pld"
    found: dict[str, float] = {}
    for accountant in (first, second):
        try:
            found[accountant] = compute_epsilon(mechanisms, scope["delta"], accountant)
        except CalibrationError as error:
            prevents.append(f"{name}: {error}")
    if found.get(first, 0.0) > scope["target_epsilon"] * (1 + 1e-6):
        prevents.append(f"{name}: ε is {found[first]:.4g} by {first}, above its target {scope['target_epsilon']:g}")
    if found.get(second, 0.0) > found.get(first, 0.0) * (1 + _SLACK):
        prevents.append(f"{name}: {second} finds ε = {found[second]:.4g}, {first} {found[first]:.4g}: one is wrong")
    for m in own:
        if m["done_steps"] < m["planned_steps"]:
            prevents.append(f"{m['id']} is not finished: {m['done_steps']} of {m['planned_steps']} steps are done")
    kept = ("target_epsilon", "epsilon", "delta", "unit", "protects", "noise_multiplier", "caveats", "voids")
    steps = {m["stage"]: m["done_steps"] for m in own}
    epsilons = {} if scope["voids"] else {"epsilon_by_accountant": found}
    return {**{key: scope[key] for key in kept}, **epsilons, "steps": steps}


def _checkpoints(
    record: RunRecord, ledger: Ledger, summary: dict[str, Any], prevents: list[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every private checkpoint of the run, and what no ε covers."""
    from callbacks.synthetic_writer import weights_fingerprint

    mechanisms = {m["id"]: m for m in summary["mechanisms"]}
    sampled = {each.checkpoint.resolve() for each in record.passes() if each.checkpoint is not None}
    found, not_covered = [], []
    for path in sorted({path.resolve() for path in record.folder.glob("*/checkpoints/*.ckpt")} | sampled):
        name = os.path.relpath(path, record.folder.resolve())
        try:
            checkpoint = read_checkpoint(path)
        except UserError as error:
            prevents.append(str(error))
            continue
        state = privacy_state(checkpoint)
        if state is None:
            not_covered.append(f"{name}, which was trained without privacy")
            continue
        recorded = mechanisms.get(state["mechanism_id"], {})
        gap = ledger.gap(state)
        if gap is not None:
            prevents.append(f"{name}: {gap}")
        prevents += [
            f"{name}: its {key} is not the ledger's" for key in _SPEC if _differs(key, state["spec"], recorded)
        ]
        stage = path.parent.parent
        if (stage / "config.yaml").is_file():
            config = StageConfig.read(stage)
            prevents += [f"{stage.name}/config.yaml: {text}" for text in _contradictions(config, recorded)]
            if config.privacy is not None and config.privacy.log_private_diagnostics:
                not_covered.append(f"the figures named private/… that {stage.name} has logged")
        weights = weights_fingerprint(checkpoint["state_dict"])
        found.append({"file": name, "scope": state["scope"], "steps": state["num_steps"], "weights": weights})
    return found, list(dict.fromkeys(not_covered))


def _contradictions(config: StageConfig, recorded: Mapping[str, Any]) -> list[str]:
    """In what the configuration of a private training is not what the ledger holds."""
    if config.privacy is None:
        return ["it has no privacy, though the checkpoint beside it has"]
    given = {name: getattr(config.privacy, name) for name in ("max_grad_norm", "target_epsilon", "accountant")}
    given |= {name: config.data[name] for name in ("batch_size", "unit") if name in config.data}
    return [
        f"{name} is {value}, in the ledger {recorded[name]}"
        for name, value in given.items()
        if _differs(name, given, recorded)
    ]


def _differs(key: str, told: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
    return key in told and key in recorded and told[key] != recorded[key]


def _sample(
    record: RunRecord, each: Pass, checkpoints: Sequence[Mapping[str, Any]], prevents: list[str]
) -> dict[str, Any] | None:
    """A file of samples and the checkpoint whose weights drew it."""
    path = record.folder / each.output
    metrics = path.with_name(f"{path.name}.metrics.json")
    if not path.is_file() or each.checkpoint is None:
        prevents.append(f"{each.output} is not in the run folder")
        return None
    name = os.path.relpath(each.checkpoint.resolve(), record.folder.resolve())
    written = json.loads(metrics.read_text(encoding="utf-8")) if metrics.is_file() else {}
    drawn = written.get("weights")
    known = [told["weights"] for told in checkpoints if told["file"] == name]
    if drawn is None:
        prevents.append(f"{each.output}: nothing tells which weights drew it, for an earlier version did")
    elif known and drawn not in known:
        prevents.append(f"{each.output} was drawn by other weights than those of {name}")
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if drawn is not None and digest != written.get("sha256"):
        prevents.append(f"{each.output} was changed after it was written")
    return {"file": each.output, "sha256": digest, "lines": content.count(b"\n"), "checkpoint": name}


def render_card(content: Mapping[str, Any]) -> str:
    """A card as people read it."""
    lines = [f"Privacy card of {content['run']}, {content['made']}", "", content["statement"]]
    if content["everything"]["num_runs"] > 1:
        lines.append(content["everything"]["statement"])
    for name, scope in content["scopes"].items():
        told = ", ".join(f"{value:.4g} by {by}" for by, value in scope.get("epsilon_by_accountant", {}).items())
        terms = f"of {scope['target_epsilon']:g} at δ = {scope['delta']:.3g}, one {scope['unit']} more or less"
        noise = f"σ = {scope['noise_multiplier']:.4g}, {sum(scope['steps'].values())} steps"
        lines.append(f"{name}: ε = {told} {terms}, {noise}" if told else f"{name}: NOT PRIVATE")
    lines += [f"{told['file']}: {told['lines']} samples of {told['checkpoint']}" for told in content["samples"]]
    lines += [f"checkpoint {told['file']}: {told['steps']} steps, paid" for told in content["checkpoints"]]
    lines += [f"not covered: {text}" for text in content["not_covered"]]
    if content["signed"]:
        return "\n".join([*lines, "", f"SIGNED OFF by ledger {content['ledger']['identity']}"])
    return "\n".join([*lines, "", "NOT SIGNED OFF:", *(f"- {text}" for text in content["prevents"])])
