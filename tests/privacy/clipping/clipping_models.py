"""Models of layers that have no rule of their own, each with the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from clipping_reference import (
    Batch,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D


class Scaled(nn.Module):
    """Raw parameters of one's own above layers that have rules, one of them in a list and one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(6, 6), nn.Dropout(0.4)
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 6))
        self.shifts = nn.ParameterList([torch.ones(6), torch.zeros(6)])

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.drop(torch.relu_(self.inner(x * self.scale) + self.shifts[0])) + self.shifts[1]


class WithToken(nn.Module):
    """The model itself has a parameter: a token before the others, and positions by a module without rows."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.ones(1, 1, 6)), Positions()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.layer(x + self.positions(x.shape[1]))


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 9, 6))

    def forward(self, length: int) -> Tensor:
        return self.table[:, :length]


class Attending(nn.Module):
    """Attention with masks that have rows, that have none, and none at all; dropout on the weights."""

    def __init__(self, masks: str, dropout: float = 0.3, **options: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, dropout=dropout, batch_first=True, **options)  # type: ignore[arg-type]
        self.masks = masks

    def forward(self, x: Tensor) -> Tensor:
        num_rows, length = x.shape[:2]
        options = {}
        if "causal" in self.masks:
            options["attn_mask"] = torch.ones(length, length, dtype=torch.bool).triu(1)
        if "rows" in self.masks:
            options["attn_mask"] = (x @ x.mT > 0.5).repeat_interleave(2, 0) & ~torch.eye(length, dtype=torch.bool)
        if "padding" in self.masks:
            options["key_padding_mask"] = (x[..., 0] > 1) & (torch.arange(length) > 0)
        output, weights = self.attention(x, x, x, need_weights="weights" in self.masks, **options)
        return output if weights is None else output + weights.sum((1, 2))[:, None, None]


class Two(nn.Module):
    """A layer used twice, and a weight that two modules and a convolution's transpose share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.conv, self.back = nn.Conv1d(6, 4, 3, padding=1), nn.ConvTranspose1d(4, 6, 3, padding=1)
        self.second.weight, self.back.weight = self.first.weight, nn.Parameter(self.conv.weight.detach())
        self.conv.weight = self.back.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.tanh(self.first(x)))
        return self.back(torch.tanh(self.conv(x.mT))).mT + x


class Again(nn.Module):
    """Layers with fast rules that are called more than once, under a checkpoint too; all but one call by position."""

    def __init__(self, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.linear, self.norm, self.rms, self.conv = nn.Linear(6, 6), nn.LayerNorm(6), nn.RMSNorm(6), Conv1D(6, 6)
        self.once, self.is_checkpointed = nn.Linear(6, 6, bias=False), is_checkpointed
        self.norm.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = checkpoint(self.block, x, use_reentrant=False) if self.is_checkpointed else self.block(x)
        return self.once(x)

    def block(self, x: Tensor) -> Tensor:
        return self.norm(x + self.conv(torch.tanh(self.linear(input=self.rms(x)))))


class Encoding(nn.Module):
    """Words that are embedded twice beside positions of no row, with a tied head and one more that is called once."""

    def __init__(self, num_heads: int, is_twice: bool = True) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 6, padding_idx=0), nn.Linear(6, 7)
        self.places, self.num_heads, self.is_twice = nn.Embedding(5, 6), num_heads, is_twice
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        ids = (x[..., :2] * 3).long().clamp(-3, 3) + 3
        place = torch.arange(x.shape[1])[None]
        h = self.words(ids[..., 0]) + self.places(place)
        if self.is_twice:
            h = h + torch.tanh(self.words(ids[..., 1])) * self.places(place.flip(1))
        for _ in range(self.num_heads):
            h = self.head(h)[..., :6].sin()
        return h


