"""Any Hugging Face model and its tokenizer, from a folder or the hub: loading, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from doppel.errors import UserError
from doppel.models.lora_folder import CONFIG, base_of, merge
from doppel.models.made import how_to_make
from doppel.privacy.card import check_base

#: What loading from a folder ends in that is not as the library expects it.
_FAILURES = (
    OSError,
    pickle.UnpicklingError,
    ValueError,
    ImportError,
    RuntimeError,
    KeyError,
    TypeError,
    AttributeError,
    SafetensorError,
    EOFError,
)


_LORA = "LoRA weights"


class BaseModelError(UserError):
    """The base model cannot be loaded."""


def load_tokenizer(name: str) -> Any:
    """Load a tokenizer; a folder of LoRA weights without one has that of its base.

    Raises:
        BaseModelError: There is none at that place, or the hub cannot be reached.
    """
    if not (Path(name) / "tokenizer_config.json").is_file() and (base := base_of(name)) is not None:
        return load_tokenizer(base)
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except _FAILURES as error:
        raise _cannot("tokenizer", name, error) from error


def load_model(
    name: str, init: Literal["pretrained", "random"] = "pretrained", dropout: float | None = None
) -> PreTrainedModel:
    """Load a causal language model in float32, all of whose weights are in its folder, and are numbers.

    Of a folder of LoRA weights the base is loaded, and they are merged into it. ``random`` takes the architecture alone
    and draws new weights; ``dropout`` overrides its dropout probabilities.

    Raises:
        BaseModelError: There is none at that place, or the hub cannot be reached; its weights are not those that its
            ``config.json`` describes, or not finite; they are quantised. LoRA weights do not fit their base, or it is
            not the one that their card names.
    """
    if (base := base_of(name)) is not None:
        return _load_merged(name, base, init, dropout)
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        if dropout is not None:
            for key in vars(config):
                if "drop" in key and type(getattr(config, key)) in (int, float):
                    setattr(config, key, dropout)
        if init == "random":
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if getattr(config, "quantization_config", None) is not None:
            raise ValueError("its weights are quantised, which no gradient trains: give the folder before that")
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # _check_weights says which
            trust_remote_code=False,
        )
        _check_weights(*loaded)
    except _FAILURES as error:
        raise _cannot("model", name, error) from error
    return loaded[0]  # type: ignore[no-any-return]


def dtype_of(name: str) -> str:
    """Return the type of a model's weights, as its folder says it; of LoRA weights that of their base."""
    base = base_of(name)
    if base is not None:
        return dtype_of(base)
    dtype = AutoConfig.from_pretrained(name, trust_remote_code=False).dtype
    return "float32" if dtype is None else str(dtype).removeprefix("torch.")


def _load_merged(name: str, base: str, init: Literal["pretrained", "random"], dropout: float | None) -> PreTrainedModel:
    """The base of a folder of LoRA weights, with these merged into it."""
    try:
        model = load_model(base, init, dropout)
    except BaseModelError as error:
        raise BaseModelError(f"{name} holds LoRA weights for the base that its {CONFIG} names: {error}") from error
    if init == "random":
        return model
    check_base(Path(name), base)
    try:
        merge(model, Path(name))
    except _FAILURES as error:
        raise _cannot(_LORA, name, error) from error
    return model


def _check_weights(model: PreTrainedModel, found: dict[str, Any]) -> None:
    """What was loaded is the whole model, and nothing but numbers.

    Raises:
        ValueError: It is not.
    """
    own = {name.partition(".")[0] for name, _ in model.named_parameters()}
    strange = {name for name in found["unexpected_keys"] if name.partition(".")[0] in own}
    shapes = {name for name, *_ in found["mismatched_keys"]}
    faults = {"it lacks": found["missing_keys"], "config.json does not know": strange, "of another shape are": shapes}
    for what, names in faults.items():
        if names:
            example = f"{what} {len(names)} weights, such as {min(names)}"
            raise ValueError(f"{example}: copy config.json and all weights of one model into it")
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(f"its weight {name} holds numbers that are not finite: save it again from a sound one")


def check_ids(tokenizer: Any, model: PreTrainedModel, name: str) -> None:
    """Check that each token of the tokenizer has a row in the model.

    Raises:
        BaseModelError: One has none: a text that holds it would end the training.
    """
    highest, rows = max(tokenizer.get_vocab().values()), model.get_input_embeddings().num_embeddings
    if highest >= rows:
        raise BaseModelError(
            f"the tokenizer of {name} has ids up to {highest}, and the model {rows} rows: call "
            "model.resize_token_embeddings(len(tokenizer)) and save both, or give the folder the model's own tokenizer"
        )


def longest_example(model: PreTrainedModel, wanted: int | None) -> int:
    """Return the longest example in tokens that a model takes, at most ``wanted``.

    Raises:
        BaseModelError: Neither the model nor ``wanted`` bounds it.
    """
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    bounds = [bound for bound in (wanted, positions) if bound is not None]
    if not bounds:
        raise BaseModelError(f"{type(model).__name__} has no longest length: set the model's max_length")
    return min(bounds)


def _cannot(what: str, name: str, error: Exception) -> BaseModelError:
    """What a library gave up on, in one line: its own reason, or what is known to lie behind it."""
    if (command := how_to_make(name)) is not None:
        return BaseModelError(command)
    folder = Path(name)
    where = f"the folder {name!r}" if folder.exists() else f"{name!r}, no local folder, from the Hugging Face hub"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reason = " ".join(lines[:2]).partition(" Model type should be")[0][:300].rstrip(".:, ")
    if "trust_remote_code" in str(error):
        reason = "it needs code of its own, which is never run: give a model of a family that transformers knows"
    elif isinstance(error, pickle.UnpicklingError):
        reason = (
            "its weights are a pickle that holds more than weights: save them as model.safetensors (save_pretrained)"
        )
    elif isinstance(error, SafetensorError):
        reason = f"a file of its weights is damaged, or a pointer that Git LFS has not followed ({reason})"
    elif what == _LORA:
        pass  # the reason says it
    elif not (folder / "config.json").is_file() or (what == "tokenizer" and not (folder / "tokenizer.json").is_file()):
        reason = (
            "give a folder that holds config.json, model.safetensors and tokenizer.json (the shipped one is "
            f"models/base), or a hub name such as gpt2 on a machine that reaches the hub ({reason})"
        )
    return BaseModelError(f"cannot load the {what} of {where}: {reason}")
