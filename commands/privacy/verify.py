"""The privacy card of a run: what a reader may rely on, or what prevents it."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands.pipeline.evolution_settings import generator_of
from commands.pipeline.manifest import REPORTS, Entry
from commands.pipeline.run_record import RunRecord, read_json
from commands.pipeline.stage_config import StageConfig
from commands.privacy.attestation import EVOLVE, FILE_NAME, Attestation, taken_as_given
from commands.privacy.chain import TEXTS, drawn_by_others, not_drawn
from commands.privacy.rows_card import check_rows
from doppel.console.collection import no_collection
from doppel.errors import UserError
from doppel.files import write_json, write_text
from doppel.privacy.accounting import Accountant, CalibrationError, Mechanism, cross_check
from doppel.privacy.spec import usual_batch_size

CARD = "privacy_card"
#: What a checkpoint, the configuration beside it and the ledger must agree in.
_SPEC = ("unit", "noise_multiplier", "max_grad_norm", "batch_size", "num_units", "delta", "accountant")
_UNMADE = (
    "no step of the run made it, so that nobody can vouch for it: move it to a folder of its own (what `predict` wrote "
    "by hand, and rows chosen by hand, are not part of the release)"
)
_REDACTED = (
    "what redaction hides (redact): it is no part of the guarantee, whose ε is the same without it; and that its "
    "list of words was not made of the private rows"
)
_POSITIVE = ("batch_size", "num_units", "sample_rate", "noise_multiplier", "max_grad_norm", "planned_steps")


@no_collection()
def verify(run_dir: Path) -> int:
    """Sign off the privacy of a finished run, or list what prevents it.

    Reads the ledger, the manifest, every checkpoint, the configurations and the released files; nothing is trained and
    no private file is opened. The chain of the ledger must be whole, every stage finished, ε (computed anew with two
    accountants) within its target; checkpoints must agree with ledger and configuration. Every released file must be as
    its step made it, and so must all that it was made of, back to checkpoints whose steps the ledger has paid for.
    Writes RUN_DIR/privacy_card.json and privacy_card.txt, for whoever gets the release.

    What no step of the run has made is not released: samples that `predict` wrote by hand, or rows that you chose, go
    to a folder of their own. Of rows that `metadata` has drawn give the file: their card is compared with rows,
    releases and ledger.

    Args:
        run_dir: Run folder, or the .csv of `metadata`.

    Returns:
        Exit status: 0 where the card is signed, else 1.

    Raises:
        UserError: There is no ledger.
    """
    if run_dir.suffix == ".csv":
        statement, prevents = check_rows(run_dir)
        verdict = ["NOT SIGNED OFF:", *(f"- {text}" for text in prevents)] if prevents else ["SIGNED OFF"]
        print("\n".join([statement, *verdict]))
        return 1 if prevents else 0
    content = card(RunRecord(run_dir))
    print(write_card(content, run_dir))
    return 0 if content["signed"] else 1


def write_card(content: dict[str, Any], folder: Path) -> str:
    """Write a card as JSON and as text; the text."""
    text = render_card(content)
    write_json(folder / f"{CARD}.json", content)
    write_text(folder / f"{CARD}.txt", f"{text}\n")
    return text


def card(record: RunRecord, attestation: Attestation | None = None, *, renews: bool = False) -> dict[str, Any]:
    """What holds for a run.

    Args:
        record: The run.
        attestation: Of the run, where its checkpoints have been opened already.
        renews: Whether report and page are about to be made anew, so that those that are there do not matter.

    Returns:
        ``signed``, ``prevents`` (reasons; none if signed), ``statement``, ``scopes`` (what was promised and spent, ε by
        two accountants), ``everything`` (what all runs of the ledger spend), ``ledger`` (identity and newest chain),
        ``checkpoints`` and ``samples`` (the released files) with their fingerprints, ``not_covered`` (what is in the
        folder and no ε holds for), ``not_checked`` (what the card takes as given), and when it was made.

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
    released = manifest.released()
    spending = dict.fromkeys(m["scope"] for m in summary["mechanisms"])
    content = {
        "signed": False,
        "prevents": prevents,
        "run": record.folder.resolve().name,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "statement": summary["statement"],
        "scopes": {name: _scope(name, summary["scopes"][name], summary, prevents) for name in spending},
        "everything": summary["everything"],
        "ledger": ledger.anchor,
        "checkpoints": checkpoints,
        "samples": [told for made in released if (told := _sample(record, made, checkpoints, prevents)) is not None],
        "not_covered": [
            *[*not_covered, *_weak_terms(summary), *_derived(attestation)],
            *(f"{path}, which no step of the run made" for path in manifest.unknown()),
        ],
        "not_checked": _not_checked(attestation, checkpoints),
    }
    prevents += _other_shares(attestation, summary)
    if ledger.outrun is not None:
        prevents.append(ledger.outrun)
    if not spending:
        prevents.append("the ledger holds no mechanism of this run")
    prevents += [
        f"{n}: the ledger has a budget for it, and no mechanism" for n in summary["scopes"] if n not in spending
    ]
    prevents += [text for made in released for text in manifest.breaks(made.path)]
    prevents += manifest.breaks(may_be_gone=True, but=REPORTS if renews else ())  # what was deleted is not released
    prevents += [text for entry in manifest.files.values() for text in manifest.contradictions(entry)]
    for path in manifest.unmade():
        if path not in REPORTS:
            prevents.append(f"{path} is in the run folder, but {_UNMADE}")
        elif not renews:
            prevents.append(
                f"{path} is not one that `report` has made of this run: give python cli.py report RUN again"
            )
    prevents[:] = dict.fromkeys(prevents)
    return {**content, "signed": not prevents}


