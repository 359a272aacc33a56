"""What LightningCLI reads: the configuration of each training and sampling, merged once from an experiment's layers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from commands.run.context import Run
from commands.run.lengths import longest_utterance
from commands.run.settings import DERIVED, Experiment
from commands.runs.sections import SECTIONS
from commands.runs.steps import PUBLIC_TREES
from commands.runs.system import BASE_MODEL, MODEL_FILES, System
from commands.runs.yaml_files import ROOT, Settings, absolute, fill_in, listed, merge, read_yaml
from doppel.errors import UserError

_DATA = "datamodules.dialogue_data_module.DialogueDataModule"
_WRITER = "callbacks.synthetic_writer.SyntheticWriter"
#: Arguments of a model that only its training needs.
_OF_TRAINING = ("optimizer", "lr_scheduler", "init_weights")
#: What stands in ``grammar`` for the trees of the reference.
REFERENCE = "reference"
#: Arguments of the Trainer that a sampling shares with the training.
_OF_EVERY_PASS = ("accelerator", "devices", "logger", "precision")


def training(run: Run, system: System, stage: str, changes: Settings, derived: Settings) -> Settings:
    """Of a language model, in layers of which later ones win.

    The file of the model, the experiment's sections as the system has them, those of its stage, what the system
    changes, what follows from other fields, overlays.

    Args:
        run: What is run.
        system: Whose model it is.
        stage: Which of its models.
        changes: Sections that the system sets.
        derived: Sections that follow from other fields of the experiment; with the budget, where there is one.
    """
    config = _merged(run, stage, changes, in_yaml(derived), *run.overlays)
    config.setdefault("data", {})["class_path"] = _DATA
    config |= {} if run.experiment.is_private else {"privacy": None, "not_private": True}
    return _trained(run, config)


def parser(run: Run, layer: str, files: list[str] | None = None) -> Settings:
    """Of a semantic parser, which has no privacy.

    Args:
        run: What is run.
        layer: Stage of the experiment whose sections win over those of ``parser``.
        files: Training files in place of the experiment's.
    """
    layers = [in_yaml(run.experiment.stages.get(name, {})) for name in ("parser", layer)]
    config = merge(read(run.experiment, MODEL_FILES["parser"]), *layers, {"not_private": True})
    if files is not None:
        config["data"]["init_args"] |= {"train_paths": files, "val_path": None, "test_path": None}
    return _trained(run, config)


def sampling(run: Run, stage: str, changes: Settings, data: Settings) -> Settings:
    """Of a pass that samples from a language model, without its checkpoint.

    Args:
        run: What is run.
        stage: Which model.
        changes: Sections that the system sets.
        data: Arguments of the data module: how many texts, and which prompts.
    """
    adapters = [{"model": o["model"]} for o in run.overlays if "lora" in o.get("model", {}).get("init_args", {})]
    config = _merged(run, stage, changes, *adapters)
    model, trainer = config["model"], config.get("trainer", {})
    arguments = {name: value for name, value in model["init_args"].items() if name not in _OF_TRAINING}
    way = arguments.setdefault("sampling", {})
    if stage != "parse_tree":
        way.pop("grammar", None)  # of trees alone
        if way.get("max_new_tokens") is None:
            way["max_new_tokens"] = longest_utterance(run.experiment, arguments.get("base_model", BASE_MODEL))
    top: Settings = {"trainer": {name: trainer[name] for name in _OF_EVERY_PASS if name in trainer}}
    if run.experiment.seed is not None:
        way["seed"] = top["seed_everything"] = run.experiment.seed
    return {**top, "model": {**model, "init_args": arguments}, "data": {"init_args": data}}


def annotation(run: Run, path: str, unit: str, columns: Settings | None, max_rows: int | None) -> Settings:
    """Of a pass of a parser over the utterances of a file, without its checkpoint.

    Args:
        run: What is run.
        path: The file.
        unit: Whose line it is; ``utterance`` writes none.
        columns: What the columns of the file are called; None: the usual names.
        max_rows: Most utterances that are parsed together; None: as in the parser's file.
    """
    model = read(run.experiment, MODEL_FILES["parser"])["model"]
    if max_rows is not None:
        model["init_args"]["max_rows"] = max_rows
    data: Settings = {"path": path, "unit": unit} | ({} if columns is None else {"columns": columns})
    return {"model": model, "data": {"init_args": data}}


def writing(run: Run, overlay: str, path: str, source: str) -> Settings:
    """An overlay of ``predict`` whose lines go to a file of the run, each with its source."""
    config = read(run.experiment, f"configs/overlays/{overlay}.yaml")
    for callback in config["trainer"]["callbacks"]:
        if callback["class_path"] == _WRITER:
            callback["init_args"] |= {"output_path": str(run.folder / path), "stage": source}
    return config


def read(experiment: Experiment, path: str) -> Settings:
    """A configuration file, its variables filled in and its paths absolute."""
    return absolute(fill_in(read_yaml(ROOT / path), {**os.environ, **experiment.environment}, path))


def overlays(experiment: Experiment, more: Iterable[str] = ()) -> tuple[Settings, ...]:
    """The overlays of an experiment and of a kind of node, which must not touch what decides of the guarantee."""
    found = []
    for path in dict.fromkeys(absolute([*experiment.overlays, *more], "overlays")):
        overlay = read(experiment, path)
        if "privacy" in overlay and overlay["privacy"] is None:
            raise UserError(f"{path} takes privacy away, which an overlay cannot: `epsilon: inf` trains without")
        for name in DERIVED.keys() & (overlay.get("privacy") or {}).keys():
            raise UserError(
                f"privacy.{name} follows from the field {DERIVED[name]} of the experiment: set that", about=path
            )
        found.append(overlay)
    return tuple(found)


def grammar_of(config: Settings) -> list[str]:
    """Files of whose names a model may write."""
    return listed(config["model"]["init_args"].get("sampling", {}).get("grammar") or [])


def _merged(run: Run, stage: str, changes: Settings, *more: Mapping[str, Any]) -> Settings:
    experiment = run.experiment
    layers = ({name: getattr(experiment, name) for name in SECTIONS}, experiment.stages.get(stage, {}), changes)
    config = merge(read(experiment, MODEL_FILES[stage]), *map(in_yaml, layers), *more)
    arguments = config["model"].setdefault("init_args", {})
    arguments.setdefault("base_model", BASE_MODEL)
    if stage == "parse_tree":
        _name_grammar(run, arguments.setdefault("sampling", {}))
    return config


def _name_grammar(run: Run, way: Settings) -> None:
    """Put the run's file in the place of ``reference``, which is the grammar of trees unless another is set.

    Formal guarantees:
        Where nothing else is said, trees are sampled of the names in the trees of the public reference. A run refuses a
        reference that says what a private file does, so the names are public and sampling under them is
        post-processing.
    """
    reference = run.experiment.reference
    names = listed(way.get("grammar", None if reference is None else REFERENCE) or [])
    if REFERENCE not in names:
        return
    if reference is None:
        raise UserError(
            "sampling.grammar takes the names of the reference's trees, and the experiment names no reference: set "
            "reference=PUBLIC, or the table of your API as grammar"
        )
    way["grammar"] = [str(run.folder / PUBLIC_TREES) if name == REFERENCE else name for name in names]


def _trained(run: Run, config: Settings) -> Settings:
    """With seed, rhythm of saving and the usual optimizer."""
    optimizer = config["model"]["init_args"].get("optimizer")
    if optimizer and "class_path" not in optimizer:
        whole = {"class_path": "torch.optim.AdamW", "init_args": {"weight_decay": 0.0, **optimizer}}
        config["model"]["init_args"]["optimizer"] = whole
    top = {"seed_everything": run.experiment.seed, "save_every": run.experiment.save_every}
    return {**{name: value for name, value in top.items() if value is not None}, **config}


def in_yaml(sections: Mapping[str, Any]) -> Settings:
    """Sections of an experiment in the shape of LightningCLI's configuration."""
    model = dict(sections.get("model") or {})
    if sections.get("sampling"):
        model["sampling"] = sections["sampling"]
    parts = {"trainer": sections.get("trainer"), "privacy": sections.get("privacy")}
    parts |= {name: {"init_args": part} for name, part in (("model", model), ("data", sections.get("data"))) if part}
    return {name: part for name, part in parts.items() if part}
