"""The steps of an end-to-end adaptation: a parser learns, from private utterances that nobody reads, a function.

Formal guarantees:
    One unit is one line of the private part. Its tree is a function of its utterance and of a parser, nothing else, and
    that parser has seen the public part alone. So a neighbour of the private part changes one line of the annotated
    file, and what trains on that is as private as what would train on private trees. The high-resource parser stands in
    for people who label the (released) samples. In this experiment it has seen the trees of the private part, for want
    of people: what it adds is knowledge of the annotators, and no ε covers it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from commands.run.experiment.settings import Adaptation, systems_of
from commands.run.steps.context import StepContext, file_of
from commands.run.steps.samplings import annotate, annotate_private
from commands.run.steps.trainings import files_of, fit_parser
from commands.run_folder.steps import ANNOTATED, PRIVATE_PARTS, File, InputFile, Step
from commands.run_folder.systems import System
from doppel.settings.yaml_files import Settings

_SPLIT = ("train", "missing", "test", "test_share", "public_share", "by")


def adaptation(
    context: StepContext, task: Adaptation, steps_of_system: Callable[[StepContext, System], list[Step]]
) -> list[Step]:
    """Return the steps of an adaptation (Mireshghallah et al., 2023, section 5.4; Tables 3, 5 and 8).

    - ``data/``: public part (lacks the function), private part (utterances alone), test;
    - ``none/parser/``: the parser of the public part; ``data/private_annotated``: the private part with its trees;
    - ``full/parser/``: the high-resource parser, which stands in for people;
    - ``one_stage/``, …: private models of that file, and their samples;
    - ``SYSTEM/annotated.jsonl``: samples with the trees of the high-resource parser;
    - ``SYSTEM/parser/``: the parser of the public part and these samples; ``SYSTEM/parser_metrics.json``: its accuracy.
    """
    experiment, data = context.experiment, context.folder / "data"
    sampled = [system for system in systems_of(experiment) if system.learns]
    low = context.checkpoint("none/parser")
    public = [str(data / "public.jsonl")]
    steps = [_partition(context, task), fit_parser(replace(context, place="none"), "parser", "parser_low", public)]
    # what the split writes has usual columns
    context = replace(context, columns=None, train_path=str(context.folder / ANNOTATED))
    steps += _score(context, task, "none", low)
    private = InputFile("adaptation.train", str(data / "private.jsonl"), "private", unit="dialogue")
    steps.append(annotate_private(context, low, private))
    if context.parser is None:
        whole = [str(data / "full.jsonl")]
        steps.append(fit_parser(replace(context, place="full"), "parser", "parser_full", whole))
        context = replace(context, parser=context.checkpoint("full/parser"))
    if "full" in experiment.systems:
        steps += _score(context, task, "full", str(context.parser))
    for system in sampled:
        steps += steps_of_system(context, system)
    for system in sampled:
        steps += _retrain(context, task, system)
    return steps


def _partition(context: StepContext, task: Adaptation) -> Step:
    """Split the annotated turns."""
    options: Settings = {name: getattr(task, name) for name in _SPLIT}
    seed = 1 if context.experiment.seed is None else context.experiment.seed
    options |= {"seed": seed, "out": context.folder / "data", "columns": context.columns}
    writes = [File(f"data/{part}.jsonl", "private") for part in PRIVATE_PARTS]
    writes += [File(f"data/{part}", "data") for part in ("public.jsonl", "test.jsonl", "partition.json")]
    own = files_of(context.experiment.data)[0]._replace(field="adaptation.train", path=task.train, needs=("parse",))
    test = own._replace(field="adaptation.test", path=task.test, kind="public", unit="utterance", unit_names=None)
    return context.step("partition", "partition", options, writes=writes, reads=[own, test])


def _score(context: StepContext, task: Adaptation, name: str, parser: str) -> list[Step]:
    """Accuracy of a parser on the test."""
    context = replace(context, place=name)
    test, predicted = context.folder / "data/test.jsonl", context.at("parsed_test.jsonl")
    out = context.at("parser_metrics.json")
    options = {"predicted": context.folder / predicted, "function": [task.missing], "gold": test}
    options |= {"out": context.folder / out}
    writes, reads = [File(out, "metrics", name)], [context.folder / predicted, test]
    return [
        annotate(context, "annotate_test", test, parser, predicted),
        context.step("score", "parser-metrics", options, writes=writes, reads=reads),
    ]


def _retrain(context: StepContext, task: Adaptation, system: System) -> list[Step]:
    """Annotate the samples as experts would, all or those that are worth most, and teach them to a new parser."""
    context, name, steps = replace(context, place=system.name), system.name, []
    samples, annotated = context.folder / context.at("samples.jsonl"), context.at("annotated.jsonl")
    if task.num_annotated is not None and system.has_trees:
        chosen = context.folder / context.at("chosen.jsonl")
        options: Settings = {"file": samples, "num": task.num_annotated, "method": task.annotate_by, "out": chosen}
        options["seed"] = context.experiment.seed
        writes = [file_of(system, context.at("chosen.jsonl"), "release")]
        steps = [context.step("diverse", "choose", options, writes=writes, reads=[samples])]
        samples = chosen
    files = [str(context.folder / "data" / "public.jsonl"), str(context.folder / annotated)]
    return [
        *steps,
        annotate(context, "annotate", samples, str(context.parser), annotated, system),
        fit_parser(context, "parser", "parser_augmented", files),
        *_score(context, task, name, context.checkpoint(context.at("parser"))),
    ]
