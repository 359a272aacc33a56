"""Whether a tokenizer is the one that a model was trained with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from doppel.models.faults import ModelError
from doppel.models.texts import longest_text, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: What every language model has read much like.
_PLAIN = (
    "I would like to book a table for two people on Friday evening. Please remind me to call my mother tomorrow "
    "morning, and tell me what the weather will be like in London at the weekend."
)
#: Nats a token above those of a uniform guess from which ids are those of another vocabulary. Measured: the shipped
#: base and SmolLM2-135M have 4.8 and 7.6 less; with their ids permuted 3.1 to 3.8 more (three permutations of each);
#: with ids that are off by one, which lie near in a vocabulary by rank, 2.0 and .1 more; random weights have .1 more.
_ABOVE_A_GUESS = 0.5


@torch.no_grad()
def check_reads(tokenizer: Any, model: PreTrainedModel, name: str) -> None:
    """Refuse a model that reads a plain sentence worse than a uniform guess would: the tokenizer's ids are not its own.

    Raises:
        ModelError: It does.
    """
    rows: Any = model.get_input_embeddings().num_embeddings
    loss, guess = nats_a_token(tokenizer, model), math.log(rows)
    if loss > guess + _ABOVE_A_GUESS:
        raise ModelError(
            f"{name} has a cross-entropy of {loss:.1f} per token on plain English, where a guess has {guess:.1f}: its "
            "tokenizer is not the one that it was trained with; copy tokenizer files and weights of one model"
        )


def nats_a_token(tokenizer: Any, model: PreTrainedModel) -> float:
    """Cross-entropy of a public sentence, of the tokens after the first."""
    # cut here: to have it cut changes the tokenizer, and so what checkpoints compare
    ids = torch.tensor(token_ids(tokenizer, [_PLAIN]), device=model.device)[:, : longest_text(model)]
    was_training = model.training
    try:
        logits = model.eval()(input_ids=ids, use_cache=False).logits[0, :-1].float()
    finally:
        model.train(was_training)
    return F.cross_entropy(logits, ids[0, 1:]).item()
