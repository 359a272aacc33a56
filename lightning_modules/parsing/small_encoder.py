"""Source vectors of our own: embeddings of byte-pair tokens, for machines without a hub."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_modules.backbone.base_models import BaseModelError, load_model, load_tokenizer
from lightning_modules.parsing.positions import sinusoids
from lightning_modules.parsing.source_encoder import SourceBatch, SourceEncoder


class SmallEncoder(SourceEncoder):
    """Token embeddings with positions; the layers on top of them are the parser's.

    Args:
        tokenizer: Folder of a tokenizer; if a causal language model lies there, its token embeddings are the start.
        size: Width where there is no model to take it from.
    """

    def __init__(self, tokenizer: str, size: int = 256) -> None:
        super().__init__()
        self.tokenizer = load_tokenizer(tokenizer)
        try:
            start = load_model(tokenizer).get_input_embeddings().state_dict()["weight"]
        except BaseModelError:
            start = torch.randn(len(self.tokenizer), size) * size**-0.5
        self.embedding = nn.Embedding.from_pretrained(start.clone(), freeze=False)
        self.norm = nn.LayerNorm(start.shape[1])
        self.size = start.shape[1]

    def tokenize(self, pieces: Sequence[str]) -> list[list[int]]:
        """Byte-pair tokens of each piece."""
        ids: list[list[int]] = self.tokenizer(list(pieces), add_special_tokens=False)["input_ids"]
        return ids

    def special_ids(self) -> tuple[list[int], list[int]]:
        """The tokenizer's first token, alone at the start."""
        return [self.tokenizer.bos_token_id or 0], []

    def features(self, batch: SourceBatch) -> Tensor:
        """Normalised embeddings with positions."""
        embedded_BLD: Tensor = self.norm(self.embedding(batch.ids))
        return embedded_BLD + sinusoids(batch.ids.shape[1], self.size, embedded_BLD.device)
