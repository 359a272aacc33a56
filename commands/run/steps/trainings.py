"""Steps that train: the configuration of each, merged from an experiment's layers, and what it reads and leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from commands.lightning.kept import refuse_unkept
from commands.privacy.release_settings import Attributes, Resampling, Topics
from commands.run.steps.context import StepContext, file_of, read
from commands.run_folder.sections import SECTIONS
from commands.run_folder.steps import PUBLIC_TREES, File, InputFile, Step
from commands.run_folder.systems import BASE_MODEL, MODEL_FILES, PUBLIC, System
from datamodules.guards.redaction import Redaction
from datamodules.reading.columns import Columns, reference_columns, unit_of
from datamodules.reading.example import Field, Unit
from doppel.errors import UserError
from doppel.grammar.slot_table import SHIPPED
from doppel.settings.yaml_files import Settings, listed, merge

Shares = Resampling | Topics
_DATA = "datamodules.dialogue_data_module.DialogueDataModule"
#: Share of the reference that teaches the base, and how many of its requests at most.
_HALF, _MOST = 0.5, 2_000
#: Of the sections of an experiment, what concerns the training on public requests too.
_OF_ALL_DATA = ("columns", "truncate", "max_tokens_per_micro_batch", "max_units_per_micro_batch")
_OF_PRIVATE_MODELS = ("optimizer", "lr_scheduler", "sampling")
#: What stands in ``grammar`` for the trees of the reference.
REFERENCE = "reference"


def fit(
    context: StepContext,
    system: System,
    stage: str,
    shares: Shares | Attributes | None = None,
    changes: Settings | None = None,
) -> Step:
    """Train a language model on the private turns.

    Its configuration is merged of layers, of which later ones win: the file of the model, the experiment's sections as
    the system has them, those of its stage (:func:`merged`), what follows from other fields, overlays. The budget of
    the system pays for its shares, too.
    """
    config = merged(context, stage, changes or {}, in_yaml(_derived(context, system, stage, shares)), *context.overlays)
    config.setdefault("data", {})["class_path"] = _DATA
    config |= {} if context.experiment.is_private else {"privacy": None, "not_private": True}
    config = _trained(context, config)
    data = config["data"]["init_args"]
    if context.train_path is not None:  # wins over --set, whose file it was made of
        data |= {"train_path": context.train_path, **unit_named(data)}
        attributes = (data.pop("columns", None) or {}).get("attributes")  # it has the usual ones
        if attributes is not None:
            data["columns"] = {"attributes": attributes}
    schema = (data.get("columns") or {}).get("attributes")
    model = config["model"]["init_args"]
    if (lesson := context.experiment.lessons.get(stage)) is not None:
        model["init_weights"] = context.checkpoint(lesson)
    start = model.get("init_weights")
    train, val, test, *others = files_of(data, () if system.learns in (None, "utterance") else (system.learns,))
    slots = [] if model.get("slots") in (None, SHIPPED) else [InputFile("model.slots", model["slots"])]
    return context.step(
        stage,
        "fit",
        config,
        writes=[file_of(system, f"{context.at(stage)}/checkpoints/last.ckpt", "checkpoint")],
        reads=[
            train,
            val,
            start if start is None or start.endswith(".ckpt") else f"{start}/checkpoints/last.ckpt",
            *grammar_of(config),
            InputFile("attributes.schema", schema),
            *others,
        ],
        names=[test, InputFile("model.init_weights", start), *slots],
        mechanisms=context.paid_by(system, stage),
    )


def teach(context: StepContext, lesson: str) -> Step:
    """Train a model on one half of the public reference, without privacy, for all systems of the run that start there.

    It is trained as the private models are, but for their optimiser, unless ``stages.public`` or the lesson's own
    sections say otherwise.

    Formal guarantees:
        Nothing private is read. A run refuses a reference that says what its private file does, and each private
        training, which starts from these weights, refuses it once more
        (:func:`~commands.run_folder.private_files.learnt_from`). So the weights at the start are public, as those of
        any base are, and ε is that of the private steps alone. Samples are compared with requests that taught nothing
        (``step evaluate --taught``): a copy of these would look like people.
    """
    experiment, stages = context.experiment, context.experiment.stages
    stage = lesson.removeprefix(f"{PUBLIC}_")  # whose model it is; PUBLIC itself is of several stages
    data = {name: value for name, value in experiment.data.items() if name in _OF_ALL_DATA}
    model = merge(experiment.model, stages.get(stage, {}).get("model") or {})
    model = {name: value for name, value in model.items() if name not in _OF_PRIVATE_MODELS}
    own = {lesson: merge(stages.get(PUBLIC, {}), stages.get(lesson, {}))}
    shared = replace(experiment, data=data, model=model, sampling={}, privacy={}, stages=own)
    if data.get("columns"):
        data["columns"] = {
            what: name for what, name in data["columns"].items() if what != "unit"
        }  # nobody is protected
    public: Settings = {"train_path": experiment.reference, "is_public": True, "sampling": "shuffle"}
    public |= {"keep_share": _HALF, "limit_train_units": _MOST}
    settings = in_yaml({"data": public, "trainer": {"max_epochs": _plain(experiment.epochs[lesson])}})
    config = merged(replace(context, experiment=shared), lesson, {}, settings, *map(_of_public, context.overlays))
    config["data"]["class_path"] = _DATA
    config = _trained(context, {**config, "not_private": True})
    writes = [File(f"{lesson}/checkpoints/last.ckpt", "checkpoint")]
    reads = context.reference._replace(needs=() if stage == PUBLIC else ("parse",))
    return replace(context, place="").step(lesson, "fit", config, writes=writes, reads=[reads])


def _of_public(overlay: Settings) -> Settings:
    """An overlay, but for what of it concerns private trainings alone."""
    given = (overlay.get("model") or {}).get("init_args") or {}
    arguments = {name: value for name, value in given.items() if name not in _OF_PRIVATE_MODELS}
    return {"trainer": overlay.get("trainer") or {}, "model": {"init_args": arguments}}


def unit_named(data: Mapping[str, Any]) -> Settings:
    """Return the unit of a data module's arguments for a file that has the usual columns; nothing for an utterance."""
    unit = unit_of(data.get("unit"), Columns.from_config(data))
    return {} if unit == "utterance" else {"unit": unit}


