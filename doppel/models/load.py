"""The one loader of Hugging Face models and tokenizers, from a folder or the hub, and what it refuses, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import safe_open

from doppel.models.families import class_for, language_model_of
from doppel.models.faults import FAILURES, LORA, ModelError, cannot, is_no_hub_name
from doppel.models.lora_folder import CONFIG, WEIGHTS, base_of, lora_of, merge
from doppel.models.quantized import check_packed, take_packed
from doppel.models.sentence_head import check_reader
from doppel.privacy.card import check_base

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: What a model is for: one that writes has a head, one that reads gives its last layer.
Kind = Literal["causal_lm", "encoder"]
#: Weights of an encoder that nothing here computes with, and that many folders lack.
_UNUSED = {"encoder": "pooler."}
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def load_tokenizer(name: str | Path) -> Any:
    """Load a tokenizer; a folder of LoRA weights without one has that of its base.

    Raises:
        ModelError: There is none at that place, or the hub cannot be reached.
    """
    from transformers import AutoTokenizer

    if (lora := lora_of(name)) is not None:
        folder, base = lora
        if not (folder / "tokenizer_config.json").is_file():
            return load_tokenizer(base)
        name = folder
    try:
        return AutoTokenizer.from_pretrained(_place(name), trust_remote_code=False)
    except FAILURES as error:
        raise cannot("tokenizer", str(name), error) from error


def load_config(name: str | Path) -> Any:
    """Load the configuration of a model; of LoRA weights that of their base.

    Raises:
        ModelError: There is none at that place, it needs code of its own, or the hub cannot be reached.
    """
    from transformers import AutoConfig

    if (base := base_of(name)) is not None:
        return load_config(base)
    try:
        return AutoConfig.from_pretrained(_place(name), trust_remote_code=False)
    except FAILURES as error:
        raise cannot("model", str(name), error) from error


def load_model(
    name: str | Path,
    init: Literal["pretrained", "random"] = "pretrained",
    dropout: float | None = None,
    dtype: torch.dtype = torch.float32,
    kind: Kind = "causal_lm",
    is_frozen: bool = False,
) -> PreTrainedModel:
    """Load a model, all of whose weights are in its folder, and are numbers; LoRA weights merged into their base.

    Of a multimodal model the language model alone (:func:`~doppel.models.families.language_model_of`).

    Args:
        name: Model folder or hub name.
        init: ``random`` takes the architecture alone and draws new weights.
        dropout: Overrides its dropout probabilities; null keeps them.
        dtype: Of its weights. In that of their files they are a memory map, which processes of one machine share.
        kind: What it is for.
        is_frozen: Whether none of its weights is to be trained, so that four-bit ones may be loaded.

    Raises:
        ModelError: There is none at that place, or the hub cannot be reached; its weights are not those that its
            ``config.json`` describes, or not finite; they are quantised, and trained or not of bitsandbytes. LoRA
            weights do not fit their base, or it is not the one that their card names.
    """
    if (lora := lora_of(name)) is not None:
        return _load_merged(*lora, init, dropout, dtype, kind, is_frozen)
    config = load_config(name)
    if dropout is not None:
        text = config.get_text_config()
        for key in vars(text):
            if "drop" in key and type(getattr(text, key)) in (int, float):
                setattr(text, key, dropout)
    try:
        if init == "random":
            text = config.get_text_config() if kind == "causal_lm" else config
            return _class(kind, text).from_config(text, dtype=dtype)  # type: ignore[no-any-return]
        if (packing := getattr(config, "quantization_config", None)) is None:
            model = _loaded(name, kind, config=config, dtype=dtype)
        else:
            model = _load_packed(name, config, packing, is_frozen)
        for key, parameter in model.named_parameters():
            if not parameter.isfinite().all():
                raise ValueError(f"its weight {key} holds numbers that are not finite: save it again from a sound one")
    except FAILURES as error:
        raise cannot("model", str(name), error) from error
    return model


def dtype_of(name: str | Path) -> str:
    """Return the type of a model's weights, as its folder says it; of LoRA weights that of their base.

    Raises:
        ModelError: See :func:`load_config`.
    """
    dtype = load_config(name).dtype
    return "float32" if dtype is None else str(dtype).removeprefix("torch.")


def has_weights(name: str | Path) -> bool:
    """Return whether a folder holds a model's weights, and not a tokenizer alone; a hub name is taken to."""
    folder = Path(name).expanduser()
    return not folder.is_dir() or any(file for kind in _WEIGHTS for file in folder.glob(kind))


def load_with_tokenizer(name: str | Path, kind: Kind = "causal_lm") -> tuple[Any, Any]:
    """Load a model that is not trained here, in evaluation mode, on a GPU where there is one, and its tokenizer.

    Raises:
        ModelError: See :func:`load_model` and :func:`load_tokenizer`.
    """
    with _quietly():
        tokenizer, model = load_tokenizer(name), load_model(name, kind=kind)
    device: Any = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval(), tokenizer


def check_loads(name: str | Path, kind: Kind = "causal_lm", is_frozen: bool = False) -> None:
    """Refuse what :func:`load_with_tokenizer` would, but for weights that are no numbers: no weight is read.

    Args:
        name: Model folder or hub name.
        kind: What it is for.
        is_frozen: As of :func:`load_model`.

    Raises:
        ModelError: See :func:`load_model` and :func:`load_tokenizer`.
    """
    with _quietly():
        load_tokenizer(name)
        if (lora := lora_of(name)) is not None:
            _open_lora(lora[0])
            check_loads(lora[1], kind, is_frozen)
            return
        if kind == "encoder":
            check_reader(name)
        config = load_config(name)
        try:
            if (packing := getattr(config, "quantization_config", None)) is not None:
                check_packed(packing, is_frozen)
                for file in Path(name).glob("*.safetensors"):
                    with safe_open(file, "pt"):
                        pass
            else:
                _loaded(name, kind, config=config, device_map="meta")
        except FAILURES as error:
            raise cannot("model", str(name), error) from error


