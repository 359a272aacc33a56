"""Turns texts into vectors with any Hugging Face model, from a folder or from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from doppel.errors import UserError
from doppel.made_models import how_to_make

_MAX_LENGTH = 1024


class FeaturizerError(UserError):
    """The model that turns texts into features cannot be loaded."""


def load_judge(name: str, kind: Any) -> tuple[Any, Any]:
    """A model that judges texts, in float32 and evaluation mode, on a GPU where there is one; and its tokenizer.

    Args:
        name: Model folder or hub name.
        kind: Class of transformers that loads it, such as ``AutoModel``.

    Raises:
        FeaturizerError: Neither a readable model folder nor a hub name that can be reached.
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging as hf_logging

    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    folder = Path(name).expanduser()
    if (command := how_to_make(folder)) is not None:
        raise FeaturizerError(f"featurizer {name}: {command}")
    if looks_local and not folder.is_dir():
        raise FeaturizerError(f"featurizer {name}: no such folder; give a model folder or a hub name")
    source = str(folder) if folder.is_dir() else name
    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = kind.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise FeaturizerError(
            f"featurizer {name}: cannot be loaded ({type(error).__name__}); give a folder with "
            "config.json, weights and tokenizer, or a hub name that this machine can reach"
        ) from error
    finally:
        if bars:
            hf_logging.enable_progress_bar()
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer


class TextFeaturizer:
    """Features of texts by a Hugging Face model: the last layer's state of their last token, or a sentence vector.

    ``mauve-text`` takes the last token too; unlike that package any architecture and any local folder will do. The
    model is loaded at first use and runs in evaluation mode, in float32, on a GPU where there is one. Texts are cut to
    1,024 tokens, less where the model's context is shorter. Equal texts are read once.

    Args:
        model: local folder or hub name of any model that ``AutoModel`` loads.
        tokens_per_batch: padded tokens in one forward pass.
        pooling: ``mean`` takes the mean over a text's tokens, of length 1, which is what a sentence encoder was
            trained for.
    """

    def __init__(
        self, model: str | Path, tokens_per_batch: int = 8192, pooling: Literal["last", "mean"] = "last"
    ) -> None:
        self.name = str(model)
        self.tokens_per_batch = tokens_per_batch
        self.pooling = pooling
        self._features: dict[str, Tensor] = {}
        self._loaded: tuple[Any, Any] | None = None

    def load(self) -> tuple[Any, Any]:
        """Model and tokenizer, loaded once.

        Raises:
            FeaturizerError: See :func:`load_judge`.
        """
        if self._loaded is None:
            from transformers import AutoModel

            self._loaded = load_judge(self.name, AutoModel)
        return self._loaded

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Features of texts, on the CPU, in the order of the texts.

        Args:
            texts: texts; one without any token is represented by the model's end-of-text token.

        Returns:
            float32 tensor of shape [num_texts, hidden].
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._features]
        if new:
            self._features |= dict(zip(new, self._read(new), strict=True))
        return torch.stack([self._features[text] for text in texts]) if texts else torch.empty(0, 0)

    def _read(self, texts: Sequence[str]) -> list[Tensor]:
        """Features of texts, longest first, so that a batch needs little padding; in the order of the texts."""
        model, tokenizer = self.load()
        context = getattr(model.config, "max_position_embeddings", None)
        limit = min(value for value in (_MAX_LENGTH, tokenizer.model_max_length, context) if value)
        filler = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.unk_token_id or 0
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        encoded = tokenizer(list(texts), split_special_tokens=True, truncation=True, max_length=limit)["input_ids"]
        ids = [tokens or [filler] for tokens in encoded]

        features = [torch.empty(0)] * len(ids)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
        with (
            tqdm(total=len(ids), desc="   features", unit="text", leave=False, disable=None) as bar,
            torch.inference_mode(),
        ):
            while order:
                width = len(ids[order[0]])
                rows = max(1, self.tokens_per_batch // width)
                batch, order = order[:rows], order[rows:]
                rows_of_ids = [torch.tensor(ids[index]) for index in batch]
                input_ids = pad_sequence(rows_of_ids, batch_first=True, padding_value=pad)
                mask = pad_sequence([torch.ones_like(row) for row in rows_of_ids], batch_first=True)
                for index, feature in zip(batch, self._states(model, input_ids, mask), strict=True):
                    features[index] = feature
                bar.update(len(batch))
        return features

    def _states(self, model: Any, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        device = next(model.parameters()).device
        mask_BT = mask_BT.to(device)
        hidden_BTD = model(input_ids=ids_BT.to(device), attention_mask=mask_BT).last_hidden_state
        if self.pooling == "mean":
            return F.normalize((hidden_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True), dim=1).cpu()
        last_B = mask_BT.sum(1) - 1
        return hidden_BTD[torch.arange(len(last_B), device=last_B.device), last_B].cpu()
