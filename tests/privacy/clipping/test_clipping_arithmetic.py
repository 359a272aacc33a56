"""The tensor operations that the layer rules share."""

from __future__ import annotations

import pytest
import torch

from doppel.privacy.clipping.arithmetic import matmul
from tests.layer_norms import by_grams


@pytest.mark.parametrize("num_positions", [1, 7, 64])
def test_inner_product_of_grams_is_the_squared_norm_of_the_product(num_positions: int) -> None:
    """⟨AAᵀ, GGᵀ⟩ = ‖GᵀA‖²."""
    generator = torch.Generator().manual_seed(num_positions)
    A = torch.randn(3, num_positions, 5, generator=generator, dtype=torch.float64)
    G = torch.randn(3, num_positions, 4, generator=generator, dtype=torch.float64)
    expected = (G.transpose(1, 2) @ A).square().sum((1, 2))
    squared, may_hide, _ = by_grams(A, G)
    torch.testing.assert_close(squared, expected, rtol=1e-12, atol=1e-12)
    assert torch.all((squared - expected).abs() <= may_hide)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_half_precision_are_not_rounded_to_it(dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 2 * 6 * 8).view(2, 6, 8).to(dtype)
    found = matmul(x, x.transpose(1, 2))
    expected = x.double() @ x.double().transpose(1, 2)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
