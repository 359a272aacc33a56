"""Steps that sample from a trained model, or annotate with one, each with its configuration."""

from __future__ import annotations

from dataclasses import replace

from commands.data.reference import longest_utterance
from commands.run.steps.context import StepContext, file_of, read
from commands.run.steps.trainings import Shares, grammar_of, merged
from commands.run_folder.steps import ANNOTATED, PUBLIC_TREES, File, InputFile, Step
from commands.run_folder.systems import BASE_MODEL, MODEL_FILES, System
from datamodules.reading.columns import Columns, ReferenceColumns, unit_of
from doppel.settings.yaml_files import Settings, merge

_WRITER = "callbacks.synthetic_writer.SyntheticWriter"
#: Arguments of a model that only its training needs.
_OF_TRAINING = ("optimizer", "lr_scheduler", "init_weights")
#: Arguments of the Trainer that a sampling shares with the training.
_OF_EVERY_PASS = ("accelerator", "devices", "logger", "precision")


def predict(
    context: StepContext,
    system: System,
    stage: str,
    writes: File,
    prompts: str | None = None,
    shares: Shares | None = None,
    changes: Settings | None = None,
    candidates: int = 1,
) -> Step:
    """Sample from a trained model, for each line of a file of prompts if there is one.

    Args:
        shares: What is drawn of an over-sample; it says how large that is.
        changes: Sections of an experiment that the system sets.
        candidates: Texts for each that is kept.
    """
    data: Settings = {"num_samples": context.experiment.num_samples * candidates}
    if shares is not None and (writes.role == "pool" or not shares.draws_trees):  # and what leads to these
        data["num_samples"] *= shares.oversample
    if prompts is not None:
        data["prompts_path"] = prompts
        data |= {"is_public": True} if context.wanted.is_public else {}
    config = _sampling(context, stage, changes or {}, data)
    checkpoint = context.checkpoint(f"{system.scope}/{stage}")
    overlay = _writing(context, "sample", writes.path, stage)
    return context.step(
        f"sample_{stage}",
        "predict",
        merge(overlay, config, {"ckpt_path": checkpoint}),
        writes=[writes, file_of(system, f"{writes.path}.metrics.json", "metrics")],
        reads=[checkpoint, prompts, *grammar_of(config)],
    )


def annotate_private(context: StepContext, parser: str, private: InputFile) -> Step:
    """Return the step that parses the private utterances, each by itself; later models train on the trees.

    Formal guarantees:
        A tree is a function of its utterance and of a public parser: utterances go through it one by one (``max_rows``
        1), so that no rounding in a batch lets one unit change another's tree. A neighbour of the private file is then
        a neighbour of the annotated one, with the same units, and what trains on that is as private as what would train
        on private trees.
    """
    data: Settings = {"path": private.path, "unit": unit_of(private.unit, private.columns or Columns())}
    data |= {} if context.columns is None else {"columns": context.columns}
    return _annotation(context, "annotate_private", parser, data, File(ANNOTATED, "private"), private)


def annotate(
    context: StepContext, name: str, path: object, parser: str, writes: str, system: System | None = None
) -> Step:
    """Return the step by which a parser writes trees for the utterances of a public file, or for a system's samples."""
    data = {"path": str(path), "unit": "utterance"}
    made = File(writes, "data") if system is None else file_of(system, writes, "data")
    return _annotation(context, name, parser, data, made)


def public_trees(context: StepContext) -> Step:
    """Return the step that writes the trees of the reference, whose names are those that models may write."""
    options = {
        "reference": context.experiment.reference,
        "out": context.folder / PUBLIC_TREES,
        "columns": context.columns,
    }
    return context.step(
        "public_trees", "public-trees", options, writes=[File(PUBLIC_TREES, "data")], reads=[context.reference]
    )


def _annotation(
    context: StepContext, name: str, parser: str, data: Settings, writes: File, private: InputFile | None = None
) -> Step:
    """A pass of a parser over the utterances of a file; over those of a private one, one by one."""
    model = read(context.experiment, MODEL_FILES["parser"])["model"]
    if private is not None:
        model["init_args"]["max_rows"] = 1
    config = {"model": model, "data": {"init_args": data}, "ckpt_path": parser}
    return context.step(
        name,
        "predict",
        merge(_writing(context, "annotate", writes.path, name), config),
        writes=[writes, replace(writes, path=f"{writes.path}.metrics.json")],
        reads=[private or data["path"], parser],
        learnt=context.learnt_by(parser),
    )


def _sampling(context: StepContext, stage: str, changes: Settings, data: Settings) -> Settings:
    """Of a pass that samples from a language model, without its checkpoint."""
    adapters = [{"model": o["model"]} for o in context.overlays if "lora" in o.get("model", {}).get("init_args", {})]
    config = merged(context, stage, changes, *adapters)
    model, trainer = config["model"], config.get("trainer", {})
    arguments = {name: value for name, value in model["init_args"].items() if name not in _OF_TRAINING}
    way = arguments.setdefault("sampling", {})
    if stage != "parse_tree":
        way.pop("grammar", None)  # of trees alone
        if way.get("max_new_tokens") is None:
            columns, base = (
                ReferenceColumns.from_config(context.experiment.data),
                arguments.get("base_model", BASE_MODEL),
            )
            way["max_new_tokens"] = longest_utterance(context.experiment.reference, columns, base)
    top: Settings = {"trainer": {name: trainer[name] for name in _OF_EVERY_PASS if name in trainer}}
    if context.experiment.seed is not None:
        way["seed"] = top["seed_everything"] = context.experiment.seed
    return {**top, "model": {**model, "init_args": arguments}, "data": {"init_args": data}}


def _writing(context: StepContext, overlay: str, path: str, source: str) -> Settings:
    """An overlay of ``predict`` whose lines go to a file of the run, each with its source."""
    config = read(context.experiment, f"configs/overlays/{overlay}.yaml")
    for callback in config["trainer"]["callbacks"]:
        if callback["class_path"] == _WRITER:
            callback["init_args"] |= {"output_path": str(context.folder / path), "stage": source}
    return config
