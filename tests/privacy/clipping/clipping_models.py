"""Models of layers that have no rule of their own, each with the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from clipping_reference import (
    Batch,
)
from torch import Tensor, nn


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


class OneNumber(nn.Module):
    """A number for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 6))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).sum((1, 2))


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
    "one number a row": (OneNumber, (5, 6)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), (5, 6)),
}


def build(name: str, dtype: torch.dtype = torch.float64, num_rows: int = 6) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, x = make(), torch.randn(num_rows, *shape)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype), {"x": x.to(dtype), "weights": torch.linspace(0.1, 2.0, num_rows).to(dtype)}


def losses(model: nn.Module, batch: Batch) -> Tensor:
    return batch["weights"] * model(batch["x"]).reshape(len(batch["x"]), -1).square().mean(1)


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model