def fit_parser(context: StepContext, name: str, layer: str, files: list[str] | None = None) -> Step:
    """Train a semantic parser into the folder of this name, without privacy; on other files than the experiment's.

    Sections of the stage ``layer`` win over those of ``parser``.
    """
    layers = [in_yaml(context.experiment.stages.get(name, {})) for name in ("parser", layer)]
    config = merge(read(context.experiment, MODEL_FILES["parser"]), *layers, {"not_private": True})
    data = config["data"]["init_args"]
    if files is not None:
        data |= {"train_paths": files, "val_path": None, "test_path": None}
    config = _trained(context, config)
    named = {"train_paths": data.get("train_paths", ()), "val_path": [data.get("val_path")]}
    named["test_path"] = [data.get("test_path")]
    reads = [InputFile(f"stages.{layer}.data.{key}", path) for key, paths in named.items() for path in paths]
    writes = [File(f"{context.at(name)}/checkpoints/last.ckpt", "checkpoint")]
    return context.step(name, "fit", config, writes=writes, reads=reads)


def files_of(data: Mapping[str, Any], needs: tuple[Field, ...] = ()) -> list[InputFile]:
    """Return the files that arguments of a data module name, each as it is read: to train, validate, test, then others.

    These are public files that a ranker of words learns of, and the list of hidden words, which may name people.
    """
    columns, cut = Columns.from_config(data), bool(data.get("truncate"))
    unit: Unit | None = data.get("unit") or ("utterance" if data.get("is_public") else None)
    needs = needs if data.get("keep_function") is None else ()  # which leaves out what has no tree
    names = data.get("unit_names")
    found = [InputFile("data.train_path", data.get("train_path"), "train", columns, unit, needs, cut, True, names)]
    for name in ("val", "test"):
        kind: Literal["public", "private"] = "public" if data.get(f"{name}_is_public") else "private"
        field, public = f"data.{name}_path", reference_columns(columns)
        found.append(InputFile(field, data.get(field[5:]), kind, public, truncate=cut, is_read=name == "val"))
    redaction = Redaction.from_config(data.get("redact"))
    if redaction is not None:
        found += [InputFile(*named[:2], "public", named[2], is_read=False) for named in redaction.public_files]
        found.append(InputFile("redact.words", redaction.words, "private", is_read=False))
    return found


