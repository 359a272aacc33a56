"""Sinusoidal positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoids(num_positions: int, size: int, device: torch.device, first: int = 0) -> Tensor:
    """Position vectors [num_positions, size] from position ``first`` on (Vaswani et al. 2017, §3.5)."""
    positions = torch.arange(first, first + num_positions, device=device, dtype=torch.float32)
    rates = torch.exp(torch.arange(0, size, 2, device=device, dtype=torch.float32) * (-math.log(10_000.0) / size))
    angles = positions.unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :size]
