"""The loss of a model's output head, and what it is divided by."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from doppel.errors import UserError
from doppel.privacy.clipping.head import HeadLoss


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


def checked_divisor(divisor: float | None) -> float | None:
    """Return what the sum of a row's token losses is divided by; None for the row's own number of tokens.

    Raises:
        UserError: It is not above 0.
    """
    if divisor is not None and not divisor > 0:
        raise UserError(f"loss_divisor is {divisor}: give a number above 0, or null for the mean over a row")
    return divisor
