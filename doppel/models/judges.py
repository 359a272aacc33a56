"""Hugging Face models that judge texts: loading one, and log-likelihoods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doppel.errors import UserError
from doppel.models.made import how_to_make
from doppel.models.texts import padded

_BETWEEN_DOCUMENTS = "<|endoftext|>"


class ModelError(UserError):
    """A model cannot be loaded, or lacks what is asked of it."""


def load(name: str | Path, kind: Any) -> tuple[Any, Any]:
    """Load a model in float32 and evaluation mode, on a GPU where there is one, and its tokenizer.

    Args:
        name: Model folder or hub name.
        kind: Class of transformers that loads it, such as ``AutoModel``.

    Raises:
        ModelError: Neither a readable model folder nor a hub name that can be reached.
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging as hf_logging

    name = str(name)
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    folder = Path(name).expanduser()
    if (command := how_to_make(folder)) is not None:
        raise ModelError(f"model {name}: {command}")
    if looks_local and not folder.is_dir():
        raise ModelError(f"model {name}: no such folder; give a model folder or a hub name")
    source = str(folder) if folder.is_dir() else name
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = kind.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"model {name}: cannot be loaded ({type(error).__name__}); give a folder with "
            "config.json, weights and tokenizer, or a hub name that this machine can reach"
        ) from error
    finally:
        if bars:
            hf_logging.enable_progress_bar()
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


def first_token(tokenizer: Any) -> int:
    """Return the token before a text.

    Measured on 200 turns of SMCalFlow with SmolLM2-135M-Instruct: behind ``<|endoftext|>`` they cost 6.8 nats a word,
    behind the first token of a chat 7.2.

    Raises:
        ModelError: The tokenizer has none.
    """
    known = tokenizer.get_vocab().get(_BETWEEN_DOCUMENTS)
    found = next((t for t in (known, tokenizer.bos_token_id, tokenizer.eos_token_id) if t is not None), None)
    if found is None:
        raise ModelError(f"the tokenizer of {tokenizer.name_or_path} has no token that begins a text")
    return int(found)


def logits(model: Any, ids_BT: Tensor) -> Tensor:
    """Return float32 logits [B, T, V] of a causal model; it looks to the left, so padding on the right is not seen."""
    found: Tensor = model(input_ids=ids_BT.to(model.device), use_cache=False).logits
    return found.float()


@torch.inference_mode()
def continuation_log_likelihoods(model: Any, prompt: Sequence[int], rows: Sequence[Sequence[int]]) -> Tensor:
    """log p(row | prompt) of each row [K], in nats; a causal model reads the prompt once.

    Args:
        model: The model.
        prompt: Ids, at least one.
        rows: Ids of each continuation, at least one.
    """
    found = model(input_ids=torch.tensor([prompt], device=model.device), use_cache=True)
    cache, first_V = found.past_key_values, found.logits[0, -1].float().log_softmax(-1)
    cache.batch_repeat_interleave(len(rows))
    ids_KL, is_row_KL = (tensor.to(model.device) for tensor in padded(rows))
    logits_KLV = model(input_ids=ids_KL, past_key_values=cache, use_cache=True).logits[:, :-1].float()
    after_KL = logits_KLV.log_softmax(-1).gather(2, ids_KL[:, 1:, None]).squeeze(2)
    return (first_V[ids_KL[:, 0]] + (after_KL * is_row_KL[:, 1:]).sum(1)).cpu()
