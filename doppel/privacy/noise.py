"""The Gaussian noise of the mechanism."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from doppel.errors import PrivateTrainingError
from doppel.gradients import SHARD_MULTIPLE
from doppel.privacy.secret import KeyedStream, Secret, keyed_words

#: Noisy sums are multiples of 2^-GRID_BITS of the noise's standard deviation.
GRID_BITS = 30
#: Coordinates that as many words of the stream give: the first half of them radii, the second half angles.
PART = SHARD_MULTIPLE
#: Coordinates that tensor operations give their noise together: few on the CPU, whose caches they should fit.
_TOGETHER_CPU, _TOGETHER = 2**15, 2**24


class GaussianNoise:
    """Adds N(0, (σC)²) to the sum of clipped gradients, once per step.

    Formal guarantees:
        If one unit moves the sum by at most C in ℓ₂ norm, the sum plus independent N(0, (σC)²) on every coordinate,
        those without a gradient too, is the Gaussian mechanism with noise multiplier σ. The noise of a coordinate is a
        pure function of (secret, step, its place): places of a step are disjoint parts of one stream, so each word of
        it is used once, and whoever adds the noise of a coordinate adds the same, on whatever device and rank. Each
        step has its own stream. A step number must not be used twice with other data, which :meth:`begin` refuses:
        build a new object for each run or stage. The secret comes from the operating system and is in no file.

        *Floating point.* A Gaussian drawn and added in float32 has holes: which numbers can come out depends on the sum
        (Mironov, 2012). So noise is drawn and added in float64, rounded to multiples of 2⁻³⁰σC (the next power of two),
        and only then to the gradient's dtype: millions of possible sums lie between neighbours of this grid, so each is
        reached from every sum.

        *Generator.* Pairs of 64-bit words of a ChaCha20 stream (:class:`.secret.Secret`) become Gaussians by Box and
        Muller, (√(-2 ln u) cos φ, √(-2 ln u) sin φ), with u of 63 bits: nothing beyond 9.3 σ, of probability 10⁻²⁰, is
        drawn. OpenSSL computes the words on the CPU; on a GPU one Triton kernel does all (:mod:`.noise_kernel`), or
        plain tensor operations do: :func:`add_by_tensors`, which the kernel must equal before a device uses it.

    Args:
        noise_multiplier: σ ≥ 0, the noise's standard deviation in units of ``max_grad_norm``; 0 adds nothing.
        max_grad_norm: C > 0, the sensitivity of the sum; may be infinite only if σ is 0.
        seed: None for the operating system's entropy; a number is for tests and warns.

    Raises:
        ValueError: If the arguments are out of range.
    """

    def __init__(self, noise_multiplier: float, max_grad_norm: float, seed: int | None = None) -> None:
        if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
            raise ValueError(f"noise_multiplier is {noise_multiplier}, but it must be a finite number, 0 or more")
        if not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is {max_grad_norm}, but it must be positive")
        if noise_multiplier > 0 and math.isinf(max_grad_norm):
            raise ValueError(
                "max_grad_norm is infinite, so no noise hides a unit: set a finite bound, or noise_multiplier 0"
            )
        self.noise_multiplier = float(noise_multiplier)
        self.max_grad_norm = float(max_grad_norm)
        self._secret = Secret(seed)
        self._begun: int | None = None  # the last step whose noise is in use

    def __repr__(self) -> str:
        scale = f"noise_multiplier={self.noise_multiplier}, max_grad_norm={self.max_grad_norm}"
        return f"{type(self).__name__}({scale})"

    def share_secret(self, broadcast: Callable[[Tensor], Tensor]) -> None:
        """Let all ranks use rank 0's secret, before the first step; see :meth:`.secret.Secret.share`."""
        self._secret.share(broadcast)

    def begin(self, step: int) -> None:
        """Take note that a step's noise is used from here on.

        Raises:
            PrivateTrainingError: It, or a later one, was used before: the difference of two sums would have none.
        """
        if self._begun is not None and step <= self._begun:
            raise PrivateTrainingError(
                f"the noise of step {step} was used before: count steps over the whole training, not in each epoch, "
                "and give all trained parameters to one call for a step"
            )
        self._begun = step

    @torch.no_grad()
    def add_(self, flat: Tensor, place: int, step: int) -> None:
        """Add N(0, (σC)²) to each entry of some of a step's gradients.

        Args:
            flat: Sums of clipped gradients, [n], contiguous.
            place: Number of the first one among all coordinates of the step, a multiple of :data:`PART`. The next
                ones of the step begin at ``place + n`` or later.
            step: Number of the optimiser step, counted from 0 over the whole run, never used twice.

        Raises:
            ValueError: ``place`` is no such multiple, or ``flat`` is no vector that lies in one piece.
        """
        self._add(flat, place, step, GRID_BITS)

    @property
    def std(self) -> float:
        """σC."""
        return self.noise_multiplier * self.max_grad_norm if self.noise_multiplier else 0.0

    def grid(self, bits: int = GRID_BITS) -> float:
        """Return 2^-``bits`` of the next power of two above σC."""
        return 2.0 ** (math.ceil(math.log2(self.std)) - bits)

    def _add(self, flat: Tensor, place: int, step: int, grid_bits: int) -> None:
        if place % PART or flat.dim() != 1 or not flat.is_contiguous():
            raise ValueError(
                f"noise for a tensor of shape {list(flat.shape)} at place {place}: give a contiguous vector, at a "
                f"multiple of {PART}"
            )
        if self.std and flat.numel():
            has_kernel = flat.is_cuda and flat.dtype in (torch.float32, torch.float64)
            add = _best_way(flat.device, flat.dtype) if has_kernel else add_by_tensors
            add(flat, self._secret.key("noise", step), place, self.std, self.grid(grid_bits))


