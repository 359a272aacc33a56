"""A causal language model in a folder, such as ``models/base``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppel.errors import UserError
from doppel.evolution.generators.answers import Answers
from doppel.evolution.generators.wording import Question

#: Likeliest tokens in which a nucleus is looked for first: ranking a large vocabulary costs as much as a small model.
_RANKED = 2048


class FolderModel:
    """Answers with what a model writes on from a question.

    Questions of a batch are padded on the left. What is padded is masked, and positions count from the first token that
    is none, so that an answer does not depend on who is beside it. Each answer has a random stream of its own.

    Args:
        folder: Model and tokenizer as Hugging Face saves them.
        temperature: Divides the logits.
        top_p: Probability mass of the nucleus that is sampled from.
        max_new_tokens: Longest answer.
        batch_size: Questions that go through the model together.
        device: Where it runs; None: on a GPU where there is one.

    Raises:
        UserError: There is no such model.
    """

    def __init__(
        self,
        folder: str | Path,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 64,
        batch_size: int = 64,
        device: str | None = None,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
            model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise UserError(
                f"cannot load it as a causal language model with its tokenizer ({str(error).splitlines()[0]}): give "
                "evolution.generator a folder that transformers loads",
                about=folder,
            ) from None
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._model = model.to(self._device).eval()
        self._temperature, self._top_p = temperature, top_p
        self._max_new_tokens, self._batch_size = max_new_tokens, batch_size
        self._longest = int(getattr(model.config, "max_position_embeddings", 1 << 20)) - max_new_tokens
        if self._longest < 1:
            raise UserError(
                f"evolution.max_new_tokens is {max_new_tokens}: the model has too few positions", about=folder
            )

    def answer(self, questions: Sequence[Question], answers: Answers) -> None:
        """Answer in batches of questions of about one length; the answers of a batch are kept when it is whole."""
        rows = [self._tokenizer(question.words, add_special_tokens=False)["input_ids"] for question in questions]
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        for start in range(0, len(order), self._batch_size):
            places = order[start : start + self._batch_size]
            texts = self.write([rows[place] for place in places], [questions[place].stream for place in places])
            for place, text in zip(places, texts, strict=True):
                answers.add(questions[place], text, calls=1)

    @torch.no_grad()
    def write(self, rows: Sequence[Sequence[int]], streams: Sequence[str]) -> list[str]:
        """What the model writes on from rows of tokens.

        Args:
            rows: Token ids of each; of one that is too long the end.
            streams: Name of the random stream of each.
        """
        kept = [list(row[-self._longest :]) or [self._start] for row in rows]
        width = max(map(len, kept))
        ids = torch.tensor([[self._pad] * (width - len(row)) + row for row in kept], device=self._device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in kept], device=self._device)
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        draws = [_stream(name) for name in streams]
        written: list[list[int]] = [[] for _ in kept]
        is_open, cache = np.ones(len(kept), dtype=bool), None
        for _ in range(self._max_new_tokens):
            out = self._model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            )
            cache = out.past_key_values
            tokens = self._draw(out.logits[:, -1].float().cpu(), draws)
            for row in np.flatnonzero(is_open):
                is_open[row] = tokens[row] != self._end
                if is_open[row]:
                    written[row].append(tokens[row])
            if not is_open.any():
                break
            ids = torch.tensor(tokens, device=self._device)[:, None]
            mask = torch.cat([mask, mask.new_ones(len(kept), 1)], dim=1)
            positions = positions[:, -1:] + 1
        return [str(self._tokenizer.decode(row, skip_special_tokens=True)) for row in written]

    def _draw(self, logits_BV: Tensor, draws: Sequence[np.random.Generator]) -> list[int]:
        """A token for each row, by a number of its own stream: the first whose cumulative probability passes it."""
        shares = torch.softmax(logits_BV.double() / self._temperature, dim=-1)
        if self._top_p < 1:
            ranked, order = shares.topk(min(_RANKED, shares.shape[1]), dim=-1)  # a nucleus is rarely larger
            if (ranked.sum(-1) < self._top_p).any():
                ranked, order = shares.sort(dim=-1, descending=True)
            ranked[ranked.cumsum(-1) - ranked >= self._top_p] = 0.0
            shares = torch.zeros_like(shares).scatter_(-1, order, ranked)
        ends = shares.cumsum(-1)
        points = torch.tensor([draw.random() for draw in draws], dtype=torch.float64)[:, None] * ends[:, -1:]
        return torch.searchsorted(ends, points, right=True).squeeze(1).clamp_max(shares.shape[1] - 1).tolist()

    @property
    def _end(self) -> int | None:
        return self._tokenizer.eos_token_id

    @property
    def _start(self) -> int:
        """What an empty question is to the model."""
        tokenizer = self._tokenizer
        return next(i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if i is not None)

    @property
    def _pad(self) -> int:
        return self._start if self._tokenizer.pad_token_id is None else self._tokenizer.pad_token_id


def _stream(name: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=int.from_bytes(hashlib.sha256(name.encode()).digest()[:16])))
