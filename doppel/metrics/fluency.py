"""How well a language model of public text expects texts, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from doppel.models.judges import first_token
from doppel.models.load import load_with_tokenizer
from doppel.models.texts import by_length, longest_text, padded, token_ids


class LanguageModel:
    """A causal language model that reads each text once: its loss, and the features of it that MAUVE compares.

    A text stands as a document does in the training of most such models: behind the token between two documents. The
    model is loaded at first use, runs in float32 and evaluation mode, and must have learnt from public text alone,
    else its losses leak what it learnt from. Texts are cut to 1,024 tokens, less where its context is shorter.

    Args:
        model: Folder or hub name of any model that ``AutoModelForCausalLM`` loads.
        tokens_per_batch: Padded tokens in one forward pass.
    """

    def __init__(self, model: str | Path, tokens_per_batch: int = 1024) -> None:
        self.name = str(model)
        self.tokens_per_batch = tokens_per_batch
        self._loaded: tuple[Any, Any] | None = None
        self._read: dict[str, tuple[float, Tensor]] = {}

    def nats(self, texts: Sequence[str]) -> list[float]:
        """Return the negative log-likelihood of each text: the sum over its tokens, in nats; 0 of an empty one.

        Raises:
            ModelError: The model cannot be loaded.
        """
        self._read_new(texts)
        return [self._read[text][0] for text in texts]

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Features of texts: the last layer's hidden state of their last token; [num_texts, hidden].

        Raises:
            ModelError: The model cannot be loaded.
        """
        self._read_new(texts)
        return torch.stack([self._read[text][1] for text in texts]) if texts else torch.empty(0, 0)

    @torch.inference_mode()
    def _read_new(self, texts: Sequence[str]) -> None:
        """Read the texts that were not read before."""
        new = [text for text in dict.fromkeys(texts) if text not in self._read]
        if not new:
            return
        if self._loaded is None:
            self._loaded = load_with_tokenizer(self.name)
        model, tokenizer = self._loaded
        first = first_token(tokenizer)
        rows = [[first, *ids] for ids in token_ids(tokenizer, new, longest_text(model) - 1)]
        for places in by_length(rows, self.tokens_per_batch, "texts read"):
            ids_BT, is_text_BT = padded([rows[place] for place in places])  # causal attention looks left
            found = model(input_ids=ids_BT.to(model.device), use_cache=False, output_hidden_states=True)
            logits_NV = found.logits[:, :-1].flatten(0, 1).float()
            nll_N = F.cross_entropy(logits_NV, ids_BT[:, 1:].to(model.device).flatten(), reduction="none")
            nats_B = (nll_N.cpu().view(len(places), -1) * is_text_BT[:, 1:]).sum(1).tolist()
            states_BD = found.hidden_states[-1].cpu()[torch.arange(len(places)), is_text_BT.sum(1) - 1]
            texts_read = zip(places, nats_B, states_BD, strict=True)
            self._read |= {new[place]: (nats, state.clone()) for place, nats, state in texts_read}