class Cells(nn.Module):
    """A recurrent cell, called for each position."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        state, seen = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            seen.append(state[0] if isinstance(state, tuple) else state)
        return self.head(torch.stack(seen, 1))


class OfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(6, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, input2=x.flip(1))


class Bag(nn.Module):
    """Words of each row, with repeated words, padding and a row without any."""

    def __init__(self, mode: str, is_weighted: bool = False) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(5, 6, mode=mode, padding_idx=0)
        self.head, self.is_weighted = nn.Linear(6, 3), is_weighted

    def forward(self, x: Tensor) -> Tensor:
        ids = (3 * x).round().long().clamp(0, 4)
        return self.head(self.bag(ids, per_sample_weights=x if self.is_weighted else None))


SHAPES = {1: (6, 5), 2: (6, 5, 5), 3: (6, 3, 4, 3)}
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Conv1d": (lambda: nn.Conv1d(6, 4, 3, padding=1), SHAPES[1]),
    "Conv1d, causal": (lambda: nn.Sequential(nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(6, 4, 3, dilation=1)), SHAPES[1]),
    "Conv2d": (lambda: nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2), SHAPES[2]),
    "Conv2d, circular": (lambda: nn.Conv2d(6, 4, 3, padding="same", padding_mode="circular", bias=False), SHAPES[2]),
    "Conv3d": (lambda: nn.Conv3d(6, 2, 2), SHAPES[3]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(6, 2, 3), SHAPES[2]),
    "GroupNorm": (lambda: nn.Sequential(nn.Conv2d(6, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(inplace=False)), SHAPES[2]),
    "InstanceNorm": (lambda: nn.InstanceNorm2d(6, affine=True), SHAPES[2]),
    "PReLU": (lambda: nn.Sequential(nn.Linear(6, 6), nn.PReLU(5), nn.PReLU()), (5, 6)),
    "Bilinear": (OfTwo, (5, 6)),
    "EmbeddingBag, sum": (lambda: Bag("sum", is_weighted=True), (6,)),
    "EmbeddingBag, mean": (lambda: Bag("mean"), (6,)),
    "EmbeddingBag, max": (lambda: Bag("max"), (6,)),
    "attention": (lambda: Attending(""), (5, 6)),
    "attention, weights": (lambda: Attending("weights padding"), (5, 6)),
    "attention, causal": (lambda: Attending("causal padding", bias=False), (5, 6)),
    "attention, as many positions as rows": (lambda: Attending("causal padding"), (6, 6)),
    "attention, masks of rows": (lambda: Attending("rows", add_bias_kv=True), (5, 6)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), (5, 6)),
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(6, 2, 8, norm_first=True, batch_first=True), 2, None, False
        ),
        (5, 6),
    ),
    "own module": (Scaled, (5, 6)),
    "own model": (WithToken, (5, 6)),
    "called twice and shared": (Two, (5, 6)),
    "fast, called again": (Again, (5, 6)),
    "fast, called again, checkpointed": (lambda: Again(is_checkpointed=True), (5, 6)),
    "embedding called twice, tied": (lambda: Encoding(1), (5, 6)),
    "embedding called twice, its head never": (lambda: Encoding(0), (5, 6)),
    "head called twice, tied": (lambda: Encoding(2, is_twice=False), (5, 6)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), (5, 6)),
    "LSTM cells": (lambda: Cells(nn.LSTMCell(6, 5)), (4, 6)),
    "GRU cells": (lambda: Cells(nn.GRUCell(6, 5)), (4, 6)),
    "RNN cells": (lambda: Cells(nn.RNNCell(6, 5, nonlinearity="relu")), (4, 6)),
}


def build(name: str, dtype: torch.dtype = torch.float64, num_rows: int = 6) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, x = make(), torch.randn(num_rows, *shape)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype), {"x": x.to(dtype), "weights": torch.linspace(0.1, 2.0, num_rows).to(dtype)}


def losses(model: nn.Module, batch: Batch) -> Tensor:
    return batch["weights"] * model(batch["x"]).flatten(1).square().mean(1)


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model
