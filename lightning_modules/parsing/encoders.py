"""The source encoders: any of Hugging Face, trained along or fixed, or token embeddings of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from doppel.errors import UserError
from doppel.models.encoders import minilm
from doppel.models.load import has_weights, load_model, load_tokenizer
from lightning_modules.parsing.attention import sinusoids
from lightning_modules.parsing.source_encoder import EncoderArguments, SourceBatch, SourceEncoder

#: Of embeddings that no model gives.
_WIDTH = 256


def make_encoder(arguments: EncoderArguments, load_weights: bool) -> SourceEncoder:
    """Build the encoder that the arguments name, with pretrained weights, if they are fixed, or are asked for.

    Raises:
        UserError: There is no such encoder.
    """
    if arguments.name == "small":
        if not arguments.trainable or arguments.num_layers < 1:
            raise UserError(
                "encoder: small has no features of its own: set trainable to true and num_layers to 2 or more, "
                f"or take another encoder; got {arguments}"
            )
        return SmallEncoder(arguments.tokenizer)
    return HuggingFaceEncoder(
        arguments.name, arguments.trainable, arguments.num_frozen_layers, load_weights or not arguments.trainable
    )


class SmallEncoder(SourceEncoder):
    """Embeddings of byte-pair tokens with positions, for machines without a hub; the layers on top are the parser's.

    If a model lies in the tokenizer's folder, its token embeddings are the start.
    """

    def __init__(self, tokenizer: str) -> None:
        super().__init__()
        self.tokenizer = load_tokenizer(tokenizer)
        if has_weights(tokenizer):
            start = load_model(tokenizer, kind="encoder").get_input_embeddings().state_dict()["weight"]
        else:
            start = torch.randn(len(self.tokenizer), _WIDTH) * _WIDTH**-0.5
        self.embedding = nn.Embedding.from_pretrained(start.clone(), freeze=False)
        self.norm = nn.LayerNorm(start.shape[1])
        self.size = start.shape[1]

    def special_ids(self) -> tuple[list[int], list[int]]:
        """Return the tokenizer's first token, alone at the start."""
        return [self.tokenizer.bos_token_id or 0], []

    def features(self, batch: SourceBatch) -> Tensor:
        """Compute normalised embeddings with positions."""
        embedded_BLD: Tensor = self.norm(self.embedding(batch.ids))
        return embedded_BLD + sinusoids(batch.ids.shape[1], self.size, embedded_BLD.device)


class HuggingFaceEncoder(SourceEncoder):
    """An encoder from a folder, from the hub, or from a package (``minilm``).

    Fixed features are the mean over all layers (Zhou et al., 2022). A trainable encoder gives its last layer. Its token
    embeddings stay as they are, because the training utterances touch few of them.

    Args:
        name: As of :class:`EncoderArguments`; likewise ``trainable`` and ``num_frozen_layers``.
        load_weights: Whether to load the weights, or only the architecture, for a checkpoint that holds them.

    Raises:
        UserError: There is no such encoder.
    """

    def __init__(
        self, name: str, trainable: bool = True, num_frozen_layers: int = 0, load_weights: bool = True
    ) -> None:
        super().__init__()
        place = minilm() if name == "minilm" else name
        self.tokenizer = load_tokenizer(place)
        init: Literal["pretrained", "random"] = "pretrained" if load_weights else "random"
        model: Any = load_model(place, init, dropout=0.0, kind="encoder")  # the parser drops out its output
        if getattr(model, "pooler", None) is not None:
            model.pooler = None  # never used: it would take part in the optimiser
        self.model = model
        self.size = int(model.config.hidden_size)
        self.is_frozen = not trainable
        self.max_length: int = getattr(model.config, "max_position_embeddings", 512) - 4
        model.requires_grad_(trainable)
        model.get_input_embeddings().requires_grad_(False)
        if num_frozen_layers:
            _freeze(model, num_frozen_layers)

    def tokenize(self, pieces: Sequence[str]) -> list[list[int]]:
        """Return word pieces of each piece; those beyond the encoder's positions are left out."""
        tokens, room = super().tokenize(pieces), self.max_length
        for number, ids in enumerate(tokens):
            tokens[number] = ids[:room]
            room -= len(tokens[number])
        return tokens

    def special_ids(self) -> tuple[list[int], list[int]]:
        """Return the tokenizer's marks of a sentence's start and end."""
        t = self.tokenizer
        first = t.bos_token_id if t.cls_token_id is None else t.cls_token_id
        last = t.eos_token_id if t.sep_token_id is None else t.sep_token_id
        return [first or 0], [last or 0]

    def train(self, mode: bool = True) -> HuggingFaceEncoder:
        """Switch modes, but keep fixed features without dropout."""
        super().train(mode)
        if self.is_frozen:
            self.model.eval()
        return self

    def features(self, batch: SourceBatch) -> Tensor:
        """Return the last layer, or the mean over all layers without a gradient.

        A batch is as wide as its longest utterance. On a CPU, rows of similar length go through the encoder together,
        each part as wide as it must be.
        """
        num_rows, width = batch.ids.shape
        num_parts = min(max(num_rows // 24, 1), 6) if batch.ids.device.type == "cpu" else 1
        lengths_B = batch.token_mask.sum(1)
        order_B = lengths_B.argsort()
        parts = []
        for rows in order_B.tensor_split(num_parts):
            widest = int(lengths_B[rows].max())
            hidden_BLD = self._hidden(batch.ids[rows, :widest], batch.token_mask[rows, :widest].long())
            parts.append(nn.functional.pad(hidden_BLD, (0, 0, 0, width - widest)))
        return torch.cat(parts)[order_B.argsort()]

    def _hidden(self, ids_BL: Tensor, mask_BL: Tensor) -> Tensor:
        if not self.is_frozen:
            last: Tensor = self.model(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
            return last
        with torch.no_grad():
            output = self.model(input_ids=ids_BL, attention_mask=mask_BL, output_hidden_states=True)
            return torch.stack(list(output.hidden_states[1:])).mean(0)


def _freeze(model: Any, num_layers: int) -> None:
    """Freeze everything outside the stack of layers, and its lowest layers."""
    depth = model.config.num_hidden_layers
    stacks = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
    if not stacks or num_layers > depth:
        raise UserError(f"encoder.num_frozen_layers is {num_layers}, but {type(model).__name__} has {depth} layers")
    model.requires_grad_(False)
    for layer in list(stacks[0])[num_layers:]:
        layer.requires_grad_(True)
