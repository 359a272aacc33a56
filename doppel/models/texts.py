"""Texts as token ids, in batches by length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

#: Most tokens of a text that is judged.
MAX_LENGTH = 1024


def first_of_all(tokenizer: Any) -> list[int]:
    """Return the begin of text where a tokenizer puts it at place 0 by itself, as those of Llama 3 and Gemma do."""
    begin, plain = (tokenizer("a", add_special_tokens=added)["input_ids"][:1] for added in (True, False))
    return begin if begin == [tokenizer.bos_token_id] != plain else []


def longest_text(model: Any, most: int = MAX_LENGTH) -> int:
    """Return the number of tokens that a model can read, at most ``most``."""
    return min(most, getattr(model.config, "max_position_embeddings", None) or most)


def token_ids(tokenizer: Any, texts: Sequence[str], limit: int | None = None, special: bool = False) -> list[list[int]]:
    """Return ids of each text, cut to ``limit``; what looks like a special token in a text is plain text.

    Args:
        tokenizer: Of the model.
        texts: Texts.
        limit: Most tokens of each.
        special: Whether the tokenizer adds what the model expects around a text.
    """
    if not texts:
        return []
    cut = {} if limit is None else {"truncation": True, "max_length": limit}
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=special, split_special_tokens=True, **cut)[
        "input_ids"
    ]
    return ids


def by_length(rows: Sequence[Sequence[int]], tokens_per_batch: int, what: str | None) -> Iterator[list[int]]:
    """Yield places of rows in batches of so many padded tokens, longest rows first, so that there is little padding.

    Args:
        rows: Ids of each text.
        tokens_per_batch: Padded tokens of a batch; one row may have more.
        what: What a progress bar counts; None: there is no bar.
    """
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]), reverse=True)
    off = None if what else True
    with tqdm(total=len(rows), desc=f"   {what}", unit="text", leave=False, disable=off) as bar:
        while order:
            num = max(1, tokens_per_batch // max(1, len(rows[order[0]])))
            batch, order = order[:num], order[num:]
            yield batch
            bar.update(len(batch))


def padded(rows: Sequence[Sequence[int]], fill: int = 0) -> tuple[Tensor, Tensor]:
    """Return ids of rows, filled on the right, and where they are no filling: both [B, T]."""
    lengths_B1 = torch.tensor([[len(row)] for row in rows])
    width = int(lengths_B1.max())
    ids_BT = torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
    return ids_BT, torch.arange(width) < lengths_B1
