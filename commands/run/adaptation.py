"""The steps of an end-to-end adaptation: a parser learns, from private utterances that nobody reads, a function.

Formal guarantees:
    One unit is one line of the private part. Its tree is a function of its utterance and of a parser, nothing else, and
    that parser has seen the public part alone. So a neighbour of the private part changes one line of the annotated
    file, and what trains on that is as private as what would train on private trees. The high-resource parser stands in
    for people who label the (released) samples. In this experiment it has seen the trees of the private part, for want
    of people: what it adds is knowledge of the annotators, and no ε covers it.
"""

from __future__ import annotations

from commands.run.recipes import steps_of_system
from commands.run.settings import Adaptation, systems_of
from commands.run.step_maker import StepMaker
from commands.runs.steps import PRIVATE_PARTS, File, Step
from commands.runs.system import System
from commands.runs.yaml_files import Settings

_SPLIT = ("train", "missing", "test", "test_share", "public_share", "by")


def adaptation(make: StepMaker, task: Adaptation) -> list[Step]:
    """Mireshghallah et al., 2023, section 5.4 (Tables 3, 5 and 8).

    ==============================  ===============================================================================
    ``data/``                       public part (lacks the function), private part (utterances alone), test
    ``parser_none/``                the parser that the public part alone teaches
    ``data/private_annotated``      the private part with the trees that it gives
    ``one_stage/``, …               private models of that file, and their samples
    ``annotated_SYSTEM.jsonl``      samples with the trees of the high-resource parser, which stands in for people
    ``parser_SYSTEM/``              the parser that the public part and these samples teach
    ``parser_metrics/SYSTEM.json``  its accuracy on the test, with and without the function
    ==============================  ===============================================================================
    """
    experiment, data = make.experiment, make.run / "data"
    sampled = [system for system in systems_of(experiment) if system.learns]
    steps = [_partition(make, task), make.fit_parser("parser_none", "parser_low", [str(data / "public.jsonl")])]
    make.columns = None  # what the split writes has the usual ones
    steps += _score(make, task, "none", make.checkpoint("parser_none"))
    steps.append(make.annotate_private(make.checkpoint("parser_none"), str(data / "private.jsonl"), "dialogue"))
    if make.parser is None:
        steps.append(make.fit_parser("parser_full", "parser_full", [str(data / "full.jsonl")]))
        make.parser = make.checkpoint("parser_full")
    if "full" in experiment.systems:
        steps += _score(make, task, "full", make.parser)
    for system in sampled:
        steps += steps_of_system(make, system)
    for system in sampled:
        steps += _retrain(make, task, system)
    return steps


def _partition(make: StepMaker, task: Adaptation) -> Step:
    """Split the annotated turns."""
    options: Settings = {name: getattr(task, name) for name in _SPLIT}
    seed = 1 if make.experiment.seed is None else make.experiment.seed
    options |= {"seed": seed, "out": make.run / "data", "columns": make.columns}
    writes = [File(f"data/{part}.jsonl", "private") for part in PRIVATE_PARTS]
    writes += [File(f"data/{part}", "data") for part in ("public.jsonl", "test.jsonl", "partition.json")]
    reads = [task.train, task.test]
    return make.tool("partition", "tool", ["partition"], options, writes=writes, reads=reads, protected=reads[:1])


def _score(make: StepMaker, task: Adaptation, name: str, parser: str) -> list[Step]:
    """Accuracy of a parser on the test."""
    test, predicted, out = make.run / "data" / "test.jsonl", f"parsed_test/{name}.jsonl", f"parser_metrics/{name}.json"
    options = {"predicted": make.run / predicted, "function": task.missing, "gold": test, "out": make.run / out}
    writes, reads = [File(out, "metrics", name)], [make.run / predicted, test]
    return [
        make.annotate(f"test_{name}", test, parser, predicted),
        make.tool(f"score_{name}", "tool", ["parser-metrics"], options, writes=writes, reads=reads),
    ]


def _retrain(make: StepMaker, task: Adaptation, system: System) -> list[Step]:
    """Annotate the samples as experts would, all or those that are worth most, and teach them to a new parser."""
    name, samples, steps = system.name, make.run / system.synthetic, []
    if task.num_annotated is not None and system.has_trees:
        chosen = make.run / f"chosen_{name}.jsonl"
        options: Settings = {"num": task.num_annotated, "method": task.annotate_by, "out": chosen}
        options["seed"] = make.experiment.seed
        writes = [File(chosen.name, "release", name, system.scope)]
        steps = [make.tool(f"diverse_{name}", "tool", ["choose", samples], options, writes=writes, reads=[samples])]
        samples = chosen
    annotated = f"annotated_{name}.jsonl"
    files = [str(make.run / "data" / "public.jsonl"), str(make.run / annotated)]
    return [
        *steps,
        make.annotate(name, samples, str(make.parser), annotated, system),
        make.fit_parser(f"parser_{name}", "parser_augmented", files),
        *_score(make, task, name, make.checkpoint(f"parser_{name}")),
    ]
