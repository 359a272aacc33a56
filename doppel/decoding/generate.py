"""The same by Hugging Face's ``generate``: for several beams, and for models that our decoder cannot serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import cast

import torch
from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel

from doppel.decoding.decode import Request


def generate(
    model: PreTrainedModel,
    requests: Sequence[Request],
    config: GenerationConfig,
    max_rows: int,
    processor: Callable[[int], LogitsProcessor] | None = None,
) -> list[list[int]]:
    """Write a text for each request.

    Args:
        model: In evaluation mode.
        requests: Prompts and their longest texts; random numbers come from the global generator of the model's device.
        config: How to draw; its padding token may be any.
        max_rows: Most rows that go through the model together, one for each beam.
        processor: Makes what cuts the scores, by the columns of the prompts, padding included; None cuts nothing.

    Returns:
        Ids of each text, padded behind the end-of-text id where the model ended it.
    """
    size = max(1, max_rows // (config.num_beams or 1))
    write = cast("Callable[..., torch.Tensor]", model.generate)
    written: list[list[int]] = [[] for _ in requests]
    # A batch has one longest text, so only prompts with the same limit go together.
    order = sorted(range(len(requests)), key=lambda i: (requests[i].limit, len(requests[i].prompt)))
    for limit, group in groupby(order, key=lambda i: requests[i].limit):
        members = list(group)
        for start in range(0, len(members), size):
            part = members[start : start + size]
            prompts = [requests[i].prompt for i in part]
            width = max(map(len, prompts))
            # The mask is explicit because ids cannot tell: a padding token may be the separator or the end of text
            # as well. Hugging Face counts the positions from it, so that every row starts at position 0 whatever
            # its padding.
            pad = cast("int", config.pad_token_id)
            ids_BT = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=model.device)
            mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
            config.max_new_tokens = limit
            processors = [] if processor is None else [processor(width)]
            output_BT = write(
                input_ids=ids_BT, attention_mask=mask_BT, generation_config=config, logits_processor=processors
            )
            for i, row in zip(part, output_BT[:, width:].tolist(), strict=True):
                written[i] = row
    return written
