"""Losses of texts under a language model."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from doppel.metrics.fluency import text_losses


def test_losses_are_those_of_each_text_alone(tiny_model: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    examples = [[0, 5, 6, 7, 1], [0, 9, 1], [0, 40, 41, 42, 43, 44, 45, 1]]
    together = text_losses(model, examples, tokens_per_batch=16)
    for ids, loss in zip(examples, together, strict=True):
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        expected = -logits[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    with pytest.raises(ValueError, match="token"):
        text_losses(model, [[0]])
