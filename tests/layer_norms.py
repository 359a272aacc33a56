"""A layer's share of the norm, as the clipping engine forms it, of inputs and output gradients that a test gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from doppel.privacy.clipping.arithmetic import HIGHER, UNIT, add_product
from doppel.privacy.clipping.groups import Grams, LayerInput


def read_by(weight: Any, A: Tensor, G: Tensor) -> LayerInput:
    """Input [U, n, d] and output gradient [U, n, p] of a layer with this weight."""
    return LayerInput(A, A.flatten(0, 1), [(weight, add_product, G, G.flatten(0, 1))])


def by_grams(A: Tensor, G: Tensor) -> Tensor:
    """‖GᵀA‖² of each unit by Gram matrices, what rounding may hide, and the square of what it may add, [3, U].

    Ids of an embedding [U, n] stand for one-hot A.
    """
    grams = Grams(A.shape[1], 1, len(A), G, torch.tensor)
    grams.add(LayerInput(A), G)
    squares, room, longer = grams.norms()
    return torch.stack([squares, room * HIGHER * UNIT, longer * UNIT**2])


def safe_norms(A: Tensor, G: Tensor) -> Tensor:
    """What units are clipped by, [U] in float64."""
    squares, room, longer = by_grams(A, G)
    return (squares.clamp(min=0.0) + room).sqrt() + (2 * longer).sqrt()
