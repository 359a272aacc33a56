"""An LSTM whose weights the clipper sees: each belongs to an ``nn.Linear`` that is called once for all positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class LinearLSTM(nn.Module):
    """What ``nn.LSTM(…, batch_first=True)`` computes, from states of zero, made of layers with a fast clipping rule.

    Padding belongs on the right, where nothing that comes before it looks.

    Args:
        input_size: Features D of an input.
        hidden_size: Units H of each layer.
        num_layers: Layers, one above the other.
        dropout: Probability of dropout between two layers.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.layers = nn.ModuleList(LSTMLayer(size, hidden_size) for size in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the states of the last layer, [B, T, H]."""
        for number, layer in enumerate(self.layers):
            x_BTD = layer(self.dropout(x_BTD) if number else x_BTD)
        return x_BTD


class LSTMLayer(nn.Module):
    """One layer: a_t = W x_t + b + U h_{t−1} + b', from whose four parts the gates and the next state come.

    Formal guarantees:
        Let δ_t be the derivative of the loss by a_t, through all later positions. U stands in every a_t, and nowhere
        else, so the loss has the derivatives Σ_t δ_t h_{t−1}ᵀ by U, Σ_t δ_t x_tᵀ by W, and Σ_t δ_t by either bias.
        These are the gradients of two ``nn.Linear`` that see all positions in one call: ``from_input`` of the inputs,
        ``from_state`` of the states before, both with δ as the gradient of their output. So the clipper's rule for such
        a layer gives the exact norm and the exact clipped sum (:mod:`doppel.privacy.clipping.linear`), and nothing of
        the recurrence is left out. It takes three steps: the states are computed without a graph; ``from_state`` is
        called with them; and :class:`_Recurrence` gives both layers δ in the backward pass. There the weight U serves
        as a number only, as a weight does that an input's gradient is formed by.

    Args:
        input_size: Features D of an input.
        hidden_size: Units H of the state.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(input_size, 4 * hidden_size)  # W, b
        self.from_state = nn.Linear(hidden_size, 4 * hidden_size)  # U, b'

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the states h_1, …, h_T, [B, T, H], of the weights' dtype, under autocast too."""
        from_input_BTG = self.from_input(x_BTD)
        weight, bias = self.from_state.weight.detach(), self.from_state.bias.detach()
        with torch.no_grad(), torch.autocast(x_BTD.device.type, enabled=False):
            states = _run(from_input_BTG.to(weight.dtype), weight, bias)
        if not torch.is_grad_enabled():
            return states[0]
        before_BTH = _one_later(states[0])
        output: Tensor = _Recurrence.apply(from_input_BTG, self.from_state(before_BTH), weight, *states)
        return output


class _Recurrence(torch.autograd.Function):
    """The states as a function of what inputs and states before add to a_t; its backward pass is that through time."""

    @staticmethod
    def forward(
        ctx: Any,
        from_input_BTG: Tensor,
        from_state_BTG: Tensor,
        weight_GH: Tensor,
        states_BTH: Tensor,
        cells_BTH: Tensor,
        gates_BTG: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(weight_GH, cells_BTH, gates_BTG)
        ctx.dtypes = from_input_BTG.dtype, from_state_BTG.dtype
        return states_BTH.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads_BTH: Tensor) -> tuple[Tensor | None, ...]:
        weight_GH, cells_BTH, gates_BTG = ctx.saved_tensors
        grads_BTH = grads_BTH.to(weight_GH.dtype)
        with torch.autocast(grads_BTH.device.type, enabled=False):
            deltas_BTG = _back_through_time(grads_BTH, weight_GH, cells_BTH, gates_BTG)
        of_input, of_state = (deltas_BTG.to(dtype) for dtype in ctx.dtypes)
        return of_input, of_state, None, None, None, None


def _run(from_input_BTG: Tensor, weight_GH: Tensor, bias_G: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States h and cells c [B, T, H], and the gates [B, T, 4H]: input, forget, new content, output."""
    h = c = from_input_BTG.new_zeros(len(from_input_BTG), weight_GH.shape[1])
    states, cells, gates = [], [], []
    for a_BG in from_input_BTG.unbind(1):
        take, forget, new, give = (a_BG + F.linear(h, weight_GH, bias_G)).chunk(4, 1)
        take, forget, new, give = take.sigmoid(), forget.sigmoid(), new.tanh(), give.sigmoid()
        c = forget * c + take * new
        h = give * c.tanh()
        states.append(h)
        cells.append(c)
        gates.append(torch.cat([take, forget, new, give], 1))
    return torch.stack(states, 1), torch.stack(cells, 1), torch.stack(gates, 1)


def _back_through_time(grads_BTH: Tensor, weight_GH: Tensor, cells_BTH: Tensor, gates_BTG: Tensor) -> Tensor:
    """δ_t of every position [B, T, 4H], from the derivatives of the loss by the states as they go out [B, T, H]."""
    before_BTH, squashed_BTH = _one_later(cells_BTH), cells_BTH.tanh()
    h_grad = c_grad = torch.zeros_like(grads_BTH[:, 0])
    deltas = []
    for t in reversed(range(grads_BTH.shape[1])):
        take, forget, new, give = gates_BTG[:, t].chunk(4, 1)
        squashed, h_grad = squashed_BTH[:, t], grads_BTH[:, t] + h_grad
        c_grad = c_grad + h_grad * give * (1 - squashed.square())
        parts = [
            c_grad * new * take * (1 - take),
            c_grad * before_BTH[:, t] * forget * (1 - forget),
            c_grad * take * (1 - new.square()),
            h_grad * squashed * give * (1 - give),
        ]
        deltas.append(torch.cat(parts, 1))
        h_grad, c_grad = deltas[-1] @ weight_GH, c_grad * forget
    return torch.stack(deltas[::-1], 1)


def _one_later(x_BTH: Tensor) -> Tensor:
    """What stood at the position before: zero, then all but the last."""
    return F.pad(x_BTH[:, :-1], (0, 0, 1, 0))
