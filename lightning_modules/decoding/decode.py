"""Texts for many prompts, each drawn from the model's own distribution whatever the other prompts are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from lightning_modules.decoding.beam_slots import BeamSlots
from lightning_modules.decoding.multinomial_slots import MultinomialSlots
from lightning_modules.decoding.slots import DrawingRule, Request


@torch.inference_mode()
def decode(model: PreTrainedModel, requests: Sequence[Request], rule: DrawingRule, max_rows: int) -> list[list[int]]:
    """Write a text for each request.

    Args:
        model: In evaluation mode; :func:`lightning_modules.decoding.support.is_supported` holds for it.
        requests: Prompts and their longest texts; prompt and text fit the model's positions.
        rule: How to draw; random numbers come from the global generator of the model's device.
        max_rows: Most token rows that go through the model together; a text takes ``num_beams`` of them.

    Returns:
        Ids of each text, with the end-of-text id where the model ended it.

    Raises:
        UserError: The rule's constraint has no room in the shortest of the limits.
    """
    if rule.constraint is not None and requests:
        rule.constraint.check_limit(min(request.limit for request in requests))
    slots_type = MultinomialSlots if rule.num_beams == 1 else BeamSlots
    return slots_type(model, rule, max(1, max_rows // rule.num_beams)).write(requests)
