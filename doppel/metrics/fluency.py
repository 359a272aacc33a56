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
from doppel.models.text_reader import Keep, TextReader
from doppel.models.texts import by_length, longest_text, padded, token_ids


class LanguageModel(TextReader):
    """A causal language model that reads each text once: its loss, and the features of it that MAUVE compares.

    A text stands as a document does in the training of most such models: behind the token between two documents. The
    model is loaded at first use, runs in float32 and evaluation mode, and must have learnt from public text alone,
    else its losses leak what it learnt from. Texts are cut to 1,024 tokens, less where its context is shorter.

    Args:
        model: Folder or hub name of any model that ``AutoModelForCausalLM`` loads.
        tokens_per_batch: Padded tokens in one forward pass.
        keep: See :data:`~doppel.models.text_reader.Keep`.
    """

    counted = "texts read"

    def __init__(
        self,
        model: str | Path,
        tokens_per_batch: int = 1024,
        keep: Keep | None = None,
    ) -> None:
        super().__init__(model, tokens_per_batch, keep)

    def load(self) -> tuple[Any, Any]:
        """See :meth:`.TextReader.load`."""
        if self._loaded is None:
            self._loaded = load_with_tokenizer(self.name)
        return self._loaded

    def nats(self, texts: Sequence[str]) -> list[float]:
        """Return the negative log-likelihood of each text: the sum over its tokens, in nats; 0 of an empty one.

        Raises:
            ModelError: The model cannot be loaded.
        """
        return [float(row[0]) for row in self.known(texts)]

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Features of texts: the last layer's hidden state of their last token; [num_texts, hidden].

        Raises:
            ModelError: The model cannot be loaded.
        """
        return torch.stack([row[1:] for row in self.known(texts)]) if texts else torch.empty(0, 0)

    @torch.inference_mode()
    def read(self, texts: Sequence[str], *, bar: bool = True) -> Tensor:
        """Loss and features of each text, [num_texts, 1 + hidden]; see :meth:`.TextReader.read`."""
        model, _ = self.load()
        rows, read_ND = self._rows(texts), torch.empty(0)
        for places in by_length(rows, self.tokens_per_batch, self.counted if bar else None):
            ids_BT, is_text_BT = padded([rows[place] for place in places])  # causal attention looks left
            found = model(input_ids=ids_BT.to(model.device), use_cache=False, output_hidden_states=True)
            logits_NV = found.logits[:, :-1].flatten(0, 1).float()
            nll_N = F.cross_entropy(logits_NV, ids_BT[:, 1:].to(model.device).flatten(), reduction="none")
            nats_B = (nll_N.cpu().view(len(places), -1) * is_text_BT[:, 1:]).sum(1)
            states_BD = found.hidden_states[-1].cpu()[torch.arange(len(places)), is_text_BT.sum(1) - 1]
            read_BD = torch.cat([nats_B[:, None], states_BD.float()], dim=1)
            read_ND = read_ND if len(read_ND) else read_BD.new_empty(len(rows), read_BD.shape[1])
            read_ND[places] = read_BD
        return read_ND

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        model, tokenizer = self.load()
        first = first_token(tokenizer)
        return [[first, *ids] for ids in token_ids(tokenizer, texts, longest_text(model) - 1)]

    def _told(self) -> list[Any]:
        return ["loss and last state"]
