"""What contradicts itself in an experiment, or in one and the run that it goes on; refused before anything runs."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

from commands.run.settings import DERIVED, Experiment, systems_of
from commands.runs.manifest import Manifest
from commands.runs.sections import SECTIONS
from commands.runs.system import MODEL_FILES
from commands.runs.systems import SYSTEMS, USUAL
from commands.runs.yaml_files import differences
from doppel.console.ledger import FILE_NAME
from doppel.errors import UserError
from doppel.evolution.votes import NoisyVotes
from doppel.privacy.ledger import Ledger

#: Former name of a system and its stage → its name.
RENAMED = {"domain": "labels"}

#: Of the field ``evolution``: what changes neither votes nor texts.
_FREE_OF_EVOLUTION = ("limits", "key_variable", "batch_size")
#: Keys that say how is logged, and how is sampled.
_LOGGING = re.compile(r"(^|\.)trainer\.(logger|log_every_n_steps|enable_progress_bar)(\.|$)")
_SAMPLING = re.compile(r"(^|\.)sampling\.|^num_samples$")
#: Likewise, what changes texts alone, which may be mended as long as nothing has voted for one.
_OF_TEXTS = ("model", "examples", "num_examples", "temperature", "top_p", "max_new_tokens", "wording")
#: Fields of an experiment that may change while its run goes on.
_FREE = (
    "save_every",
    "systems",
    "overlays",
    "supported",
    "names",
    "parser",
    "parser_digest",
    "table",
    "environment",
    "commit",
)


def check(experiment: Experiment, path: Path) -> None:
    """Refuse what contradicts itself.

    Raises:
        UserError: Something does; ``path`` says where.
    """
    parts = [*experiment.stages.items(), *experiment.variants.items()]
    for name, sections in parts:
        for section, values in sections.items():
            if section not in SECTIONS:
                raise UserError(f"{name} has no section {section!r}: give {', '.join(SECTIONS)}", about=path)
            if not isinstance(values, dict):
                hint = "; `epsilon: inf` trains without privacy" if section == "privacy" else ""
                raise UserError(f"{section} of {name} is {values!r}: give keys with values{hint}", about=path)
    for field in ("systems", "variants", "stages", "epochs"):
        for name in RENAMED.keys() & set(getattr(experiment, field)):
            raise UserError(f"{field} names {name!r}, which is called {RENAMED[name]!r}: write that", about=path)
    for name in [*experiment.systems, *experiment.variants]:
        if re.fullmatch(r"[A-Za-z0-9_][\w.-]*", name) is None:  # folders and files are called after it
            raise UserError(f"a system is called {name!r}: take letters, digits, _, . and - alone", about=path)
    known = [*MODEL_FILES, "parser_full", "parser_augmented"]
    for field_name in ("stages", "epochs"):
        for name in getattr(experiment, field_name):
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
                raise UserError(f"{field_name} has no stage {name!r}: {hint}", about=path)
    for name, number in experiment.epochs.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
            raise UserError(f"epochs.{name} is {number!r}: give a number above 0", about=path)
    for _, sections in [("", {"privacy": experiment.privacy}), *parts]:
        for name in DERIVED.keys() & sections.get("privacy", {}).keys():
            raise UserError(f"privacy.{name} follows from the field {DERIVED[name]}: set that instead", about=path)
    if "max_epochs" in experiment.trainer:
        raise UserError("trainer.max_epochs follows from the field epochs: set epochs.STAGE instead", about=path)
    if experiment.candidates < 1:
        raise UserError(f"candidates is {experiment.candidates}: give at least 1", about=path)
    if experiment.label_words and experiment.candidates == 1:
        raise UserError(
            "label_words choose among candidates, and candidates is 1: give 8, or leave them out", about=path
        )
    if experiment.fluent and (experiment.candidates == 1 or experiment.reference is None):
        raise UserError(
            "fluent chooses among candidates, by what is usual in the reference: give candidates=4 and reference, or "
            "leave it out",
            about=path,
        )
    evolves = "evolution" in experiment.systems
    if evolves and experiment.evolving.per_label and experiment.labels is None:
        raise UserError("evolution.per_label needs the list of all labels: give labels, or leave it out", about=path)
    if evolves and experiment.evolving.measures_rows and experiment.attributes is None:
        raise UserError(
            "evolution.rows is attributes, and nothing says which there are: give attributes.schema", about=path
        )
    if evolves and not experiment.evolving.per_label:
        _refuse_unused_room(experiment, path)
    if evolves and experiment.adaptation is not None:
        raise UserError("an adaptation trains its systems, and evolution trains nothing: leave it out", about=path)
    wanted = experiment.calibration
    if wanted is not None and not wanted.draws_trees and experiment.candidates > 1:
        raise UserError("a calibration of utterances draws from all of them: leave out candidates", about=path)
    adaptation = experiment.adaptation
    own_files = [name for name, sections in experiment.variants.items() if "train_path" in sections.get("data", {})]
    if experiment.write_parses and (adaptation is not None or own_files):
        what = (
            f"variants.{own_files[0]} has a train_path of its own" if own_files else "an adaptation has its own parser"
        )
        raise UserError(f"write_parses is for data.train_path, and {what}: leave one of them out", about=path)
    has = {"": True, "labels": experiment.labels is not None, "adaptation": adaptation is not None}
    has["attributes"] = experiment.attributes is not None
    for place, used in enumerate(systems_of(experiment)):
        described = {"stages": used.name in experiment.stages, "variants": used.name in experiment.variants}
        if not (has | described)[used.needs]:
            known = [*(name for name, system in SYSTEMS.items() if system.learns), *experiment.variants]
            if used.needs == "variants":
                called = {system.label: name for name, system in SYSTEMS.items()} | {name: name for name in known}
                nearest = difflib.get_close_matches(used.name, called, n=1)
                hint = f"did you mean {called[nearest[0]]}?" if nearest else f"there are {', '.join(known)}"
                raise UserError(f"there is no system {used.name!r}, nor variants.{used.name}: {hint}", about=path)
            what = used.needs if used.needs in has else f"{used.needs}.{used.name}"
            what = "attributes.schema" if what == "attributes" else what
            way = "give labels=labels.txt, a public list of one a line, or name" if what == "labels" else "name"
            raise UserError(
                f"{path} has no {what}, which the system {used.name} needs: {way} others in systems "
                f"({', '.join(known)})"
            )
        if used.models_of is not None and used.scope not in experiment.systems[:place]:
            raise UserError(f"{used.name} samples from the models of {used.scope}: name {used.scope} before it")
    if adaptation is None:
        return
    if adaptation.num_annotated is not None and not 1 <= adaptation.num_annotated <= experiment.num_samples:
        raise UserError(
            f"adaptation.num_annotated is {adaptation.num_annotated}, of {experiment.num_samples} samples: give a "
            "number between, or leave it out to annotate all",
            about=path,
        )
    if not any(used.learns for used in systems_of(experiment)):
        raise UserError(
            f"systems is {experiment.systems}: name one that is sampled too, such as {USUAL[-1]}", about=path
        )


def _refuse_unused_room(experiment: Experiment, path: Path) -> None:
    """Refuse room in the budget of the votes for counts that nothing makes."""
    given = experiment.of("evolution").privacy
    for name in ("histogram_share", "histogram_noise_multiplier"):
        if given.get(name) is not None:
            raise UserError(
                f"privacy.{name} leaves room for counts of labels, and evolution makes none without "
                f"evolution.per_label: set variants.evolution.privacy.{name}=null",
                about=path,
            )


def refuse_to_mix(run: Path, old: Experiment, new: Experiment) -> None:
    """Refuse to go on with a run under other settings.

    Formal guarantees:
        A run's ledger pays for the steps that its settings promise. What may change is named one by one, and a stage or
        a system that the run has not begun may be described later; all else stays as it was. How is sampled and logged
        is post-processing: it may change, the former until the run has samples, which are all of one kind.

    Raises:
        UserError: A setting differs.
    """
    ours, theirs = old.as_dict(), new.as_dict()
    free = _FREE if new.adaptation is None else tuple(name for name in _FREE if name != "parser_digest")
    has_samples = bool(Manifest.read(run).released())
    voted = (
        record.kind == NoisyVotes.kind for record in Ledger(run / FILE_NAME).mechanisms.values() if record.done_steps
    )
    is_chosen = any(voted) or (run / "synthetic_evolution.jsonl").exists()
    free_of_evolution = _FREE_OF_EVOLUTION + (() if is_chosen else _OF_TEXTS)
    begun = {*old.systems, *(stage for system in systems_of(old) for stage in system.stages)}
    for key, was, now in differences(ours, theirs):
        place, *rest = key.split(".")
        is_logging = _LOGGING.search(key) is not None
        is_free = place in free or is_logging or (not has_samples and _SAMPLING.search(key) is not None)
        is_new = place in ("variants", "stages") and rest[0] not in {*ours.get(place, {}), *begun}
        is_new |= place == "evolution" and (place not in old.systems or (bool(rest) and rest[0] in free_of_evolution))
        is_said = key == "data.unit" and {was, now} == {None, "utterance"}  # the default, by name
        if not is_free and not is_new and not is_said:
            more = f"for more samples, free of ε, give python cli.py sample {run} --num N; else "
            raise UserError(
                f"{run} was started with {key}={_shown(was)}, now {key}={_shown(now)} is asked: "
                f"{more if _SAMPLING.search(key) else ''}restore it, or give another RUN_DIR, which spends on top of "
                "what this run has spent"
            )


def _shown(value: Any) -> str:
    return "(none)" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
