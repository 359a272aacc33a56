"""``TRITON_INTERPRET=1 python interpreted_kernel.py``: what test_noise_kernel.py says of the kernel, on the CPU.

A process of its own: Triton decides when it is first imported whether it interprets.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from doppel.privacy import noise, noise_kernel
from doppel.privacy.banded_noise import FINE_BITS, BandedNoise
from doppel.privacy.noise import PART, GaussianNoise, add_by_tensors

KEY = bytes(range(200, 232))
CPU = torch.device("cpu")


class OnGPU(torch.Tensor):
    """Says that it is on a GPU, where noise is the kernel's."""

    is_cuda = True


def adds_what_tensor_operations_add() -> None:
    """At any place, of any size, where the noise is far below the sum, too; and leaves what lies beside."""
    for num in (1, 5, 63, 64, 65, 3000):
        for std in (1.62, 0.25, 1e-12, 1e-30):
            for place in (0, 77 * PART):
                exponent = math.ceil(math.log2(std))
                for dtype in (torch.float32, torch.float64):
                    arguments = KEY, place, std, 2.0 ** (exponent - noise.GRID_BITS)
                    expected = torch.randn(num + 128) * torch.tensor(10.0) ** torch.randint(-6, 4, (num + 128,))
                    expected = expected.to(dtype)
                    found = expected.clone()
                    add_by_tensors(expected[64:-64], *arguments)
                    noise_kernel.add_by_kernel(found[64:-64], *arguments)
                    assert torch.equal(found, expected), (num, std, place, dtype)
                # as fine as independent draws, up to the last bits of a logarithm and a cosine
                expected, found = torch.zeros(num, dtype=torch.float64), torch.zeros(num, dtype=torch.float64)
                add_by_tensors(expected, KEY, place, std, 2.0 ** (exponent - FINE_BITS))
                noise_kernel.add_by_kernel(found, KEY, place, std, 2.0 ** (exponent - FINE_BITS))
                torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14 * std)


def is_what_a_gpu_uses() -> None:
    """Whatever holds the gradients."""
    expected, found = torch.ones(1000), torch.ones(1000)
    gaussian = GaussianNoise(0.6, 2.7, seed=1)
    gaussian.add_(expected, 2 * PART, step=3)
    gaussian.add_(found.as_subclass(OnGPU), 2 * PART, step=3)
    assert noise._best_way(CPU, torch.float32) is noise_kernel.add_by_kernel
    assert torch.equal(found, expected)
    expected, found = torch.zeros(1000, dtype=torch.float64), torch.zeros(1000, dtype=torch.float64)
    by_tensors, by_kernel = (BandedNoise(0.6, 2.7, [0.6, 0.8], 9, seed=1) for _ in range(2))
    for step in range(3):
        by_tensors.add_(expected, 2 * PART, step)
        by_kernel.add_(found.as_subclass(OnGPU), 2 * PART, step)
    assert noise._best_way(CPU, torch.float64) is noise_kernel.add_by_kernel
    assert torch.equal(found, expected)


def is_not_used_where_it_is_wrong_or_cannot_be_made() -> None:
    """Tensor operations take its place, and a line says why."""
    right = noise_kernel.add_by_kernel

    def wrong(flat: Any, *args: Any) -> None:
        right(flat, *args)
        flat[1000] += 2.0**-20

    def refused(*args: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nMore")

    for kernel, why in (
        (wrong, "it does not draw what tensor operations draw"),
        (refused, "Failed to find C compiler."),
    ):
        noise_kernel.add_by_kernel = kernel
        noise._best_way.cache_clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert noise._best_way(CPU, torch.float32) is add_by_tensors
        assert str(caught[-1].message) == f"the kernel of noise is not used on cpu, which costs time alone: {why}"


if __name__ == "__main__":
    torch.manual_seed(1)
    adds_what_tensor_operations_add()
    is_what_a_gpu_uses()
    is_not_used_where_it_is_wrong_or_cannot_be_made()
