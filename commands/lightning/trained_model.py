"""A trained language model of a run folder, for commands that read or release its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commands.run_folder.places import ROOT
from commands.run_folder.stage_config import StageConfig
from datamodules.reading.files import expand_path
from doppel.errors import UserError

if TYPE_CHECKING:
    from doppel.tables.asked import ValueChooser
    from lightning_modules.causal_lm import CausalLM


def trained_model(file: Path, config: StageConfig) -> CausalLM:
    """Return the model of a checkpoint, with its weights and in its text format.

    Args:
        file: STAGE/checkpoints/last.ckpt.
        config: Of the stage.

    Raises:
        UserError: The checkpoint cannot be read, or is no language model's.
    """
    from doppel.models.adapters import LoraArguments
    from lightning_modules.causal_lm import UtteranceLM
    from lightning_modules.training.warm_start import WarmStart

    init = config.model
    if "base_model" not in init:
        raise UserError(f"{file} is a {config.content['model']['class_path']}, which is no language model of ours")
    form = ("base_model", "max_length", "linearisation", "task_prefix", "slots", "quantization")
    given = {name: init[name] for name in form if name in init}
    model = UtteranceLM(
        **given | {"base_model": str(place_of(init["base_model"]))},
        lora=LoraArguments(**init["lora"]) if init.get("lora") else None,
    )
    WarmStart.read(str(file), model.text_format).load_into(model.model, model.base)
    return model


def place_of(model: str) -> Path:
    """Return where a model is: a folder, from here or beside the code; else its name, which may be one on the hub."""
    path = Path(expand_path(model)).expanduser()
    return ROOT / path if not path.is_dir() and (ROOT / path).is_dir() else path


def value_chooser(by: str) -> ValueChooser:
    """Return the chooser among the public values of a column that a model fills.

    Args:
        by: The model, as the schema names it.

    Raises:
        UserError: It cannot be loaded, or its card says that it learnt from people without privacy: the values that it
            chooses for a row would tell of other rows, and no ε of what learns from them would hold.
    """
    from doppel.models.faults import ModelError
    from doppel.models.load import load_with_tokenizer
    from doppel.privacy.card import origins_of
    from doppel.tables.asked import ValueChooser

    for origin in origins_of(place_of(by)):
        if origin["private"] is None and origin["is_public"] is False:
            raise UserError(
                f"`by` of its schema: {origin['path']} was trained without privacy on data that nobody declared "
                "public, and what it chooses would tell of them, so that no ε would hold: name another model",
                about=by,
            )
    try:
        return ValueChooser(*load_with_tokenizer(place_of(by)))
    except ModelError as error:
        raise UserError(f"`by` of its schema: {error}", about=by) from None
