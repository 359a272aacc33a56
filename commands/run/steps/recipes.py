"""How each system is made: one plain function a system, which returns its steps.

A step waits for those whose files it reads, so a recipe says which files those are, and nothing of order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from commands.privacy.release_settings import Attributes, Resampling
from commands.run.experiment.settings import Experiment, systems_of
from commands.run.steps.adaptation import adaptation
from commands.run.steps.context import StepContext, Wanted, file_of
from commands.run.steps.counts import evolve, keep_saying, label_prompts, resample, rows, words
from commands.run.steps.samplings import annotate_private, predict, public_trees
from commands.run.steps.scores import evaluate, keep_best, report
from commands.run.steps.trainings import Shares, files_of, fit, fit_parser, merged, teach
from commands.run_folder.steps import ANNOTATED, PUBLIC_TREES, Step, linked
from commands.run_folder.systems import System
from doppel.settings.yaml_files import Settings


def one_stage(context: StepContext, system: System) -> list[Step]:
    """Return the steps of p(x): utterances by themselves."""
    return _one_model(context, system, _resampling(context, system))


def by_label(context: StepContext, system: System) -> list[Step]:
    """Return the steps of p(x | label): labels in their DP shares, then utterances for them."""
    settings = {"model": {"source": "label"}}
    training = fit(context, system, "labels", changes=settings)
    prompts = label_prompts(context, system, training)
    return [training, prompts, *_utterances(context, system, "labels", "labels.jsonl", changes=settings)]


def by_attributes(context: StepContext, system: System) -> list[Step]:
    """Return the steps of p(x | attributes): rows of attributes by AIM, then utterances for them."""
    attributes, settings = _attributes(context)
    training = fit(context, system, "attributes", attributes, settings)
    prompts = label_prompts(context, system, training, attributes)
    return [training, prompts, *_utterances(context, system, "attributes", "labels.jsonl", changes=settings)]


def by_topics(context: StepContext, system: System) -> list[Step]:
    """Return the steps of p(x) whose samples are resampled to DP shares of topics."""
    return _one_model(context, system, context.experiment.topic_settings)


def evolution(context: StepContext, system: System) -> list[Step]:
    """Return the steps of an evolution: texts of a public model, selected by noisy votes of private ones."""
    measured = [rows(context, system, _attributes(context)[0])] if context.experiment.evolving.measures_rows else []
    return [*measured, evolve(context, system)]


def two_stage(context: StepContext, system: System, changes: Settings | None = None) -> list[Step]:
    """Return the steps of p(y), then p(x | y): trees, then utterances for them."""
    shares = _resampling(context, system)
    trainings = [fit(context, system, stage, shares, changes) for stage in ("parse_tree", "parse2utterance")]
    return [*trainings, *_trees_then_utterances(context, system, changes, trainings[0])]


def shuffled(context: StepContext, system: System) -> list[Step]:
    """Return the steps of two-stage on permuted trees: a diagnostic, whose ε is one for the shuffled rows."""
    return two_stage(context, system, {"data": {"shuffle_trees": 1}})  # a seed


def unconstrained(context: StepContext, system: System) -> list[Step]:
    """Return the steps of samples of two-stage's models without the grammar: post-processing, which spends nothing."""
    return _trees_then_utterances(context, system, {"sampling": {"grammar": None}})


def parser(context: StepContext, system: System) -> list[Step]:
    """Return the steps of a semantic parser, which learns from public turns without privacy."""
    return [fit_parser(replace(context, place=""), system.name, system.stages[0])]


_RECIPES: dict[str, Callable[[StepContext, System], list[Step]]] = {
    "one_stage": one_stage,
    "labels": by_label,
    "attributes": by_attributes,
    "topics": by_topics,
    "evolution": evolution,
    "two_stage": two_stage,
    "shuffled": shuffled,
    "unconstrained": unconstrained,
    "parser": parser,
    "parser_low": parser,
}


def steps_of(experiment: Experiment, folder: Path, more_overlays: Iterable[str] = ()) -> list[Step]:
    """Return all steps of an experiment in a run folder, in an order in which they can be run.

    The kind of node may add configuration files to every training of a language model.
    """
    context = StepContext.make(experiment, folder, more_overlays)
    if experiment.adaptation is not None:
        steps = adaptation(context, experiment.adaptation, _steps_of_system)
    else:
        steps = []
        if experiment.write_parses:
            counts_labels = any(one.learns == "label" and not one.has_attributes for one in systems_of(experiment))
            private = files_of(experiment.data, ("label",) if counts_labels else ())[0]
            steps.append(annotate_private(context, str(experiment.public_parser), private))
            context = replace(context, train_path=str(folder / ANNOTATED))
        for system in systems_of(experiment):
            steps += _steps_of_system(context, system)
    if any(PUBLIC_TREES in step.reads for step in steps):
        steps.insert(0, public_trees(context))
    lessons = dict.fromkeys(experiment.lessons.values())
    steps = [*(teach(context, lesson) for lesson in lessons), *steps]
    return linked([*steps, *report(context, steps)])


