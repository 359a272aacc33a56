"""The privacy card of a run: what a reader may rely on, or what prevents it."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands.pipeline.manifest import Entry, Manifest
from commands.pipeline.run_record import RunRecord, read_json
from commands.pipeline.stage_config import StageConfig
from commands.privacy.attestation import FILE_NAME, Attestation
from doppel.errors import UserError
from doppel.files import read_json_lines, write_json, write_text
from doppel.privacy.accounting import Accountant, CalibrationError, Mechanism, compute_epsilon
from doppel.privacy.checkpoint import weights_fingerprint

CARD = "privacy_card"
#: What a checkpoint, the configuration beside it and the ledger must agree in.
_SPEC = ("unit", "noise_multiplier", "max_grad_norm", "batch_size", "num_units", "delta", "accountant")
#: Roles of the lines that a model wrote, or that were drawn from such.
_TEXTS = ("release", "candidates", "pool", "prompts")
_UNMADE = (
    "no step of the run made it, so that nobody can vouch for it: move it to a folder of its own (what `predict` wrote "
    "by hand, and rows chosen by hand, are not part of the release)"
)
_SLACK = 0.02  # by which two accountants may differ: PRV states the upper end of an interval


def verify(run_dir: Path) -> int:
    """Sign off the privacy of a finished run, or list what prevents it.

    Reads the ledger, the manifest, every checkpoint, the configurations and the released files; nothing is trained and
    no private file is opened. The chain of the ledger must be whole, every stage finished, ε (computed anew with two
    accountants) within its target; checkpoints must agree with ledger and configuration. Every released file must be as
    its step made it, and so must all that it was made of, back to checkpoints whose steps the ledger has paid for.
    Writes RUN_DIR/privacy_card.json and privacy_card.txt, for whoever gets the release.

    What no step of the run has made is not released: samples that `predict` wrote by hand, or rows that you chose, go
    to a folder of their own.

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


