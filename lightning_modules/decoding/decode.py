"""Texts for many prompts, each drawn from the model's own distribution whatever the other prompts are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from lightning_modules.decoding.slots import DrawingRule, Request, Slots, forward_arguments

_NEEDED = ("input_ids", "attention_mask", "position_ids", "past_key_values")


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


@torch.inference_mode()
def decode(model: PreTrainedModel, requests: Sequence[Request], rule: DrawingRule, max_rows: int) -> list[list[int]]:
    """Write a text for each request.

    Args:
        model: In evaluation mode; :func:`is_supported` holds for it.
        requests: Prompts and their longest texts; prompt and text fit the model's positions.
        rule: How to draw; random numbers come from the global generator of the model's device.
        max_rows: Most texts that go through the model together.

    Returns:
        Ids of each text, with the end-of-text id where the model ended it.

    Raises:
        UserError: The rule's constraint has no room in the shortest of the limits.
    """
    if rule.constraint is not None and requests:
        rule.constraint.check_limit(min(request.limit for request in requests))
    return Slots(model, rule, max_rows).write(requests)
