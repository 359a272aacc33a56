"""How well a language model of public text expects texts, and what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from doppel.metrics.text_featurizer import FeaturizerError, load_judge

_MAX_LENGTH = 1024
_BETWEEN_DOCUMENTS = "<|endoftext|>"


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
        """Negative log-likelihood of each text: the sum over its tokens, in nats; 0 of an empty one.

        Raises:
            FeaturizerError: The model cannot be loaded.
        """
        self._read_new(texts)
        return [self._read[text][0] for text in texts]

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Features of texts: the last layer's hidden state of their last token; [num_texts, hidden].

        Raises:
            FeaturizerError: The model cannot be loaded.
        """
        self._read_new(texts)
        return torch.stack([self._read[text][1] for text in texts]) if texts else torch.empty(0, 0)

    @torch.inference_mode()
    def _read_new(self, texts: Sequence[str]) -> None:
        """Read the texts that were not read before, longest first, so that a batch needs little padding."""
        new = [text for text in dict.fromkeys(texts) if text not in self._read]
        if not new:
            return
        if self._loaded is None:
            from transformers import AutoModelForCausalLM

            self._loaded = load_judge(self.name, AutoModelForCausalLM)
        model, tokenizer = self._loaded
        device = next(model.parameters()).device
        first = first_token(tokenizer)
        limit = min(_MAX_LENGTH, getattr(model.config, "max_position_embeddings", None) or _MAX_LENGTH) - 1
        ids = tokenizer(new, add_special_tokens=False, split_special_tokens=True, truncation=True, max_length=limit)[
            "input_ids"
        ]
        rows = {text: torch.tensor([first, *tokens]) for text, tokens in zip(new, ids, strict=True)}
        order = sorted(new, key=lambda text: len(rows[text]), reverse=True)
        with tqdm(total=len(new), desc="   texts read", unit="text", leave=False, disable=None) as bar:
            while order:
                number = max(1, self.tokens_per_batch // len(rows[order[0]]))
                batch, order = order[:number], order[number:]
                ids_BT = pad_sequence([rows[text] for text in batch], batch_first=True)  # causal attention looks left
                length_B = torch.tensor([len(rows[text]) for text in batch])
                found = model(input_ids=ids_BT.to(device), use_cache=False, output_hidden_states=True)
                logits_NV = found.logits[:, :-1].flatten(0, 1).float()
                nll_N = F.cross_entropy(logits_NV, ids_BT[:, 1:].to(device).flatten(), reduction="none")
                is_text_BT = torch.arange(1, ids_BT.shape[1]) < length_B[:, None]
                nats_B = (nll_N.cpu().view_as(is_text_BT) * is_text_BT).sum(1).tolist()
                states_BD = found.hidden_states[-1].cpu()[torch.arange(len(batch)), length_B - 1]
                self._read |= {t: (n, s.clone()) for t, n, s in zip(batch, nats_B, states_BD, strict=True)}
                bar.update(len(batch))


def first_token(tokenizer: Any) -> int:
    """The token before a text.

    Measured on 200 turns of SMCalFlow with SmolLM2-135M-Instruct: behind ``<|endoftext|>`` they cost 6.8 nats a word,
    behind the first token of a chat 7.2.

    Raises:
        FeaturizerError: The tokenizer has none.
    """
    known = tokenizer.get_vocab().get(_BETWEEN_DOCUMENTS)
    found = next((t for t in (known, tokenizer.bos_token_id, tokenizer.eos_token_id) if t is not None), None)
    if found is None:
        raise FeaturizerError(f"the tokenizer of {tokenizer.name_or_path} has no token that begins a text")
    return int(found)
