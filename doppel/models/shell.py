"""A model of a configuration alone: on the device ``meta``, which holds no number."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from doppel.models.adapters import LoraArguments, add_adapters
from doppel.models.frozen_base import FrozenBase
from doppel.models.load import load_model


def shell(name: str, frozen: torch.dtype, lora: LoraArguments | None) -> PreTrainedModel:
    """Return a model as a training has it, without its weights.

    Args:
        name: Folder, of which ``config.json`` alone is read, or hub name.
        frozen: Type of the weights below adapters.
        lora: Adapters, in float32; None: all weights are trained, in float32.

    Raises:
        ModelError: It has no configuration there.
        UserError: The adapters do not fit it.
    """
    with torch.device("meta"):
        model = load_model(name, init="random", dtype=torch.float32 if lora is None else frozen).train()
        if lora is None:
            return model
        add_adapters(model, lora)
    FrozenBase(name).freeze(model)
    return model