def _scope(name: str, scope: dict[str, Any], summary: dict[str, Any], prevents: list[str]) -> dict[str, Any]:
    """What a scope has promised and spent, computed anew."""
    own = [m for m in summary["mechanisms"] if m["scope"] == name]
    mechanisms = [Mechanism(m["sample_rate"], m["noise_multiplier"], m["done_steps"]) for m in own]
    first: Accountant = scope["accountant"]
    found: dict[str, float] = {}
    try:
        found, contradiction = cross_check(mechanisms, scope["delta"], first)
    except CalibrationError as error:
        prevents.append(f"{name}: {error}")
    else:
        prevents += [f"{name}: {contradiction}"] if contradiction else []
    if found.get(first, 0.0) > scope["target_epsilon"] * (1 + 1e-6):
        prevents.append(f"{name}: ε is {found[first]:.4g} by {first}, above its target {scope['target_epsilon']:g}")
    if len({m["num_units"] for m in own}) > 1:
        prevents.append(f"{name}: {' and '.join(m['id'] for m in own)} were trained on different numbers of units")
    for m in own:
        prevents += [f"{m['id']}: {text}" for text in _impossible(m)]
        if m["done_steps"] < m["planned_steps"]:
            prevents.append(f"{m['id']} is not finished: {m['done_steps']} of {m['planned_steps']} steps are done")
    kept = ("target_epsilon", "epsilon", "delta", "unit", "protects", "noise_multiplier", "caveats", "voids")
    steps = {m["stage"]: m["done_steps"] for m in own}
    epsilons = {} if scope["voids"] else {"epsilon_by_accountant": found}
    return {**{key: scope[key] for key in kept}, **epsilons, "steps": steps}


def _impossible(mechanism: Mapping[str, Any]) -> list[str]:
    """What of a mechanism's terms no Poisson sample with clipped sums and noise has."""
    batch, units, rate = (mechanism[name] for name in ("batch_size", "num_units", "sample_rate"))
    found = [f"{name} is {mechanism[name]}" for name in _POSITIVE if not 0 < mechanism[name] < math.inf]
    if not found and rate != batch / units:
        found.append(f"sample_rate is {rate}, and batch_size / num_units is {batch / units}")
    return found


def _weak_terms(summary: Mapping[str, Any]) -> list[str]:
    """Where δ is so large that the guarantee would allow to publish somebody."""
    units = {m["scope"]: m["num_units"] for m in summary["mechanisms"]}
    return [
        f"what δ = {scope['delta']:.3g} of {name} allows: it is not below 1/N, and to publish one unit would satisfy it"
        for name, scope in summary["scopes"].items()
        if name in units and scope["delta"] * units[name] >= 1
    ]


