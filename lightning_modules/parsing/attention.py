"""Building blocks of the parser's Transformer layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoids(num_positions: int, size: int, device: torch.device, first: int = 0) -> Tensor:
    """Return position vectors [num_positions, size] from position ``first`` on (Vaswani et al., 2017, section 3.5)."""
    positions = torch.arange(first, first + num_positions, device=device, dtype=torch.float32)
    rates = torch.exp(torch.arange(0, size, 2, device=device, dtype=torch.float32) * (-math.log(10_000.0) / size))
    angles = positions.unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :size]


class RowDropout(nn.Module):
    """Dropout whose mask is the same at all positions of a row (Gal and Ghahramani, 2016).

    Drawing a mask for every position takes a fifth of a training step on a CPU.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Drop features of each row, in training alone."""
        if not self.training or self.probability == 0:
            return x_BTD
        kept = torch.rand(len(x_BTD), 1, x_BTD.shape[2], device=x_BTD.device) >= self.probability
        return x_BTD * (kept.to(x_BTD.dtype) / (1 - self.probability))


class Attention(nn.Module):
    """Multi-head attention in parts, so that keys can be kept and scores be looked at."""

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)
        self.output = nn.Linear(size, size)

    def queries(self, x_BTD: Tensor) -> Tensor:
        """Return queries [B, H, T, D_h]."""
        return self._heads(self.query(x_BTD))

    def keys_values(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H, T, D_h]."""
        keys, values = self.key_value(x_BTD).chunk(2, dim=2)
        return self._heads(keys), self._heads(values)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Return mixed values [B, T, D]; ``mask`` is true where a query may look."""
        mixed = F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=is_causal)
        result: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(2, (self.num_heads, -1)).transpose(1, 2)


def feed_forward(size: int, inner_size: int, dropout: float) -> nn.Sequential:
    """Apply two linear maps with a GELU between them."""
    return nn.Sequential(nn.Linear(size, inner_size), nn.GELU(), RowDropout(dropout), nn.Linear(inner_size, size))


class EncoderLayer(nn.Module):
    """Pre-norm Transformer layer over the pieces of the source."""

    def __init__(self, size: int, num_heads: int, inner_size: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(size, num_heads)
        self.feed_forward = feed_forward(size, inner_size, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.dropout = RowDropout(dropout)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Return vectors of the same shape; ``mask_BS`` is true where there is a piece."""
        normed = self.norms[0](x_BSD)
        queries, (keys, values) = self.attention.queries(normed), self.attention.keys_values(normed)
        x_BSD = x_BSD + self.dropout(self.attention(queries, keys, values, mask_BS[:, None, None, :]))
        result: Tensor = x_BSD + self.dropout(self.feed_forward(self.norms[1](x_BSD)))
        return result