def _derived(context: StepContext, system: System, stage: str, shares: Shares | Attributes | None) -> Settings:
    """Sections that follow from other fields of the experiment: how long, of whose budget, and what is hidden."""
    experiment = context.experiment
    epochs = {name: _plain(experiment.epochs_of(name) * experiment.effort) for name in system.stages}
    data: Settings = {} if experiment.redact is None else {"redact": experiment.redact.as_dict()}
    data |= {} if experiment.effort == 1 else {"effort": experiment.effort}
    trainer = {"max_epochs": epochs[stage]}
    if not experiment.is_private:
        return {"trainer": trainer, "data": {"sampling": "shuffle", **data}}
    privacy: Settings = {**context.budget(system), "epochs": list(epochs.values())}
    if experiment.exact_histogram:
        privacy["histogram_noise_multiplier"] = None
    elif isinstance(shares, Attributes):
        privacy["histogram_share"] = shares.share
    elif shares is not None:
        privacy["histogram_noise_multiplier"] = shares.noise_multiplier
    return {"trainer": trainer, "data": data, "privacy": privacy}


def merged(context: StepContext, stage: str, changes: Settings, *more: Mapping[str, Any]) -> Settings:
    """Merge a model's file with sections: of the experiment, of the stage, of what the system sets, and more."""
    experiment = context.experiment
    layers = ({name: getattr(experiment, name) for name in SECTIONS}, experiment.stages.get(stage, {}), changes)
    config = merge(read(experiment, MODEL_FILES[stage]), *map(in_yaml, layers), *more)
    arguments = config["model"].setdefault("init_args", {})
    arguments.setdefault("base_model", BASE_MODEL)
    if stage == "parse_tree":
        _name_grammar(context, arguments.setdefault("sampling", {}))
    return config


def grammar_of(config: Settings) -> list[InputFile]:
    """Return files of whose names a model may write."""
    names = listed(config["model"]["init_args"].get("sampling", {}).get("grammar") or [])
    return [InputFile("sampling.grammar", name) for name in names]


def _name_grammar(context: StepContext, way: Settings) -> None:
    """Put the run's file in the place of ``reference``, which is the grammar of trees unless another is set.

    Formal guarantees:
        Where nothing else is said, trees are sampled of the names in the trees of the public reference. A run refuses a
        reference that says what a private file does, so the names are public and sampling under them is
        post-processing.
    """
    reference = context.experiment.reference
    names = listed(way.get("grammar", None if reference is None else REFERENCE) or [])
    if REFERENCE not in names:
        return
    if reference is None:
        raise UserError(
            "sampling.grammar takes the names of the reference's trees, and the experiment names no reference: set "
            "reference=PUBLIC, or the table of your API as grammar"
        )
    way["grammar"] = [str(context.folder / PUBLIC_TREES) if name == REFERENCE else name for name in names]


def _trained(context: StepContext, config: Settings) -> Settings:
    """With seed, rhythm of saving and the optimizer, whose learning rate is that of the last layer to give one.

    Raises:
        UserError: Nothing would keep what is trained.
    """
    refuse_unkept(config.get("trainer", {}))
    arguments = config["model"]["init_args"]
    if optimizer := dict(arguments.pop("optimizer", None) or {}):  # null: the module's; a class, over those of another
        named, given = optimizer.pop("class_path", None), optimizer.pop("init_args", {})
        named = named or "doppel.privacy.optimizer.DPAdam"
        arguments["optimizer"] = {"class_path": named, "init_args": merge(optimizer, given)}
    top = {"seed_everything": context.experiment.seed, "save_every": context.experiment.save_every}
    return {**{name: value for name, value in top.items() if value is not None}, **config}


def in_yaml(sections: Mapping[str, Any]) -> Settings:
    """Convert sections of an experiment to LightningCLI's configuration."""
    model = dict(sections.get("model") or {})
    if sections.get("sampling"):
        model["sampling"] = sections["sampling"]
    parts = {"trainer": sections.get("trainer"), "privacy": sections.get("privacy")}
    parts |= {name: {"init_args": part} for name, part in (("model", model), ("data", sections.get("data"))) if part}
    return {name: part for name, part in parts.items() if part}


def _plain(number: float) -> float:
    return int(number) if float(number).is_integer() else number
