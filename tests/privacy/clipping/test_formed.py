"""Units' gradients side by side: norms and weighted sums are those of each parameter, whatever its shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from doppel.privacy.clipping.formed import FormedGradients

SHAPES = [(5,), (16, 40), (3,), (16, 40), (7, 11), (263, 2), (1, 1), (300,)]


@pytest.mark.parametrize("left_out", [None, 0, 1, 4])
def test_norms_and_sums_are_those_of_each_parameter(left_out: int | None) -> None:
    """Also where a micro-batch does not reach one, whose ``grad`` stays; and of units that are not finite."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    formed = FormedGradients(parameters)
    given = {i: torch.randn(3, *shape) for i, shape in enumerate(SHAPES) if i != left_out}
    for i, gradients in given.items():
        formed.place(parameters[i], 3).copy_(gradients)
    squares = torch.stack([part.squares() for part in formed.parts]).sum(0)
    expected = torch.stack([x.double().flatten(1).square().sum(1) for x in given.values()]).sum(0)
    torch.testing.assert_close(squares, expected, rtol=1e-6, atol=0.0)
    weights, erased = torch.tensor([0.5, 0.0, 2.0]), torch.tensor([False, True, False])
    for part in formed.parts:
        assert part.gradients is not None
        part.gradients[:, 1] = torch.nan
        part.add(weights, erased)
    for i, parameter in enumerate(parameters):
        if i not in given:
            assert parameter.grad is None
            continue
        wanted = 0.5 * given[i][0] + 2.0 * given[i][2]
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-5, atol=1e-6)
