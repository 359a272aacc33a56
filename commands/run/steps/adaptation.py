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
from commands.run.steps.context import Run, file_of
from commands.run.steps.samplings import annotate, annotate_private
from commands.run.steps.trainings import files_of, fit_parser
from commands.run_folder.steps import ANNOTATED, PRIVATE_PARTS, File, InputFile, Step
from commands.run_folder.systems import System
from commands.run_folder.yaml_files import Settings

_SPLIT = ("train", "missing", "test", "test_share", "public_share", "by")


def adaptation(run: Run, task: Adaptation, steps_of_system: Callable[[Run, System], list[Step]]) -> list[Step]:
    """Return the steps of an adaptation (Mireshghallah et al., 2023, section 5.4; Tables 3, 5 and 8).

    - ``data/``: public part (lacks the function), private part (utterances alone), test;
    - ``none/parser/``: the parser of the public part; ``data/private_annotated``: the private part with its trees;
    - ``full/parser/``: the high-resource parser, which stands in for people;
    - ``one_stage/``, …: private models of that file, and their samples;
    - ``SYSTEM/annotated.jsonl``: samples with the trees of the high-resource parser;
    - ``SYSTEM/parser/``: the parser of the public part and these samples; ``SYSTEM/parser_metrics.json``: its accuracy.
    """
    experiment, data = run.experiment, run.folder / "data"
    sampled = [system for system in systems_of(experiment) if system.learns]
    low = run.checkpoint("none/parser")
    public = [str(data / "public.jsonl")]
    steps = [_partition(run, task), fit_parser(replace(run, place="none"), "parser", "parser_low", public)]
    run = replace(run, columns=None, train_path=str(run.folder / ANNOTATED))  # what the split writes has usual columns
    steps += _score(run, task, "none", low)
    private = InputFile("adaptation.train", str(data / "private.jsonl"), "private", unit="dialogue")
    steps.append(annotate_private(run, low, private))
    if run.parser is None:
        whole = [str(data / "full.jsonl")]
        steps.append(fit_parser(replace(run, place="full"), "parser", "parser_full", whole))
        run = replace(run, parser=run.checkpoint("full/parser"))
    if "full" in experiment.systems:
        steps += _score(run, task, "full", str(run.parser))
    for system in sampled:
        steps += steps_of_system(run, system)
    for system in sampled:
        steps += _retrain(run, task, system)
    return steps


def _partition(run: Run, task: Adaptation) -> Step:
    """Split the annotated turns."""
    options: Settings = {name: getattr(task, name) for name in _SPLIT}
    seed = 1 if run.experiment.seed is None else run.experiment.seed
    options |= {"seed": seed, "out": run.folder / "data", "columns": run.columns}
    writes = [File(f"data/{part}.jsonl", "private") for part in PRIVATE_PARTS]
    writes += [File(f"data/{part}", "data") for part in ("public.jsonl", "test.jsonl", "partition.json")]
    own = files_of(run.experiment.data)[0]._replace(field="adaptation.train", path=task.train, needs=("parse",))
    test = own._replace(field="adaptation.test", path=task.test, kind="public", unit="utterance", unit_names=None)
    return run.step("partition", "partition", options, writes=writes, reads=[own, test])


def _score(run: Run, task: Adaptation, name: str, parser: str) -> list[Step]:
    """Accuracy of a parser on the test."""
    run = replace(run, place=name)
    test, predicted, out = run.folder / "data/test.jsonl", run.at("parsed_test.jsonl"), run.at("parser_metrics.json")
    options = {"predicted": run.folder / predicted, "function": [task.missing], "gold": test, "out": run.folder / out}
    writes, reads = [File(out, "metrics", name)], [run.folder / predicted, test]
    return [
        annotate(run, "annotate_test", test, parser, predicted),
        run.step("score", "parser-metrics", options, writes=writes, reads=reads),
    ]


def _retrain(run: Run, task: Adaptation, system: System) -> list[Step]:
    """Annotate the samples as experts would, all or those that are worth most, and teach them to a new parser."""
    run, name, steps = replace(run, place=system.name), system.name, []
    samples, annotated = run.folder / run.at("samples.jsonl"), run.at("annotated.jsonl")
    if task.num_annotated is not None and system.has_trees:
        chosen = run.folder / run.at("chosen.jsonl")
        options: Settings = {"file": samples, "num": task.num_annotated, "method": task.annotate_by, "out": chosen}
        options["seed"] = run.experiment.seed
        writes = [file_of(system, run.at("chosen.jsonl"), "release")]
        steps = [run.step("diverse", "choose", options, writes=writes, reads=[samples])]
        samples = chosen
    files = [str(run.folder / "data" / "public.jsonl"), str(run.folder / annotated)]
    return [
        *steps,
        annotate(run, "annotate", samples, str(run.parser), annotated, system),
        fit_parser(run, "parser", "parser_augmented", files),
        *_score(run, task, name, run.checkpoint(run.at("parser"))),
    ]