def card(record: RunRecord, attestation: Attestation | None = None) -> dict[str, Any]:
    """What holds for a run.

    Args:
        record: The run.
        attestation: Of the run, where its checkpoints have been opened already.

    Returns:
        ``signed``, ``prevents`` (reasons; none if signed), ``statement``, ``scopes`` (what was promised and spent, ε by
        two accountants), ``everything`` (what all runs of the ledger spend), ``ledger`` (identity and newest chain),
        ``checkpoints`` and ``samples`` (the released files) with their fingerprints, ``not_covered``, and when it was
        made.

    Raises:
        UserError: There is no ledger, or it or the manifest is damaged.
    """
    attestation = attestation or Attestation(record)
    ledger, manifest = attestation.ledger, record.manifest
    systems = [entry.system for entry in manifest.find("metrics", verb="evaluate") if entry.system is not None]
    summary = attestation.summary(systems)
    if summary is None:
        raise UserError(f"{record.folder} has no {FILE_NAME}: only a private run can be signed off")
    prevents: list[str] = []
    for name, scope in summary["scopes"].items():
        prevents += [f"{name}: {text}" for text in scope["voids"]]
    outside = attestation.unvouched(systems)
    prevents += [
        f"{name}: {text}" for name, texts in outside.items() if name not in summary["scopes"] for text in texts
    ]
    checkpoints, not_covered = _checkpoints(attestation, summary, prevents)
    released = manifest.find("release")
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
        "samples": [told for made in released if (told := _sample(record, made, checkpoints, prevents)) is not None],
        "not_covered": not_covered,
    }
    if not summary["scopes"]:
        prevents.append("the ledger holds no mechanism of this run")
    prevents += [f"{path} is in the run folder, but {_UNMADE}" for path in manifest.unmade()]
    prevents[:] = dict.fromkeys(prevents)
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
    attestation: Attestation, summary: dict[str, Any], prevents: list[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every private checkpoint of the run, and what no ε covers."""
    mechanisms = {m["id"]: m for m in summary["mechanisms"]}
    record = attestation.record
    found, not_covered = [], []
    for path in sorted({path.resolve() for path in record.folder.glob("*/checkpoints/*.ckpt")}):
        name = os.path.relpath(path, record.folder.resolve())
        opened = attestation.open(path)
        if opened.content is None:
            prevents.append(str(opened.error))
            continue
        state = opened.state
        if state is None:
            not_covered.append(f"{name}, which was trained without privacy")
            continue
        recorded = mechanisms.get(state["mechanism_id"], {})
        gap = attestation.ledger.gap(state)
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
        weights = weights_fingerprint(opened.content["state_dict"])
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
    record: RunRecord, made: Entry, checkpoints: list[dict[str, Any]], prevents: list[str]
) -> dict[str, Any] | None:
    """A released file, and the checkpoints that it came from."""
    manifest = record.manifest
    prevents += manifest.breaks(made.path)
    path = manifest.path(made)
    if not path.is_file():
        return None
    chain = manifest.upstream(made.path)
    for entry in chain:
        prevents += manifest.contradictions(entry)
        if entry.role in _TEXTS and entry.verb == "predict":
            prevents += _drawn_by_others(record, entry, checkpoints)
        elif entry.role in _TEXTS and (source := manifest.drawn_from(entry)) is not None:
            prevents += _not_drawn(manifest, entry, source)
    return {
        "file": made.path,
        "system": made.system,
        "sha256": made.sha256,
        "lines": path.read_bytes().count(b"\n"),
        "checkpoints": [entry.path for entry in chain if entry.role == "checkpoint" and entry.scope is not None],
        "steps": list(dict.fromkeys(entry.step for entry in reversed(chain))),
    }


def _drawn_by_others(record: RunRecord, drawn: Entry, checkpoints: list[dict[str, Any]]) -> list[str]:
    """Why what a model wrote is not bound to the weights of the checkpoint and to the prompts that its step read."""
    manifest = record.manifest
    metrics = manifest.files.get(f"{drawn.path}.metrics.json")
    told = read_json(manifest.path(metrics)) if metrics is not None and manifest.path(metrics).is_file() else {}
    if metrics is None or "weights" not in told:
        return [f"{drawn.path}: nothing tells which weights drew it"]
    wrong = manifest.changes(metrics.path)
    if told.get("sha256") != drawn.sha256:
        wrong.append(f"{drawn.path} is not what the sampling wrote that {metrics.path} tells of")
    asked = [name for name in drawn.inputs if name in manifest.files and manifest.files[name].role == "prompts"]
    if told.get("prompts") not in ({drawn.inputs[name] for name in asked} or {None}):
        named = " and ".join(asked) or "none"
        wrong.append(f"{drawn.path} was sampled with other prompts than {drawn.step} declared, which are {named}")
    names = [name for name in drawn.inputs if name in manifest.files and manifest.files[name].role == "checkpoint"]
    files = [os.path.relpath((record.folder / name).resolve(), record.folder.resolve()) for name in names]
    known = [told["weights"] for told in checkpoints if told["file"] in files]
    if known and told["weights"] not in known:
        wrong.append(f"{drawn.path} was drawn by other weights than those of {' and '.join(names)}")
    return wrong


def _not_drawn(manifest: Manifest, drawn: Entry, source: Entry) -> list[str]:
    """Why a file was not drawn or chosen from another one, which must have all its lines."""
    lines = [
        {(line.get("utterance"), line.get("parse")) for _, line in read_json_lines(manifest.path(entry))}
        for entry in (drawn, source)
        if manifest.path(entry).is_file()
    ]
    if len(lines) < 2 or lines[0] <= lines[1]:
        return []
    return [f"{drawn.path} has lines that {source.path} has not, from which {drawn.step} draws"]


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
    for told in content["samples"]:
        lines.append(f"{told['file']}: {told['lines']} samples of {' and '.join(told['checkpoints'])}")
    lines += [f"checkpoint {told['file']}: {told['steps']} steps, paid" for told in content["checkpoints"]]
    lines += [f"not covered: {text}" for text in content["not_covered"]]
    if content["signed"]:
        return "\n".join([*lines, "", f"SIGNED OFF by ledger {content['ledger']['identity']}"])
    return "\n".join([*lines, "", "NOT SIGNED OFF:", *(f"- {text}" for text in content["prevents"])])