def check_ids(tokenizer: Any, model: PreTrainedModel, name: str) -> None:
    """Check that each token that a row may hold has a row in the model.

    Special tokens that nobody writes need none, such as Gemma 3's for images: they are plain text in a text, and are
    never sampled.

    Raises:
        ModelError: One has none: a text that holds it would end the training.
    """
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id} - {None}
    highest = max(set(tokenizer.get_vocab().values()) - special | ends)
    rows = model.get_input_embeddings().num_embeddings
    if highest >= rows:
        raise ModelError(
            f"the tokenizer of {name} has ids up to {highest}, and the model {rows} rows: call "
            "model.resize_token_embeddings(len(tokenizer)) and save both, or give the folder the model's own tokenizer"
        )


def longest_example(model: PreTrainedModel, wanted: int | None) -> int:
    """Return the longest example in tokens that a model takes, at most ``wanted``.

    Raises:
        ModelError: Neither the model nor ``wanted`` bounds it.
    """
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    bounds = [bound for bound in (wanted, positions) if bound is not None]
    if not bounds:
        raise ModelError(f"{type(model).__name__} has no longest length: set the model's max_length")
    return min(bounds)


def _class(kind: Kind, config: Any) -> Any:
    import transformers

    return class_for(config) if kind == "causal_lm" else transformers.AutoModel


def _place(name: str | Path) -> str:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if is_no_hub_name(str(name)):  # which a hub that does not answer would be asked for again and again
        raise FileNotFoundError(folder)
    return str(name)


def _load_merged(
    folder: Path,
    base: str,
    init: Literal["pretrained", "random"],
    dropout: float | None,
    dtype: torch.dtype,
    kind: Kind,
    is_frozen: bool,
) -> PreTrainedModel:
    """The base of a folder of LoRA weights, with these merged into it."""
    try:
        model = load_model(base, init, dropout, dtype, is_frozen=is_frozen)
    except ModelError as error:
        raise ModelError(f"{folder} holds LoRA weights for the base that its {CONFIG} names: {error}") from error
    if init == "pretrained":
        check_base(folder, base)
        try:
            merge(model, folder)
        except FAILURES as error:
            raise cannot(LORA, str(folder), error) from error
    return model if kind == "causal_lm" else model.base_model  # type: ignore[return-value]


def _load_packed(name: str | Path, config: Any, packing: Any, is_frozen: bool) -> PreTrainedModel:
    """A model whose folder holds four-bit weights, in layers of ours."""
    check_packed(packing, is_frozen)
    model = _loaded(name, "causal_lm", config=config, dtype=config.dtype or torch.bfloat16, device_map="cpu")
    take_packed(model)
    return model


def _open_lora(folder: Path) -> None:
    try:
        with safe_open(folder / WEIGHTS, "pt"):
            pass
    except FAILURES as error:
        raise cannot(LORA, str(folder), error) from error


def _loaded(name: str | Path, kind: Kind, config: Any, **options: Any) -> PreTrainedModel:
    """The model of a folder, which is the whole of it.

    Raises:
        ValueError: It is not.
    """
    model, found = _class(kind, config).from_pretrained(
        _place(name),
        config=config,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # said below
        trust_remote_code=False,
        **options,
    )
    if getattr(model, "_hf_peft_config_loaded", False):  # the library puts them into the model
        raise ValueError(f"it holds a whole model and LoRA weights, {CONFIG}: leave one of them in the folder")
    if getattr(config, "quantization_config", None) is None:
        _refuse_integers(Path(name), {key for key, _ in model.named_parameters()})
    own = {key.partition(".")[0] for key, _ in model.named_parameters()}
    missing = {key for key in found["missing_keys"] if not key.startswith(_UNUSED.get(kind, "\0"))}
    strange = {key for key in found["unexpected_keys"] if key.partition(".")[0] in own}
    shapes = {key for key, *_ in found["mismatched_keys"]}
    faults = {"it lacks": missing, "config.json does not know": strange, "of another shape are": shapes}
    for what, keys in faults.items():
        if keys:
            example = f"{what} {len(keys)} weights, such as {min(keys)}"
            raise ValueError(f"{example}: copy config.json and all weights of one model into it")
    return language_model_of(model) if kind == "causal_lm" else model


def _refuse_integers(folder: Path, weights: set[str]) -> None:
    """Refuse a folder some of whose weights are whole numbers, which would be taken as they are, without their scale.

    Raises:
        ValueError: Such as those that a tool has packed, whose form no ``quantization_config`` says.
    """
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else ():
        with safe_open(file, "pt") as stored:
            for key in stored.keys():  # noqa: SIM118 (no mapping)
                kind = stored.get_slice(key).get_dtype()
                is_weight = key in weights or any(name.endswith(f".{key}") for name in weights)
                if is_weight and not kind.startswith(("F", "BF")):
                    raise ValueError(
                        f"its weight {key} is of type {kind}, packed by a tool of which config.json says nothing: save "
                        "the model in a floating type"
                    )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's bars, and its reports of what is refused here."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
