"""Which models the slots can serve."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

_NEEDED = ("input_ids", "attention_mask", "position_ids", "past_key_values")


def forward_arguments(model: PreTrainedModel) -> set[str]:
    """Names that the model's forward takes; those of the model inside, if adapters are wrapped around it."""
    inner: Callable[[], Any] | None = getattr(model, "get_base_model", None)
    base = model if inner is None else inner()
    return set(inspect.signature(base.forward).parameters)


def is_supported(model: PreTrainedModel) -> bool:
    """Whether a model can be decoded row by row with masks and positions of our own.

    It can if every layer attends to all of the past (no sliding or local window, no recurrence), positions come as an
    argument, and attention runs through ``sdpa`` or ``eager``, which take a mask for each query. GPT-2, GPT-NeoX, OPT,
    Llama, Qwen 2 and 3 and Phi do. Bloom, MPT and Falcon with ALiBi (positions from the mask), GPT-Neo, Mistral and
    Gemma 2 and 3 (windows), Mamba and RWKV (recurrence), encoder-decoders and prompt-tuned models do not.
    """
    config = model.config.get_text_config()
    if config.is_encoder_decoder or not forward_arguments(model).issuperset(_NEEDED):
        return False
    adapters: Any = getattr(model, "active_peft_config", None)
    if adapters is not None and adapters.is_prompt_learning:
        return False
    if getattr(config, "_attn_implementation", None) not in ("sdpa", "eager"):
        return False
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if "local" in (getattr(config, "attention_layers", None) or []) or getattr(config, "alibi", False):
        return False
    has_window = getattr(config, "sliding_window", None) is not None and getattr(config, "layer_types", None) is None
    return kinds == {"full_attention"} and not has_window and not getattr(config, "attention_chunk_size", None)
