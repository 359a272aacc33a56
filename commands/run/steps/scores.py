"""Steps that judge samples: what is kept of several, how near they come to human turns, and the report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from commands.run.steps.context import StepContext, file_of
from commands.run_folder.steps import File, InputFile, Step
from commands.run_folder.systems import System
from doppel.settings.yaml_files import Settings

#: Files of what the report tells.
_RESULTS = ("evaluation.json", "parser_metrics.json", "words.json")


def keep_best(context: StepContext, system: System, prompts: str) -> Step:
    """Keep one of the candidates of each tree, or of each label."""
    experiment, candidates, out = context.experiment, context.at("candidates.jsonl"), context.at("samples.jsonl")
    parser = experiment.public_parser if system.has_trees else None
    schema = experiment.attributes.schema if experiment.attributes and system.has_attributes else None
    is_one = context.wanted.only is not None and not system.has_trees
    first = f"{system.name}/samples.jsonl" if is_one else None  # for all labels, which one is told from
    options: Settings = {
        "candidates": context.folder / candidates,
        "prompts": prompts,
        "out": context.folder / out,
        "beside": first and context.folder / first,
        "parser": parser,
        "label_words": None if system.has_trees else experiment.label_words or None,
        "seed": experiment.seed,
        "columns": None if schema is None else {"attributes": schema},
    }
    return context.step(
        "choose",
        "keep-best",
        options,
        writes=[file_of(system, out, context.role), file_of(system, f"{out}.kept.json", "metrics")],
        reads=[candidates, prompts, first, parser, InputFile("attributes.schema", schema)],
    )


def evaluate(context: StepContext, system: System, learns: InputFile | None) -> list[Step]:
    """Compare a system's samples with the reference, if there are both, and with what it learns from, if asked for."""
    experiment = context.experiment
    if not system.learns or (experiment.compared is None and experiment.adaptation is None):
        return []
    reference = experiment.compared or context.folder / "data" / "test.jsonl"
    private = learns if experiment.compare_with_private else None
    lesson = next(iter(experiment.lessons.values()), None)  # all are of the same half
    samples, out, parsed = (
        context.at(name) for name in ("samples.jsonl", "evaluation.json", "evaluation.parsed.jsonl")
    )
    schema = None if experiment.attributes is None else experiment.attributes.schema
    options: Settings = {
        "synthetic": context.folder / samples,
        "reference": str(reference),
        "out": context.folder / out,
        "featurizer": experiment.featurizer,
        "private": private and private.path,
        "seed": experiment.seed,
        "parser": context.parser,
        "parsed": context.folder / parsed if context.parser else None,
        "keep_function": experiment.data.get("keep_function"),
        "taught": None if lesson is None else context.folder / lesson,
        "next_token_epochs": experiment.next_token_epochs or None,
        "columns": context.columns if schema is None else {**(context.columns or {}), "attributes": schema},
    }
    writes = [file_of(system, out, "metrics")] + ([file_of(system, parsed, "data")] if context.parser else [])
    named = context.public("compared_with", experiment.compared_with)
    public = context.reference if experiment.reference else named if experiment.compared_with else reference
    taught = None if lesson is None else f"{lesson}/checkpoints/last.ckpt"
    reads = [samples, public, context.parser, private, InputFile("attributes.schema", schema), taught]
    learnt = context.learnt_by(context.parser)
    return [context.step("evaluate", "evaluate", options, writes=writes, reads=reads, learnt=learnt)]


def report(context: StepContext, steps: Iterable[Step]) -> list[Step]:
    """Return the step of report, page and card, which runs every time, of a run that has something to tell."""
    files = [file for step in steps for file in step.writes]
    results = [f.path for f in files if f.role == "metrics" and Path(f.path).name in _RESULTS]
    samples = [f.path for f in files if f.role == "release"]
    if not results and not samples:
        return []
    names = ["report.html", "report.json"]
    names += ["privacy_card.json", "privacy_card.txt"] if context.experiment.is_private else []
    writes = tuple(File(name, "report") for name in names)
    config = {"runs": [str(context.folder)]}
    return [Step("report", "report", config, is_once=False, writes=writes, reads=tuple(results or samples))]
