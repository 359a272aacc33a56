"""The noise of a flat gradient in one Triton kernel: cipher, Box and Muller, sum, grid."""

# mypy: allow-untyped-defs
from __future__ import annotations

import math
import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from doppel.gradients import SHARD_MULTIPLE

#: Lanes of one program; a lane forms two blocks of the cipher, the noise of sixteen coordinates.
LANES = 128


@triton.jit
def _rotate(x, bits: tl.constexpr):
    return (x << bits) | (x >> (32 - bits))


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _cipher_block(key, counter):
    """Sixteen words of ChaCha20 in each lane, uint32: of a key of eight words, a counter of one, and a nonce of 0."""
    zero = tl.zeros_like(counter)
    c0, c1, c2, c3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    k0, k1, k2, k3, k4, k5, k6, k7 = key
    x0, x1, x2, x3, x4, x5, x6, x7 = c0, c1, c2, c3, zero + k0, zero + k1, zero + k2, zero + k3
    x8, x9, x10, x11, x12, x13, x14, x15 = zero + k4, zero + k5, zero + k6, zero + k7, counter, zero, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    x0, x1, x2, x3, x4, x5, x6, x7 = x0 + c0, x1 + c1, x2 + c2, x3 + c3, x4 + k0, x5 + k1, x6 + k2, x7 + k3
    return x0, x1, x2, x3, x4, x5, x6, x7, x8 + k4, x9 + k5, x10 + k6, x11 + k7, x12 + counter, x13, x14, x15


@triton.jit
def _word(low, high):
    return (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.int64, bitcast=True)


@triton.jit
def _gaussians(of_radius, of_angle, pi):
    """As :func:`.noise.gaussians`; ``pi`` is π · 2⁻⁶³."""
    uniform = tl.abs((of_radius | 1).to(tl.float64)) * 1.0842021724855044e-19  # 2^-63
    radius = tl.sqrt(-2.0 * tl.log(uniform))
    angle = of_angle.to(tl.float64) * pi
    return tl.cos(angle) * radius, tl.sin(angle) * radius


@triton.jit
def _add(flat, at, n, gaussian, std_by_grid, one_by_grid, grid):
    """Add to the entries ``at``, in float64, and round to the grid, halves to even."""
    mask = at < n
    noisy = gaussian * std_by_grid + tl.load(flat + at, mask, 0.0).to(tl.float64) * one_by_grid
    size = tl.abs(noisy)
    whole = tl.where(size < 4503599627370496.0, (size + 4503599627370496.0) - 4503599627370496.0, size)  # 2^52
    tl.store(flat + at, (tl.where(noisy < 0, -whole, whole) * grid).to(flat.dtype.element_ty), mask)


@triton.jit
def _double(bits):
    return bits.to(tl.float64, bitcast=True)


#: One compiled kernel serves all sizes, places, keys and scales.
_VARYING = ["n", "first", *(f"k{i}" for i in range(8)), "std_by_grid", "one_by_grid", "grid", "pi"]


@triton.jit(do_not_specialize=_VARYING)
def _add_noise(
    flat,
    n,
    first,  # block of the cipher at the first coordinate
    k0,
    k1,
    k2,
    k3,
    k4,
    k5,
    k6,
    k7,
    std_by_grid,  # this and the next three are the bits of doubles: Triton makes a float32 of each float
    one_by_grid,
    grid,
    pi,
    part: tl.constexpr,
    lanes: tl.constexpr,
):
    blocks: tl.constexpr = part // 16  # of the cipher, in half a part
    lane = tl.program_id(0).to(tl.int64) * lanes + tl.arange(0, lanes)
    block = first + lane // blocks * (2 * blocks) + lane % blocks
    at = lane // blocks * part + lane % blocks * 8
    k0, k1, k2, k3 = k0.to(tl.uint32), k1.to(tl.uint32), k2.to(tl.uint32), k3.to(tl.uint32)
    k4, k5, k6, k7 = k4.to(tl.uint32), k5.to(tl.uint32), k6.to(tl.uint32), k7.to(tl.uint32)
    key = (k0, k1, k2, k3, k4, k5, k6, k7)
    radii = _cipher_block(key, block.to(tl.uint32))
    angles = _cipher_block(key, (block + blocks).to(tl.uint32))
    std_by_grid, one_by_grid, grid, pi = _double(std_by_grid), _double(one_by_grid), _double(grid), _double(pi)
    for i in tl.static_range(8):
        of_radius, of_angle = _word(radii[2 * i], radii[2 * i + 1]), _word(angles[2 * i], angles[2 * i + 1])
        cosine, sine = _gaussians(of_radius, of_angle, pi)
        _add(flat, at + i, n, cosine, std_by_grid, one_by_grid, grid)
        _add(flat, at + i + part // 2, n, sine, std_by_grid, one_by_grid, grid)


def add_by_kernel(flat: Tensor, key: bytes, place: int, std: float, grid: float) -> None:
    """Add what :func:`.noise.add_by_tensors` adds, to the bit, reading and writing each entry once.

    It launches one kernel and waits for nothing: no tensor is made, none is copied to the device.

    Args:
        flat: float32 or float64 [n], contiguous, on the GPU (or anywhere under Triton's interpreter,
            ``TRITON_INTERPRET=1``).
        key: 32 secret bytes of the step.
        place: Of the first entry in the step's stream, a multiple of :data:`.noise.PART`.
        std: σC > 0.
        grid: A power of two.
    """
    num_lanes = -(-flat.numel() // SHARD_MULTIPLE) * (SHARD_MULTIPLE // 16)
    doubles = struct.unpack("<4q", struct.pack("<4d", std / grid, 1.0 / grid, grid, math.pi * 2.0**-63))
    numbers = flat.numel(), place // 8, *struct.unpack("<8i", key), *doubles
    with torch.cuda.device_of(flat):
        # without fused products and sums, which would round otherwise than tensor operations
        _add_noise[-(-num_lanes // LANES),](flat, *numbers, part=SHARD_MULTIPLE, lanes=LANES, enable_fp_fusion=False)
