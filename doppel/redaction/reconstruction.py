"""Hidden words, guessed by a public causal language model that reads what was left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from doppel.errors import UserError
from doppel.models.faults import ModelError
from doppel.models.judges import continuation_log_likelihoods, first_token, logits
from doppel.models.load import load_with_tokenizer
from doppel.models.texts import padded, token_ids
from doppel.redaction.mask import Redacted
from doppel.text.forms import key_of

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
        """Return the fields as plain values."""
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
        try:
            model, tokenizer = load_with_tokenizer(folder)
            self._start = first_token(tokenizer)
        except ModelError as error:
            raise UserError(f"no masks can be guessed: {error}") from None
        self._model: Any = model
        self._tokenizer: Any = tokenizer
        tokens = [str(tokenizer.decode([token])) for token in range(self._num_tokens)]
        self._begins = torch.tensor([t.startswith(" ") and key_of(t) != "" for t in tokens], device=model.device)
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
        """Return keys of the ten best words between two pieces of text, the best first."""
        text = "".join(f" {word}" for word in before)
        left = [self._start, *self._ids(text)[-_AROUND:]]
        next_V = logits(self._model, torch.tensor([left]))[0, -1].masked_fill(~self._begins, -torch.inf)
        words = [[token] for token in next_V.topk(_GUESSES).indices.tolist()]
        is_open = [True] * len(words)
        for _ in range(_TOKENS_OF_A_WORD - 1):
            ids_WT, is_word_WT = padded([left + word for word in words])
            best = logits(self._model, ids_WT)[range(len(words)), is_word_WT.sum(1) - 1].argmax(-1).tolist()
            for place, token in enumerate(best):
                is_open[place] = is_open[place] and self._goes_on[token]
                if is_open[place]:
                    words[place].append(token)
            if not any(is_open):
                break
        right = self._ids("".join(f" {word}" for word in behind))[:_AROUND]
        likelihood_W = continuation_log_likelihoods(self._model, left, [word + right for word in words]).tolist()
        ranked = sorted(zip(likelihood_W, words, strict=True), key=lambda pair: -pair[0])
        return list(dict.fromkeys(key_of(str(self._tokenizer.decode(word))) for _, word in ranked))

    def _ids(self, text: str) -> list[int]:
        return token_ids(self._tokenizer, [text])[0]


def _runs(said: Redacted) -> list[tuple[int, int]]:
    """Runs of masked words, each from its first to behind its last."""
    places = sorted(said.masked)
    starts = [place for place in places if place - 1 not in said.masked]
    stops = [place + 1 for place in places if place + 1 not in said.masked]
    return list(zip(starts, stops, strict=True))
