"""A layer's share of the norm, as the clipping engine forms it, of inputs and output gradients that a test gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from doppel.privacy.clipping.groups import Constants, Grams, LayerInput


def read_by(rule: Any, A: Tensor, G: Tensor) -> LayerInput:
    """A layer's input [U, n, d] and output gradient [U, n, p]."""
    return LayerInput(A, A.flatten(0, 1), [(rule, G, G.flatten(0, 1))])


def by_grams(A: Tensor, G: Tensor) -> Tensor:
    """‖GᵀA‖² of each unit by Gram matrices, and what rounding may hide, [2, U]."""
    grams = Grams(A.shape[1], 1, len(A), G, Constants())
    grams.add(read_by(None, A, G), G)
    return torch.stack(grams.norms())


def room_of_formed_rows(A: Tensor, G: Tensor) -> Tensor:
    """The room of the same norm where the gradient is formed, [U]."""
    grams = Grams(A.shape[1], 1, len(A), G, Constants())
    grams.add_reach(A, G)
    return grams.norms()[1]
