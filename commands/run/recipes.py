"""How each system is made: one plain function a system, which lists its steps.

A step waits for those whose files it reads, so a recipe says which files those are, and nothing of order.
"""

from __future__ import annotations

from collections.abc import Callable

from commands.run.step_maker import StepMaker
from commands.runs.steps import Step
from commands.runs.system import System
from commands.runs.yaml_files import Settings


def one_stage(make: StepMaker, system: System) -> list[Step]:
    """p(x): utterances by themselves."""
    shares = make.calibration(system)
    return [make.fit(system, "one_stage", shares), *make.utterances(system, "one_stage", shares)]


def by_label(make: StepMaker, system: System) -> list[Step]:
    """p(x | label): labels in their noised shares, then utterances for them."""
    settings = {"model": {"source": "label"}}
    return [
        make.fit(system, "labels", changes=settings),
        make.histogram(system, "labels"),
        *make.utterances(system, "labels", keeps_best=True, changes=settings),
    ]


def by_attributes(make: StepMaker, system: System) -> list[Step]:
    """p(x | attributes): rows of attributes by AIM, then utterances for them."""
    settings = {"model": {"source": "label"}, "data": {"columns": {"attributes": make.attributes.schema}}}
    return [
        make.fit(system, "attributes", make.attributes, settings),
        make.marginals(system, "attributes"),
        *make.utterances(system, "attributes", keeps_best=True, changes=settings),
    ]


def by_topics(make: StepMaker, system: System) -> list[Step]:
    """p(x), of whose samples each topic gets its noised share."""
    return [make.fit(system, "one_stage", make.topics), *make.utterances(system, "one_stage", make.topics)]


def evolution(make: StepMaker, system: System) -> list[Step]:
    """Texts of a public model, which evolve by the noisy votes of private ones."""
    return [*make.rows(system), make.evolve(system)]


def two_stage(make: StepMaker, system: System, changes: Settings | None = None) -> list[Step]:
    """p(y), then p(x | y): trees, then utterances for them."""
    shares = make.calibration(system)
    trainings = [make.fit(system, stage, shares, changes) for stage in ("parse_tree", "parse2utterance")]
    return [*trainings, *_trees_then_utterances(make, system, changes)]


def shuffled(make: StepMaker, system: System) -> list[Step]:
    """Two-stage on trees that are permuted over the utterances: a diagnostic, whose ε is one for the shuffled rows."""
    return two_stage(make, system, {"data": {"shuffle_trees": 1}})  # a seed


def unconstrained(make: StepMaker, system: System) -> list[Step]:
    """Samples of two-stage's models whose trees may be malformed: post-processing, which spends nothing."""
    return _trees_then_utterances(make, system, {"sampling": {"grammar": None}})


def parser(make: StepMaker, system: System) -> list[Step]:
    """A semantic parser, which learns from public turns without privacy."""
    return [make.fit_parser(system.name, system.stages[0])]


def _trees_then_utterances(make: StepMaker, system: System, changes: Settings | None) -> list[Step]:
    shares = make.calibration(system)
    return [
        *make.trees(system, "parse_tree", shares, changes),
        *make.utterances(system, "parse2utterance", shares, keeps_best=True, changes=changes),
    ]


Recipe = Callable[[StepMaker, System], list[Step]]
_RECIPES: dict[str, Recipe] = {
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


def recipe_of(system: System) -> Recipe:
    """How a system is made that is no parser of an adaptation; a variant is two-stage under settings of its own."""
    return two_stage if system.needs == "variants" else _RECIPES[system.name]


def steps_of_system(make: StepMaker, system: System) -> list[Step]:
    """From private turns to the samples of a system and their metrics; or a training alone."""
    if system.needs == "adaptation":  # which makes it by itself
        return []
    return [*recipe_of(system)(make, system), *make.evaluate(system)]
