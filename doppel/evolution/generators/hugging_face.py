"""A causal language model in a folder, such as ``models/base``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig

from doppel.decoding.decode import DrawingRule, Request, decode, longest_decodable
from doppel.decoding.generate import generate
from doppel.errors import UserError
from doppel.evolution.generators.answers import Answers
from doppel.evolution.generators.wording import Question
from doppel.models.faults import ModelError
from doppel.models.judges import first_token
from doppel.models.load import load_with_tokenizer
from doppel.models.texts import first_of_all

#: Times ``batch_size`` texts are written before any of them is kept.
_KEPT_TOGETHER = 8


class FolderModel:
    """Answers with what a model writes on from a question.

    Each answer has a random stream of its own, and does not depend on who is beside it, as far as
    :func:`~doppel.decoding.decode.longest_decodable` says of the model; what is longer has one stream for all that are
    written together.

    Args:
        folder: Model and tokenizer as Hugging Face saves them.
        temperature: Divides the logits.
        top_p: Probability mass of the nucleus that is sampled from.
        max_new_tokens: Longest answer.
        batch_size: Questions that go through the model together.

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
    ) -> None:
        try:
            self._model, self._tokenizer = load_with_tokenizer(folder)
            self._start, self._first = first_token(self._tokenizer), first_of_all(self._tokenizer)
        except ModelError as error:
            raise UserError(f"evolution.generator: {error}") from None
        self._rule = DrawingRule(0, top_p, temperature, (), self._tokenizer.eos_token_id)
        self._max_new_tokens, self._batch_size = max_new_tokens, batch_size
        self._longest = int(getattr(self._model.config, "max_position_embeddings", 1 << 20)) - max_new_tokens
        self._longest -= len(self._first)
        if self._longest < 1:
            raise UserError(
                f"evolution.max_new_tokens is {max_new_tokens}: the model has too few positions", about=folder
            )

    def answer(self, questions: Sequence[Question], answers: Answers) -> None:
        """Answer some questions at a time, of about one length; they are kept when all of these are answered."""
        words = [question.words for question in questions]
        rows = self._tokenizer(words, add_special_tokens=False)["input_ids"]  # a wording may hold special tokens
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        step = self._batch_size * _KEPT_TOGETHER
        for start in range(0, len(order), step):
            places = order[start : start + step]
            texts = self.write([rows[place] for place in places], [questions[place].stream for place in places])
            for place, text in zip(places, texts, strict=True):
                answers.add(questions[place], text, calls=1)

    def write(self, rows: Sequence[Sequence[int]], streams: Sequence[str]) -> list[str]:
        """Generate the model's continuations of rows of tokens.

        Args:
            rows: Token ids of each; of one that is too long the end.
            streams: Name of the random stream of each.
        """
        requests = [
            Request(self._begun(row[-self._longest :]), self._max_new_tokens, _stream(name))
            for row, name in zip(rows, streams, strict=True)
        ]
        longest = longest_decodable(self._model)
        is_own = [request.num_tokens <= longest for request in requests]
        own = iter(decode(self._model, list(compress(requests, is_own)), self._rule, self._batch_size))
        others = [not short for short in is_own]
        rest = iter(self._generate(list(compress(requests, others)), " ".join(compress(streams, others))))
        written = [next(own if short else rest) for short in is_own]
        return [str(self._tokenizer.decode(ids, skip_special_tokens=True)) for ids in map(self._text, written)]

    def _begun(self, row: Sequence[int]) -> list[int]:
        """Put the begin of text before a row where the tokenizer would; a wording may have put it there."""
        first = self._first if list(row[:1]) != self._first else []
        return [*first, *row] or [self._start]

    def _text(self, ids: list[int]) -> list[int]:
        end = self._rule.eos_id
        return ids[: ids.index(end)] if end in ids else ids

    def _generate(self, requests: Sequence[Request], stream: str) -> list[list[int]]:
        rule, model = self._rule, self._model
        model.generation_config = GenerationConfig()  # none of the model's own decoding defaults
        config = GenerationConfig(
            do_sample=True,
            top_k=rule.top_k,
            top_p=rule.top_p,
            temperature=rule.temperature,
            eos_token_id=rule.eos_id,
            pad_token_id=self._start,
        )
        with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
            torch.manual_seed(int(_stream(stream).integers(1 << 63)))
            return generate(model, requests, config, self._batch_size)


def _stream(name: str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=int.from_bytes(hashlib.sha256(name.encode()).digest()[:16])))
