"""Any Hugging Face causal language model: loading it and its tokenizer, and how it is trained."""

from __future__ import annotations

import pickle
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from doppel.errors import UserError
from doppel.made_models import how_to_make
from doppel.privacy.clipping.head import HeadLoss

#: Texts of at most so many tokens are short to the CPU's attention.
_SHORT = 512
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


class BaseModelError(UserError):
    """The base model cannot be loaded."""


def load_tokenizer(name: str) -> Any:
    """Load a tokenizer.

    Raises:
        BaseModelError: There is none at that place, or the hub cannot be reached.
    """
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except _FAILURES as error:
        raise _cannot("tokenizer", name, error) from error


def load_model(
    name: str, init: Literal["pretrained", "random"] = "pretrained", dropout: float | None = None
) -> PreTrainedModel:
    """Load a causal language model in float32, all of whose weights are in its folder, and are numbers.

    ``random`` takes the architecture alone and draws new weights; ``dropout`` overrides its dropout probabilities.

    Raises:
        BaseModelError: There is none at that place, or the hub cannot be reached; its weights are not those that its
            ``config.json`` describes, or not finite; they are quantised.
    """
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


def checked_divisor(divisor: float | None) -> float | None:
    """Return what the sum of a row's token losses is divided by; None for the row's own number of tokens.

    Raises:
        UserError: It is not above 0.
    """
    if divisor is not None and not divisor > 0:
        raise UserError(f"loss_divisor is {divisor}: give a number above 0, or null for the mean over a row")
    return divisor


def checkpoint_activations(model: PreTrainedModel, longest: int) -> None:
    """Let a model compute the activations inside its blocks again in the backward pass of training.

    :func:`attention_for` holds for what is computed again too.

    Raises:
        BaseModelError: Its architecture has no such blocks.
    """
    # the second is its name in older releases of transformers
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), attention_for(model.device, longest)

    try:
        enable({"use_reentrant": False, "context_fn": contexts})
    except ValueError as error:
        raise BaseModelError(
            f"{type(model).__name__} cannot checkpoint its activations: set activation_checkpointing to false"
        ) from error
    model.disable_input_require_grads()  # reentrant checkpoints alone need it


def attention_for(device: torch.device, longest: int) -> AbstractContextManager[None]:
    """Return the context in which a training computes attention.

    On a CPU in half precision torch's fused kernel takes longer than plain products where rows are short, and cuts them
    by the longest one beside. So short texts have plain products, whose rounding is a row's own. Elsewhere the choice
    is torch's.

    Formal guarantees:
        What decides is public: the device, the precision and the longest text that the model takes. The longest row of
        a batch would not be: one unit more would choose the kernel of the others, and move each in its rounding.

    Args:
        device: Where it is computed.
        longest: Tokens of the longest text that the model takes, whatever the batch holds.
    """
    is_short = device.type == "cpu" and torch.is_autocast_enabled("cpu") and longest <= _SHORT
    return sdpa_kernel(SDPBackend.MATH) if is_short and torch.is_grad_enabled() else nullcontext()


def head_loss(model: PreTrainedModel, divisor: float | None = None) -> HeadLoss | None:
    """Return the loss on top of ``model.base_model``, if the logits are ``head(base_model(ids).last_hidden_state)``.

    Some architectures do more with their logits (soft caps, scales), so the equality is checked by one short forward
    pass. None where it does not hold: the loss then has to go through the whole model.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or model.base_model is model:
        return None
    ids = torch.arange(2, device=model.device).unsqueeze(0)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model(input_ids=ids, use_cache=False).logits
        is_plain = torch.allclose(head(hidden), logits, rtol=1e-5, atol=1e-6)
    model.train(was_training)
    return HeadLoss(head, divisor) if is_plain else None


def _cannot(what: str, name: str, error: Exception) -> BaseModelError:
    """What a library gave up on, in one line: its own reason, or what is known to lie behind it."""
    if (command := how_to_make(name)) is not None:
        return BaseModelError(command)
    folder = Path(name)
    where = f"the folder {name!r}" if folder.exists() else f"{name!r}, no local folder, from the Hugging Face hub"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reason = " ".join(lines[:2]).partition(" Model type should be")[0][:300].rstrip(".:, ")
    if (folder / "adapter_config.json").is_file():
        reason = "it holds LoRA weights alone: merge them (merge_and_unload() of peft), and give that folder"
    elif "trust_remote_code" in str(error):
        reason = "it needs code of its own, which is never run: give a model of a family that transformers knows"
    elif isinstance(error, pickle.UnpicklingError):
        reason = (
            "its weights are a pickle that holds more than weights: save them as model.safetensors (save_pretrained)"
        )
    elif isinstance(error, SafetensorError):
        reason = f"a file of its weights is damaged, or a pointer that Git LFS has not followed ({reason})"
    elif not (folder / "config.json").is_file() or (what == "tokenizer" and not (folder / "tokenizer.json").is_file()):
        reason = (
            "give a folder that holds config.json, model.safetensors and tokenizer.json (the shipped one is "
            f"models/base), or a hub name such as gpt2 on a machine that reaches the hub ({reason})"
        )
    return BaseModelError(f"cannot load the {what} of {where}: {reason}")
