"""What contradicts itself in an experiment; refused before anything runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from commands.run.experiment.settings import DERIVED, Experiment, systems_of
from commands.run_folder.sections import SECTIONS
from commands.run_folder.systems import LESSONS, MODEL_FILES, SYSTEMS, USUAL
from doppel.errors import UserError
from doppel.privacy.spec import USUAL_RATE

#: Folders of a run that are no system's.
_FOLDERS = ("annotate_private", "code", "configs", "data", "report", "slurm", *LESSONS.values())


def check(experiment: Experiment, path: Path) -> None:
    """Refuse what contradicts itself.

    Raises:
        UserError: Something does; ``path`` says where.
    """
    for find in (_sections, _names, _numbers, _contradictions, _systems):
        for refusal in find(experiment):
            raise UserError(refusal, about=path)


def _sections(experiment: Experiment) -> Iterator[str]:
    """Sections of stages and systems that are none, and keys that follow from other fields."""
    parts = [*experiment.stages.items(), *experiment.variants.items()]
    for name, sections in parts:
        if not isinstance(sections, dict):
            yield f"{name} is {'empty' if sections is None else repr(sections)}: give it sections, or leave it out"
        for section, values in sections.items():
            if section not in SECTIONS:
                yield f"{name} has no section {section!r}: give {', '.join(SECTIONS)}"
            if not isinstance(values, dict):
                hint = "; `epsilon: inf` trains without privacy" if section == "privacy" else ""
                yield f"{section} of {name} is {values!r}: give keys with values{hint}"
    for _, sections in [("", {"privacy": experiment.privacy}), *parts]:
        for key in DERIVED.keys() & sections.get("privacy", {}).keys():
            yield f"privacy.{key} follows from the field {DERIVED[key]}: set that instead"
    if "max_epochs" in experiment.trainer:
        yield "trainer.max_epochs follows from the field epochs: set epochs.STAGE instead"


def _names(experiment: Experiment) -> Iterator[str]:
    """Names of systems and stages that are none."""
    for name in {name for name in experiment.systems if experiment.systems.count(name) > 1}:
        yield f"systems has {name} twice: name it once"
    for name in [*experiment.systems, *experiment.variants]:
        if re.fullmatch(r"[A-Za-z0-9_][\w.-]*", name) is None:  # folders and files are called after it
            yield f"a system is called {name!r}: take letters, digits, _, . and - alone"
        if name in _FOLDERS:
            yield f"a system is called {name!r}, which is another folder of the run: give another name"
    known = [*MODEL_FILES, "parser_full", "parser_augmented"]
    for field in ("stages", "epochs"):
        for name in getattr(experiment, field):
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
                yield f"{field} has no stage {name!r}: {hint}"


def _numbers(experiment: Experiment) -> Iterator[str]:
    """Numbers out of their range."""
    for name, number in experiment.epochs.items():
        least = 0 if name in LESSONS.values() else 1
        if isinstance(number, bool) or not isinstance(number, int | float) or number < least or number % 1:
            yield f"epochs.{name} is {number!r}: give a whole number of at least {least}"
    if not 1 <= experiment.effort <= 1 / USUAL_RATE:
        yield f"effort is {experiment.effort}: give 1 to {1 / USUAL_RATE}, where a step draws all units by default"
    if experiment.seed is not None and not 0 <= experiment.seed < 1 << 32:
        yield f"seed is {experiment.seed}: give a number from 0 to {(1 << 32) - 1}"
    if experiment.candidates is not None and experiment.candidates < 1:
        yield f"candidates is {experiment.candidates}: give at least 1"
    adaptation = experiment.adaptation
    num_annotated = None if adaptation is None else adaptation.num_annotated
    if num_annotated is not None and not 1 <= num_annotated <= experiment.num_samples:
        yield (
            f"adaptation.num_annotated is {num_annotated}, of {experiment.num_samples} samples: give a number between, "
            "or leave it out to annotate all"
        )


def _contradictions(experiment: Experiment) -> Iterator[str]:
    """Fields that exclude one another, or of which one needs the other: the refusal, and whether it is so."""
    is_adaptation = experiment.adaptation is not None
    numbers = [experiment.candidates_of(system) for system in systems_of(experiment) if system.name != "topics"]
    evolves, evolution = "evolution" in experiment.systems, experiment.evolving
    draws_texts = experiment.resampling is not None and not experiment.resampling.draws_trees
    budget = experiment.of("evolution").privacy
    room = next((key for key in ("histogram_share", "histogram_noise_multiplier") if budget.get(key) is not None), None)
    variants = experiment.variants.items()
    own_file = next((name for name, sections in variants if "train_path" in sections.get("data", {})), None)
    table = {
        "label_words choose among candidates, and candidates is 1: give 8, or leave them out": (
            bool(experiment.label_words) and max(numbers, default=1) == 1
        ),
        "evolution.per_label needs the list of all labels: give labels, or leave it out": (
            evolves and evolution.per_label and experiment.labels is None
        ),
        "evolution.rows is attributes, and nothing says which there are: give attributes.schema": (
            evolves and evolution.measures_rows and experiment.attributes is None
        ),
        f"privacy.{room} leaves room for counts of labels, and evolution makes none without evolution.per_label: set "
        f"variants.evolution.privacy.{room}=null": evolves and not evolution.per_label and room is not None,
        "an adaptation trains its systems, and evolution trains nothing: leave it out": evolves and is_adaptation,
        "a resampling of utterances draws from all of them: leave out candidates": (
            draws_texts and (experiment.candidates or 1) > 1
        ),
        "write_parses is for data.train_path, and an adaptation has its own parser: leave one of them out": (
            experiment.write_parses and is_adaptation
        ),
        f"write_parses is for data.train_path, and variants.{own_file} has a train_path of its own: leave one of them "
        "out": experiment.write_parses and own_file is not None,
        f"systems is {experiment.systems}: name one that is sampled too, such as {USUAL[-1]}": (
            is_adaptation and not any(system.learns for system in systems_of(experiment))
        ),
    }
    yield from (refusal for refusal, is_so in table.items() if is_so)


def _systems(experiment: Experiment) -> Iterator[str]:
    """Systems that nothing describes."""
    known = [*(name for name, system in SYSTEMS.items() if system.learns), *experiment.variants]
    others = f"name others in systems ({', '.join(known)})"
    for place, system in enumerate(systems_of(experiment)):
        ways = {
            "": (True, ""),
            "labels": (experiment.labels is not None, "labels"),
            "attributes": (experiment.attributes is not None, "attributes.schema"),
            "adaptation": (experiment.adaptation is not None, "adaptation"),
            "stages": (system.name in experiment.stages, f"stages.{system.name}"),
            "variants": (system.name in experiment.variants, f"variants.{system.name}"),
        }
        is_there, what = ways[system.needs]
        if not is_there and system.needs == "variants":
            called = {system.label: name for name, system in SYSTEMS.items()} | {name: name for name in known}
            nearest = difflib.get_close_matches(system.name, called, n=1)
            hint = f"did you mean {called[nearest[0]]}?" if nearest else f"there are {', '.join(known)}"
            yield f"there is no system {system.name!r}, nor {what}: {hint}"
        elif not is_there:
            way = "give labels=labels.txt, a public list of one a line, or " if what == "labels" else ""
            yield f"there is no {what}, which the system {system.name} needs: {way}{others}"
        if system.models_of is not None and system.scope not in experiment.systems[:place]:
            yield f"{system.name} samples from the models of {system.scope}: name {system.scope} before it"