def draw(experiment: Experiment, folder: Path, system: System, number: int, wanted: Wanted) -> list[Step]:
    """Return the steps of a system's own recipe without its trainings, as a later draw of samples.

    Formal guarantees:
        No step trains, none reads a private file, and none releases shares: they read checkpoints and shares that the
        ledger has paid for. All they leave is post-processing of these.
    """
    assert number > 1, "the run's own samples are the first draw"
    seed = seed_of(experiment, system, number) if wanted.seed is None else wanted.seed
    num_samples = wanted.num * (wanted.oversample if wanted.words else 1)
    changed = replace(experiment, num_samples=num_samples, seed=seed)
    if wanted.topic is not None:
        changed = replace(changed, topics=replace(experiment.topic_settings, oversample=wanted.oversample))
    context = replace(StepContext.make(changed, folder), draw=number, wanted=wanted)
    own = context.of(system)
    kept = [step for step in _recipe(system)(own, system) if step.kind != "fit"]
    kept += [keep_saying(own, system)] if wanted.words else []
    assert not any(step.protected for step in kept), "a later draw reads nothing private"
    return linked(kept)


def seed_of(experiment: Experiment, system: System, number: int) -> int:
    """Derive the seed of a draw of a system from the run's public one, so that draws do not repeat texts."""
    name = f"{experiment.seed} {system.name} {number}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 1


def _recipe(system: System) -> Callable[[StepContext, System], list[Step]]:
    """How a system is made that is no parser of an adaptation; a variant is two-stage under settings of its own."""
    return two_stage if system.needs == "variants" else _RECIPES[system.name]


def _steps_of_system(context: StepContext, system: System) -> list[Step]:
    """From private turns to the samples of a system and their metrics; or a training alone."""
    if system.needs == "adaptation":  # which makes it by itself
        return []
    own = context.of(system)
    steps = _recipe(system)(own, system)
    trainings = [step for step in steps if step.kind == "fit"]
    learns = [file for step in trainings[-1:] or steps for file in step.inputs if file.kind == "train"]
    if not learns and system.stages:  # from the models of another
        learns = files_of(merged(own, system.stages[-1], {})["data"]["init_args"])
    counted = words(own, system, trainings[0] if trainings else None)
    return [*steps, *counted, *evaluate(own, system, learns[0] if learns else None)]


def _one_model(context: StepContext, system: System, shares: Shares | None) -> list[Step]:
    """Utterances by themselves, of one model, drawn by shares, if any."""
    training = fit(context, system, "one_stage", shares)
    return [training, *_utterances(context, system, "one_stage", None, shares, training=training)]


def _attributes(context: StepContext) -> tuple[Attributes, Settings]:
    """Which attributes there are, and the sections of a model that writes for them."""
    attributes = context.experiment.attributes
    assert attributes is not None, "an experiment without is refused"
    return attributes, {"model": {"source": "label"}, "data": {"columns": {"attributes": attributes.schema}}}


def _resampling(context: StepContext, system: System) -> Resampling | None:
    """How samples of a system are drawn from an over-sample; None: as they are sampled, or as trees are given."""
    wanted = context.experiment.resampling
    if wanted is None or (wanted.draws_trees and not system.has_trees) or context.wanted.trees is not None:
        return None
    return wanted


def _trees_then_utterances(
    context: StepContext, system: System, changes: Settings | None, training: Step | None = None
) -> list[Step]:
    """Trees of a model, the prompts of another; drawn by their shares where an experiment asks for it."""
    shares, steps = _resampling(context, system), list[Step]()
    is_drawn = shares is not None and shares.draws_trees
    trees = file_of(system, context.at("trees.jsonl"), "prompts")
    if context.wanted.trees is None:  # those that somebody has given need no model
        written = file_of(system, context.at("pool.jsonl"), "pool") if is_drawn else trees
        steps.append(predict(context, system, "parse_tree", written, None, shares, changes))
    if shares is not None and is_drawn:
        steps.append(resample(context, system, "parse_tree", shares, training))
    return [*steps, *_utterances(context, system, "parse2utterance", "trees.jsonl", shares, changes, training)]


def _utterances(
    context: StepContext,
    system: System,
    stage: str,
    prompts: str | None,
    shares: Shares | None = None,
    changes: Settings | None = None,
    training: Step | None = None,
) -> list[Step]:
    """The samples of a system, written for a file of it or for nothing (None) and drawn by shares, if any.

    Of several for each prompt one is kept, where an experiment asks for it. What counts shares reads what a training
    does.
    """
    given = None if prompts is None else str(context.wanted.trees or context.folder / context.at(prompts))
    number = context.experiment.candidates_of(system)
    is_drawn = shares is not None and not shares.draws_trees
    if number > 1 and not is_drawn and given is not None:
        candidates = file_of(system, context.at("candidates.jsonl"), "candidates")
        sampled = predict(context, system, stage, candidates, given, shares, changes, number)
        return [sampled, keep_best(context, system, given)]
    if shares is not None and is_drawn:
        pool = file_of(system, context.at("pool.jsonl"), "pool")
        drawn = resample(context, system, stage, shares, training)
        return [predict(context, system, stage, pool, given, shares, changes), drawn]
    samples = file_of(system, context.at("samples.jsonl"), context.role)
    return [predict(context, system, stage, samples, given, shares, changes)]
