"""Hidden words, guessed by a public causal language model that reads what was left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from doppel.errors import UserError
from doppel.metrics.text_featurizer import FeaturizerError, load_judge
from doppel.redaction.mask import Redacted, key_of

_GUESSES, _TOKENS_OF_A_WORD, _AROUND = 10, 4, 64


@dataclass(frozen=True)
class Guessed:
    """How many masks a model has guessed.

    Attributes:
        num_masks: Masks; a run of hidden words is one.
        top_1: Share of them whose first word is the model's best guess.
        top_10: Share of them whose first word is among its ten.
    """

    num_masks: int
    top_1: float
    top_10: float

    def as_dict(self) -> dict[str, float | int]:
        """Plain values."""
        return {"num_masks": self.num_masks, "top_1": round(self.top_1, 4), "top_10": round(self.top_10, 4)}


class Reconstructor:
    """Guesses the first word of each mask of a text.

    The ten likeliest words after what stands before the mask are the candidates: the ten likeliest first tokens, each
    completed to a word greedily. They are ranked by the likelihood of the word and of what stands behind the mask up to
    the next one. Other masks before it are left out of what the model reads. A model of masked words, or one that has
    learnt from text of this kind, may guess more: the shares are lower bounds of what can be guessed.

    Args:
        folder: A causal language model with its tokenizer, of public text.

    Raises:
        UserError: It cannot be loaded.
    """

    def __init__(self, folder: str | Path) -> None:
        from transformers import AutoModelForCausalLM

        try:
            model, tokenizer = load_judge(str(folder), AutoModelForCausalLM)
        except FeaturizerError as error:
            raise UserError(f"no masks can be guessed: {error}") from None
        self._model: Any = model
        self._tokenizer: Any = tokenizer
        self._device = next(model.parameters()).device
        self._start = next(i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if i is not None)
        tokens = [str(tokenizer.decode([token])) for token in range(self._num_tokens)]
        self._begins = torch.tensor([t.startswith(" ") and key_of(t) != "" for t in tokens], device=self._device)
        self._goes_on = [not t[:1].isspace() and key_of(t) != "" for t in tokens]

    @property
    def _num_tokens(self) -> int:
        return int(self._model.get_output_embeddings().weight.shape[0])

    def measure(self, redacted: Sequence[Redacted]) -> Guessed:
        """Guess every mask of some texts.

        Args:
            redacted: Texts with masks alone, no pseudonyms.
        """
        right_1 = right_10 = num = 0
        for said in tqdm(redacted, "guessing", unit="text", disable=None):
            for start, stop in _runs(said):
                before = [word for place, word in enumerate(said.words[:start]) if place not in said.hidden]
                rest = range(stop, len(said.words))
                end = next((place for place in rest if place in said.hidden), len(said.words))
                guesses = self.guesses(before, said.words[stop:end])
                truth = key_of(said.words[start])
                num += 1
                right_1 += guesses[:1] == [truth]
                right_10 += truth in guesses
        return Guessed(num, right_1 / max(num, 1), right_10 / max(num, 1))

    @torch.no_grad()
    def guesses(self, before: Sequence[str], behind: Sequence[str]) -> list[str]:
        """Keys of the ten best words between two pieces of text, the best first."""
        text = "".join(f" {word}" for word in before)
        left = [self._start, *self._ids(text)[-_AROUND:]]
        logits = self._logits([left])[0, -1].masked_fill(~self._begins, -torch.inf)
        words = [[token] for token in logits.topk(_GUESSES).indices.tolist()]
        is_open = [True] * len(words)
        for _ in range(_TOKENS_OF_A_WORD - 1):
            best = self._last([left + word for word in words]).argmax(-1).tolist()
            for place, token in enumerate(best):
                is_open[place] = is_open[place] and self._goes_on[token]
                if is_open[place]:
                    words[place].append(token)
            if not any(is_open):
                break
        right = self._ids("".join(f" {word}" for word in behind))[:_AROUND]
        ranked = sorted(zip(self._likelihood(left, words, right), words, strict=True), key=lambda pair: -pair[0])
        return list(dict.fromkeys(key_of(str(self._tokenizer.decode(word))) for _, word in ranked))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return ids

    def _likelihood(self, left: list[int], words: list[list[int]], right: list[int]) -> list[float]:
        """Log likelihood of each word and what is behind it."""
        rows = [[*left, *word, *right] for word in words]
        log_probs = F.log_softmax(self._logits(rows), dim=-1)
        told = [
            log_probs[row, torch.arange(len(left) - 1, len(ids) - 1), torch.tensor(ids[len(left) :])].sum().item()
            for row, ids in enumerate(rows)
        ]
        return [float(value) for value in told]

    def _last(self, rows: list[list[int]]) -> Tensor:
        """Logits behind the end of each row, [rows, V]."""
        ends = torch.tensor([len(row) - 1 for row in rows], device=self._device)
        return self._logits(rows)[torch.arange(len(rows), device=self._device), ends]

    def _logits(self, rows: list[list[int]]) -> Tensor:
        """Logits of rows that begin alike, padded behind their ends, [rows, T, V]."""
        width = max(map(len, rows))
        ids = torch.tensor([row + [self._start] * (width - len(row)) for row in rows], device=self._device)
        logits: Tensor = self._model(input_ids=ids).logits.float()
        return logits


def _runs(said: Redacted) -> list[tuple[int, int]]:
    """Runs of masked words, each from its first to behind its last."""
    places = sorted(said.masked)
    starts = [place for place in places if place - 1 not in said.masked]
    stops = [place + 1 for place in places if place + 1 not in said.masked]
    return list(zip(starts, stops, strict=True))