def _checkpoints(
    attestation: Attestation, summary: dict[str, Any], prevents: list[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every private checkpoint of the run, and what no ε covers."""
    mechanisms = {m["id"]: m for m in summary["mechanisms"]}
    record = attestation.record
    found, not_covered = [], []
    for path in sorted({path.resolve() for path in record.folder.rglob("*.ckpt")}):
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
        gap = attestation.ledger.gap(state, opened.weights)
        if gap is not None:
            prevents.append(f"{name}: {gap}")
        spec = state["spec"]
        prevents += [
            f"{name}: its {key} is not the ledger's"
            for key in _SPEC
            if key not in spec or spec[key] != recorded.get(key)
        ]
        stage = path.parent.parent
        if (stage / "config.yaml").is_file():
            config = StageConfig.read(stage)
            prevents += [f"{stage.name}/config.yaml: {text}" for text in _contradictions(config, recorded)]
            if (function := config.data.get("keep_function")) is not None:
                not_covered.append(f"the number of units of {stage.name}, an exact count of those that use {function}")
            if config.privacy is not None and config.privacy.log_private_diagnostics:
                not_covered.append(f"the figures named private/… that {stage.name} has logged")
        told = {"file": name, "scope": state["scope"], "steps": state["num_steps"], "weights": opened.weights}
        found.append(told)
    return found, list(dict.fromkeys(not_covered))


def _contradictions(config: StageConfig, recorded: Mapping[str, Any]) -> list[str]:
    """In what the configuration of a private training is not what the ledger holds."""
    if config.privacy is None:
        return ["it has no privacy, though the checkpoint beside it has"]
    given = {name: getattr(config.privacy, name) for name in ("max_grad_norm", "target_epsilon", "accountant")}
    given |= {name: config.data[name] for name in ("batch_size", "unit") if name in config.data}
    if given.get("batch_size", 0) is None and "num_units" in recorded:
        given["batch_size"] = usual_batch_size(recorded["num_units"])
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
    path = manifest.path(made)
    if not path.is_file():
        return None
    chain = manifest.upstream(made.path)
    weights: dict[str, list[str]] = {}
    for told in checkpoints:
        weights.setdefault(told["file"], []).append(told["weights"])
    for entry in chain:
        if entry.role in TEXTS and entry.verb == "predict":
            prevents += drawn_by_others(manifest, entry, weights)
        elif entry.role in TEXTS:
            prevents += not_drawn(manifest, entry)
    return {
        "file": made.path,
        "system": made.system,
        "sha256": made.sha256,
        "lines": path.read_bytes().count(b"\n"),
        "checkpoints": [entry.path for entry in chain if entry.role == "checkpoint" and entry.scope is not None],
        "steps": list(dict.fromkeys(entry.step for entry in reversed(chain))),
    }


def _other_shares(attestation: Attestation, summary: Mapping[str, Any]) -> list[str]:
    """Which released shares are not those of which the ledger holds a fingerprint, with their noise and N."""
    from doppel.privacy.histogram import KIND, fingerprint
    from doppel.tables.marginals import KIND as MARGINALS

    manifest, found = attestation.record.manifest, []
    tables = [entry for entry in manifest.find("metrics") if entry.path.endswith(".releases.jsonl")]
    for entry in tables:
        own = [m["id"] for m in summary["mechanisms"] if m["kind"] == MARGINALS and m["scope"] == entry.scope]
        if not any(attestation.ledger.has_noted(name, 1, entry.sha256) for name in own):
            found.append(
                f"{entry.path} does not hold the marginals that the ledger says were released in {entry.scope}"
            )
    for entry in manifest.find("metrics"):
        if entry.verb not in ("histogram", "calibrate") or not manifest.path(entry).is_file():
            continue
        told = read_json(manifest.path(entry))
        own = [m for m in summary["mechanisms"] if m["kind"] == KIND and m["scope"] == entry.scope]
        terms = [(m["noise_multiplier"], m["num_units"]) for m in own]
        if "sums" not in told:
            continue
        digest = fingerprint(told["sums"])
        if (told.get("noise_multiplier"), told.get("num_units")) not in terms or not any(
            attestation.ledger.has_noted(m["id"], 1, digest) for m in own
        ):
            found.append(f"{entry.path} does not hold the shares that the ledger says were released in {entry.scope}")
    return found


def _derived(attestation: Attestation) -> list[str]:
    """What steps have made of private text outside of every scope, a sentence for each step."""
    by_step: dict[str, list[str]] = {}
    for entry in attestation.uncovered():
        by_step.setdefault(entry.step, []).append(entry.path)
    return [f"{' and '.join(paths)}, which {step} made of private text" for step, paths in by_step.items()]


def _not_checked(attestation: Attestation, checkpoints: list[dict[str, Any]]) -> list[str]:
    """What the card takes as given, in words that follow "not checked"."""
    record = attestation.record
    bases = [config.model.get("base_model") for config in record.trainings]
    bases += [generator_of(record.experiment)] if record.manifest.find("release", verb=EVOLVE) else []
    stages = dict.fromkeys(os.path.dirname(os.path.dirname(told["file"])) for told in checkpoints)
    missing = [f"{stage}/config.yaml" for stage in stages if not (record.folder / stage / "config.yaml").is_file()]
    entries = record.manifest.files.values()
    hidden = {path for entry in entries for path in entry.private_inputs}
    read = {path: digest for entry in entries for path, digest in entry.inputs.items() if path not in hidden}
    public = sorted({_tail(path) for path, digest in read.items() if os.path.isabs(path) and digest})
    unread = sorted(path for path, digest in read.items() if digest is None)
    return [
        *taken_as_given(bases, record.experiment.get("commit") or ()),
        *([_REDACTED] if record.redactions else []),
        *([f"that no private text is in {', '.join(public)}, or was learnt by it"] if public else []),
        *([f"that {', '.join(unread)} stayed the same between two steps"] if unread else []),
        *([f"the settings of trainings in {', '.join(missing)}, which are not there"] if missing else []),
        *attestation.ledger.not_checked,
    ]


def _tail(path: str) -> str:
    """The name of a file; of a checkpoint with its folder."""
    parts = path.split("/")
    return "/".join(parts[-3:] if path.endswith(".ckpt") else parts[-1:])


def render_card(content: Mapping[str, Any]) -> str:
    """A card as people read it."""
    lines = [f"Privacy card of {content['run']}, {content['made']}", "", content["statement"]]
    if content["everything"]["num_runs"] > 1:
        lines.append(content["everything"]["statement"])
    for name, scope in content["scopes"].items():
        first, *others = scope.get("epsilon_by_accountant", {}).items() or [("", None)]
        told = "" if first[1] is None else f"{first[1]:.4g} by {first[0]}"
        terms = f"of {scope['target_epsilon']:g} at δ = {scope['delta']:.3g}, one {scope['unit']} more or less"
        noise = f"σ = {scope['noise_multiplier']:.4g}, {sum(scope['steps'].values())} steps"
        told_too = "".join(f"; {by}, a check whose bound is looser or coarser, finds {v:.4g}" for by, v in others)
        lines.append(f"{name}: ε = {told} {terms}, {noise}{told_too}" if told else f"{name}: NOT PRIVATE")
    for told in content["samples"]:
        origin = " and ".join(told["checkpoints"]) or "a public model, chosen by private votes"
        lines.append(f"{told['file']}: {told['lines']} samples of {origin}")
    lines += [f"checkpoint {told['file']}: {told['steps']} steps, paid" for told in content["checkpoints"]]
    lines += [f"not covered: {text}" for text in content["not_covered"]]
    lines.append(f"Not checked: {'; '.join(content['not_checked'])}.")
    if content["signed"]:
        return "\n".join([*lines, "", f"SIGNED OFF by ledger {content['ledger']['identity']}"])
    return "\n".join([*lines, "", "NOT SIGNED OFF:", *(f"- {text}" for text in content["prevents"])])