def add_by_tensors(flat: Tensor, key: bytes, place: int, std: float, grid: float) -> None:
    """Add N(0, ``std``²) to each entry of ``flat``, [n], and round to multiples of ``grid``: the reference.

    Coordinate i of a part of :data:`PART` has the cosine of words i and i + PART/2 of the part, in its first half;
    their sine is coordinate i + PART/2.

    Args:
        flat: On any device, of any dtype.
        key: 32 secret bytes of the step.
        place: Of the first entry in the step's stream, a multiple of ``PART``.
        std: σC > 0.
        grid: A power of two.
    """
    is_on_cpu = flat.device.type == "cpu"
    stream = KeyedStream(key, place)
    for some in flat.split(_TOGETHER_CPU if is_on_cpu else _TOGETHER):
        num_words = -(-some.numel() // PART) * PART
        if is_on_cpu:
            words = torch.from_numpy(stream.words(num_words))
        else:
            words = keyed_words(key, place, num_words, flat.device)
        place += num_words
        halves = words.view(-1, 2, PART // 2).unbind(1)
        noise = torch.stack(gaussians(*halves), 1).view(-1)[: some.numel()].mul_(std / grid)
        some.copy_(noise.add_(some, alpha=1.0 / grid).round_().mul_(grid))


@cache
def _best_way(device: torch.device, dtype: torch.dtype) -> Callable[[Tensor, bytes, int, float, float], None]:
    """The kernel, where Triton is installed, compiles it, and it adds to the bit what tensor operations add."""
    if importlib.util.find_spec("triton") is None:
        return add_by_tensors
    try:
        from triton.errors import TritonError

        from doppel.privacy.noise_kernel import add_by_kernel
    except ImportError:  # a version of other names
        return add_by_tensors
    test = bytes(range(32)), 3 * PART, 1.62, 2.0**-29
    found = torch.linspace(-5, 5, 1001, device=device, dtype=dtype)
    expected = found.clone()
    add_by_tensors(expected, *test)
    try:
        add_by_kernel(found, *test)
        why = "" if torch.equal(found, expected) else "it does not draw what tensor operations draw"
    except (TritonError, RuntimeError, OSError, subprocess.CalledProcessError) as error:  # no compiler, say
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
    if why:
        warnings.warn(f"the kernel of noise is not used on {device}, which costs time alone: {why}", stacklevel=3)
    return add_by_tensors if why else add_by_kernel


def gaussians(of_radius: Tensor, of_angle: Tensor) -> tuple[Tensor, Tensor]:
    """Return two times N(0, 1) in float64 from uniform 64-bit words, int64 of one shape; the words are used up."""
    uniform = of_radius.bitwise_or_(1).double().abs_().mul_(2.0**-63)  # of an odd number: never 0
    radius = uniform.log_().mul_(-2.0).sqrt_()
    angle = of_angle.double().mul_(math.pi * 2.0**-63)
    return angle.cos().mul_(radius), angle.sin_().mul_(radius)
