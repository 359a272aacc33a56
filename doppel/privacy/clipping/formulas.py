"""Layers as functions of their parameters, with a formula of our own where torch's kernel cannot be mapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F


class LayerBody(nn.Module):
    """A layer as a function of its trainable parameters; the layer itself is left as it is.

    Args:
        layer: The layer.
        owned: Its trainable parameters by their names in it; one parameter may have several.
    """

    def __init__(self, layer: nn.Module, owned: Mapping[str, nn.Parameter]) -> None:
        super().__init__()
        self.layer = layer
        self.train(layer.training)
        self._keys = {f"layer.{name}": id(parameter) for name, parameter in owned.items()}
        self._owned = {id(parameter): parameter for parameter in owned.values()}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, or its formula."""
        return FORMULAS.get(type(self.layer), nn.Module.__call__)(self.layer, *args, **kwargs)

    def values(self) -> dict[int, Tensor]:
        """The trainable parameters' values, by what tells them apart."""
        return {key: parameter.detach() for key, parameter in self._owned.items()}

    def run(self, values: Mapping[int, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the layer with these values; what it writes to its buffers is lost."""
        parameters = {name: values[key] for name, key in self._keys.items()}
        buffers = {name: buffer.clone() for name, buffer in self.named_buffers()}
        return functional_call(self, {**buffers, **parameters}, args, kwargs, tie_weights=False)


def _rnn_cell(cell: nn.RNNCell, input: Tensor, hx: Tensor | None = None) -> Tensor:
    h = _zeros(cell, input) if hx is None else hx
    gates = F.linear(input, cell.weight_ih, cell.bias_ih) + F.linear(h, cell.weight_hh, cell.bias_hh)
    return torch.tanh(gates) if cell.nonlinearity == "tanh" else torch.relu(gates)


def _gru_cell(cell: nn.GRUCell, input: Tensor, hx: Tensor | None = None) -> Tensor:
    h = _zeros(cell, input) if hx is None else hx
    of_x = F.linear(input, cell.weight_ih, cell.bias_ih).chunk(3, -1)
    of_h = F.linear(h, cell.weight_hh, cell.bias_hh).chunk(3, -1)
    reset, update = (torch.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
    new = torch.tanh(of_x[2] + reset * of_h[2])
    return (h - new) * update + new


def _lstm_cell(cell: nn.LSTMCell, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    h, c = (_zeros(cell, input), _zeros(cell, input)) if hx is None else hx
    gates = F.linear(input, cell.weight_ih, cell.bias_ih) + F.linear(h, cell.weight_hh, cell.bias_hh)
    take, forget, new, give = gates.chunk(4, -1)
    c = torch.sigmoid(forget) * c + torch.sigmoid(take) * torch.tanh(new)
    return torch.sigmoid(give) * torch.tanh(c), c


def _zeros(cell: nn.RNNCellBase, x: Tensor) -> Tensor:
    return x.new_zeros(*x.shape[:-1], cell.hidden_size)


def _bilinear(layer: nn.Bilinear, input1: Tensor, input2: Tensor) -> Tensor:
    output = torch.einsum("...i,oij,...j->...o", input1, layer.weight, input2)
    return output if layer.bias is None else output + layer.bias


def _embedding_bag(
    bag: nn.EmbeddingBag, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
) -> Tensor:
    if input.dim() != 2:
        raise ValueError("ids of all rows in one dimension: give ids [rows, positions], filled up with padding_idx")
    padding = -1 if bag.padding_idx is None else bag.padding_idx
    is_word = (input != padding).unsqueeze(-1)
    vectors = F.embedding(input, bag.weight)
    if bag.mode == "max":
        return torch.where(is_word.any(1), vectors.masked_fill(~is_word, -torch.inf).max(1).values, 0.0)
    if per_sample_weights is not None:
        vectors = vectors * per_sample_weights.unsqueeze(-1)
    total = vectors.masked_fill(~is_word, 0.0).sum(1)
    return total / is_word.sum(1).clamp(min=1) if bag.mode == "mean" else total


FORMULAS: dict[type[nn.Module], Callable[..., Any]] = {
    nn.RNNCell: _rnn_cell,
    nn.GRUCell: _gru_cell,
    nn.LSTMCell: _lstm_cell,
    nn.Bilinear: _bilinear,
    nn.EmbeddingBag: _embedding_bag,
}
