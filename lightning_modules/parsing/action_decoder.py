"""Transformer decoder over graph actions whose attention heads also point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules.parsing.attention import Attention, RowDropout, feed_forward


@dataclass(frozen=True)
class DecoderArguments:
    """Size of the parser.

    Args:
        num_layers: Decoder layers; the paper takes 6.
        size: Width of the decoder and of the parser's own encoder layers.
        num_heads: Attention heads.
        feedforward_size: Width between the two maps of a feed-forward block.
        dropout: Dropout probability.
    """

    num_layers: int = 4
    size: int = 256
    num_heads: int = 4
    feedforward_size: int = 512
    dropout: float = 0.2


@dataclass
class DecoderState:
    """Keys and values of what was decoded so far, for one step at a time.

    Attributes:
        past: Keys and values of each layer, [B, H, T_max, D_h].
        memory: Keys and values of the source in each layer, [B, H, 1 + S, D_h].
        memory_mask: True where a row has a source piece [B, 1 + S].
        length: Positions that are filled.
    """

    past: list[tuple[Tensor, Tensor]]
    memory: list[tuple[Tensor, Tensor]]
    memory_mask: Tensor
    length: int = 0

    def select(self, rows: Tensor) -> None:
        """Keep some rows."""
        self.past = [(k[rows], v[rows]) for k, v in self.past]
        self.memory = [(k[rows], v[rows]) for k, v in self.memory]
        self.memory_mask = self.memory_mask[rows]

    def add(self, layer: int, *newest: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the newest keys and values of a layer; all of its keys and values so far."""
        if self.length == self.past[layer][0].shape[2]:
            self.past = [(F.pad(k, (0, 0, 0, 64)), F.pad(v, (0, 0, 0, 64))) for k, v in self.past]
        for kept, new in zip(self.past[layer], newest, strict=True):
            kept[:, :, self.length] = new[:, :, 0]
        keys, values = self.past[layer]
        return keys[:, :, : self.length + 1], values[:, :, : self.length + 1]


class DecoderOutput(NamedTuple):
    """Hidden states and the scores of the two pointing heads, before their softmax.

    Attributes:
        hidden: Hidden states [B, T, D].
        pointers: Scores of earlier positions [B, T, T_keys].
        copies: Scores of source pieces [B, T, 1 + S].
    """

    hidden: Tensor
    pointers: Tensor
    copies: Tensor


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Scores of the first head [B, T, T_keys]."""
    return (queries[:, 0] @ keys[:, 0].transpose(1, 2)).float() * queries.shape[-1] ** -0.5


class _Layer(nn.Module):
    def __init__(self, a: DecoderArguments) -> None:
        super().__init__()
        self.attention = Attention(a.size, a.num_heads)
        self.source = Attention(a.size, a.num_heads)
        self.feed_forward = feed_forward(a.size, a.feedforward_size, a.dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(a.size) for _ in range(3))
        self.dropout = RowDropout(a.dropout)


class ActionDecoder(nn.Module):
    """Pre-norm Transformer decoder.

    The action pointer is the first head of the last layer's attention to earlier positions, the source copy the first
    head of the attention to the source in the layer before (Zhou et al., 2022, *Online Semantic Parsing for Latency
    Reduction in Task-Oriented Dialogue*): training drives their scores towards the arcs and copies of the oracle.
    """

    def __init__(self, arguments: DecoderArguments) -> None:
        super().__init__()
        self.arguments = arguments
        self.layers = nn.ModuleList(_Layer(arguments) for _ in range(arguments.num_layers))
        self.norm = nn.LayerNorm(arguments.size)
        self.pointer_layer = arguments.num_layers - 1
        self.copy_layer = max(arguments.num_layers - 2, 0)

    def start(self, memory_BSD: Tensor, memory_mask_BS: Tensor) -> DecoderState:
        """Return the state before the first position."""
        memory = [layer.source.keys_values(memory_BSD) for layer in self._layers()]
        past = [(keys[:, :, :0], values[:, :, :0]) for keys, values in memory]
        return DecoderState(past, memory, memory_mask_BS)

    def step(self, x_BD: Tensor, state: DecoderState) -> DecoderOutput:
        """Decode one position; equals the last position of :meth:`forward` over all positions so far."""
        output: DecoderOutput = self(x_BD.unsqueeze(1), state, state.memory_mask)
        state.length += 1
        return output

    def forward(self, x_BTD: Tensor, memory: Tensor | DecoderState, mask_BS: Tensor) -> DecoderOutput:
        """Decode positions, each seeing itself and earlier ones; given a state, the one after those of the state.

        Args:
            x_BTD: Input vectors.
            memory: Source vectors [B, 1 + S, D], or the state.
            mask_BS: True where a row has a source piece.
        """
        mask, state = mask_BS[:, None, None, :], memory if isinstance(memory, DecoderState) else None
        pointers = copies = x_BTD
        for number, layer in enumerate(self._layers()):
            normed = layer.norms[0](x_BTD)
            queries, (keys, values) = layer.attention.queries(normed), layer.attention.keys_values(normed)
            if state is not None:
                keys, values = state.add(number, keys, values)
            if number == self.pointer_layer:
                pointers = _scores(queries, keys)
            x_BTD = x_BTD + layer.dropout(layer.attention(queries, keys, values, is_causal=state is None))
            queries = layer.source.queries(layer.norms[1](x_BTD))
            keys, values = layer.source.keys_values(memory) if isinstance(memory, Tensor) else memory.memory[number]
            if number == self.copy_layer:
                copies = _scores(queries, keys)
            x_BTD = x_BTD + layer.dropout(layer.source(queries, keys, values, mask))
            x_BTD = x_BTD + layer.dropout(layer.feed_forward(layer.norms[2](x_BTD)))
        return DecoderOutput(self.norm(x_BTD), pointers, copies)

    def _layers(self) -> list[_Layer]:
        return cast(list[_Layer], list(self.layers))
