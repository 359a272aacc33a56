"""The Gaussian noise of the mechanism."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from doppel.privacy.secret import KeyedStream, Secret, keyed_words

#: Noisy sums are multiples of 2^-GRID_BITS of the noise's standard deviation.
GRID_BITS = 30
#: Coordinates that get their noise together, multiples of 8: few on the CPU, whose caches they should fit.
_PART_CPU, _PART = 2**15, 2**22
#: Words that a GPU forms together, for several parameters: the cipher takes some 700 kernels, whatever their number.
_TOGETHER = 2**24


class GaussianNoise:
    """Adds N(0, (σC)²) to the sum of clipped gradients, once per step.

    Formal guarantees:
        If one unit moves the sum by at most C in ℓ₂ norm, the sum plus independent N(0, (σC)²) on every coordinate,
        those without a gradient too, is the Gaussian mechanism with noise multiplier σ. The noise is a pure function of
        (secret, step, place in the parameter list): ranks that share the secret add the same noise to the same sum.
        Each step has its own stream, of which the parameters take successive words, each once, whatever their device. A
        step number must not be used twice with other data: build a new object for each run or stage. The secret comes
        from the operating system and is in no file.

        *Floating point.* A Gaussian drawn and added in float32 has holes: which numbers can come out depends on the sum
        (Mironov, 2012). So noise is drawn and added in float64, rounded to multiples of 2⁻³⁰σC (the next power of two),
        and only then to the gradient's dtype: millions of possible sums lie between neighbours of this grid, so each is
        reached from every sum.

        *Generator.* Pairs of 64-bit words of a ChaCha20 stream (:class:`.secret.Secret`) become Gaussians by Box and
        Muller, (√(-2 ln u) cos φ, √(-2 ln u) sin φ), with u of 63 bits: nothing beyond 9.3 σ, of probability 10⁻²⁰, is
        drawn. OpenSSL computes the words on the CPU, plain tensor operations the same ones on a GPU.

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

    def __repr__(self) -> str:
        scale = f"noise_multiplier={self.noise_multiplier}, max_grad_norm={self.max_grad_norm}"
        return f"{type(self).__name__}({scale})"

    def share_secret(self, broadcast: Callable[[Tensor], Tensor]) -> None:
        """Let all ranks use rank 0's secret, before the first step; see :meth:`.secret.Secret.share`."""
        self._secret.share(broadcast)

    @torch.no_grad()
    def add_(self, params: Iterable[nn.Parameter], step: int) -> None:
        """Add N(0, (σC)²) to the ``.grad`` of each trainable parameter, in the order given.

        Args:
            params: The parameters, in the same order on every rank; a repeated (tied) one counts once, a
                missing gradient is taken for zero, a frozen one is passed over.
            step: Number of the optimiser step, counted from 0 over the whole run, never used twice.
        """
        key, place = self._secret.key("noise", step), 0
        stream, stream_place = KeyedStream(key), 0
        std = self.noise_multiplier * self.max_grad_norm if self.noise_multiplier else 0.0
        grid = 2.0 ** (math.ceil(math.log2(std)) - GRID_BITS) if std else 0.0
        trained = list({id(p): p for p in params if p.requires_grad}.values())
        for parameter in trained:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = gradient.contiguous()  # whose flat view is itself, so that the noise arrives
        for parts, on_gpu in _together(trained) if std else []:
            sizes = [-(-part.numel() // 8) * 8 for part in parts]
            if on_gpu:
                words = keyed_words(key, place, sum(sizes), parts[0].device)
            else:
                if stream_place != place:  # parameters of another device came between
                    stream = KeyedStream(key, place)
                words = torch.from_numpy(stream.words(sum(sizes)))
                stream_place = place + sum(sizes)
            place += sum(sizes)
            halves = zip(*(of_part.chunk(2) for of_part in words.split(sizes)), strict=True)
            noise = _in_order(gaussians(*map(_joined, halves)), parts, sizes).mul_(std / grid)
            noisy = noise.add_(_joined(parts), alpha=1.0 / grid).round_().mul_(grid).to(parts[0].dtype)
            torch._foreach_copy_(parts, noisy.split([part.numel() for part in parts]))


def _together(params: Iterable[nn.Parameter]) -> Iterator[tuple[list[Tensor], bool]]:
    """Flat parts of the gradients, in order, that get their noise together, and whether they are on a GPU."""
    waiting: list[Tensor] = []
    for parameter in params:
        assert parameter.grad is not None
        for part in parameter.grad.view(-1).split(_PART if parameter.is_cuda else _PART_CPU):
            is_full = sum(map(Tensor.numel, waiting)) + part.numel() > _TOGETHER
            is_other = waiting and (part.device, part.dtype) != (waiting[0].device, waiting[0].dtype)
            if waiting and (is_full or is_other or not parameter.is_cuda):
                yield waiting, True
                waiting = []
            if parameter.is_cuda:
                waiting.append(part)
            else:
                yield [part], False
    if waiting:
        yield waiting, True


def gaussians(of_radius: Tensor, of_angle: Tensor) -> tuple[Tensor, Tensor]:
    """Return two times N(0, 1) in float64 from uniform 64-bit words, int64 [n] each; the words are used up."""
    uniform = of_radius.bitwise_or_(1).double().abs_().mul_(2.0**-63)  # of an odd number: never 0
    radius = uniform.log_().mul_(-2.0).sqrt_()
    angle = of_angle.double().mul_(math.pi * 2.0**-63)
    return angle.cos().mul_(radius), angle.sin_().mul_(radius)


def _in_order(halves: tuple[Tensor, Tensor], parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The numbers of each part, first its cosines and then its sines, without those that a part has no place for."""
    pieces = []
    cosines, sines = (half.split([size // 2 for size in sizes]) for half in halves)
    for part, cosine, sine in zip(parts, cosines, sines, strict=True):
        num_left = max(part.numel() - cosine.numel(), 0)
        pieces += [cosine[: part.numel()], sine[:num_left]]
    return torch.cat(pieces)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor of several, itself if it is alone."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
