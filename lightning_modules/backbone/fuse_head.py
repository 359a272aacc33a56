"""Fuses a model's output head with its loss where that changes nothing."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from doppel.head_loss import HeadLoss


def fuse_head(model: PreTrainedModel, recompute: bool = False) -> HeadLoss | None:
    """The loss on top of ``model.base_model``, if the logits are exactly ``head(base_model(ids).last_hidden_state)``.

    Some architectures do more with their logits (soft caps, scales), so the equality is checked by one short forward
    pass. None where it does not hold: the loss then has to go through the whole model.

    Args:
        model: A causal language model.
        recompute: As for :class:`~doppel.head_loss.HeadLoss`.
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
    return HeadLoss(head, recompute=recompute) if is_plain else None
