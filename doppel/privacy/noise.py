"""The Gaussian noise of the mechanism, and the secret from which its randomness comes."""

from __future__ import annotations

import hashlib
import math
import secrets
import warnings
from collections.abc import Callable, Iterable
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor, nn

SECRET_BYTES = 32
#: Noisy sums are multiples of 2^-GRID_BITS of the noise's standard deviation.
GRID_BITS = 30
#: Coordinates that get their noise together: what float64 needs beside the gradients.
_PART = 2**20


class Secret:
    """256 bits that seed private randomness; it never appears in ``repr``, a pickle, a copy or a state dict.

    Whoever knows it can subtract the noise. So it comes from the operating system and lives in this process only.

    Args:
        seed: None for the operating system's entropy. A number, or 32 bytes, makes the randomness reproducible, for
            tests; whoever reads it from a config or a log can undo the privacy, so it is announced by a warning.
    """

    __slots__ = ("__bytes",)

    def __init__(self, seed: int | bytes | None = None) -> None:
        if seed is None:
            self.__bytes = secrets.token_bytes(SECRET_BYTES)
            return
        warnings.warn(
            "NOT PRIVATE: a fixed seed was given for noise or sampling, so its reader can undo them. Use it in tests "
            "only; leave it out to draw from the operating system's entropy.",
            UserWarning,
            stacklevel=3,
        )
        own = seed if isinstance(seed, bytes) else None
        self.__bytes = own or hashlib.blake2b(str(int(seed)).encode(), digest_size=SECRET_BYTES).digest()

    def derive(self, purpose: str, *counters: int) -> int:
        """A 256-bit number, a function of the secret and the arguments, unpredictable without the secret."""
        message = ",".join([purpose, *map(str, counters)]).encode()
        return int.from_bytes(hashlib.blake2b(message, key=self.__bytes, digest_size=32).digest(), "little")

    def digest(self, message: bytes) -> bytes:
        """64 bytes, a function of the secret and the message, unpredictable without the secret."""
        return hashlib.blake2b(message, key=self.__bytes).digest()

    def share(self, broadcast: Callable[[Tensor], Tensor]) -> None:
        """Replace the secret by what ``broadcast`` makes of it: that of rank 0.

        Args:
            broadcast: Takes this rank's uint8 tensor [32] and returns rank 0's.
        """
        shared = bytes(broadcast(torch.frombuffer(bytearray(self.__bytes), dtype=torch.uint8)).cpu().tolist())
        if len(shared) != SECRET_BYTES:
            raise ValueError(
                f"broadcast returned {len(shared)} bytes instead of {SECRET_BYTES}: return rank 0's tensor as it is"
            )
        self.__bytes = shared

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a secret is not written to disk, copied or sent to a process: build the object where it is used"
        )


class GaussianNoise:
    """Adds N(0, (σC)²) to the sum of clipped gradients, once per step.

    Formal guarantees:
        If one unit moves the sum by at most C in ℓ₂ norm, the sum plus independent N(0, (σC)²) on every coordinate is
        the Gaussian mechanism with noise multiplier σ. What this needs from the noise, and how it is met:

        - *One draw for all ranks.* It is a pure function of (secret, step, place in the parameter list), so ranks that
          share the secret add the same noise to the same reduced sum.
        - *Independent between steps and parameters.* Each step has a stream of its own, derived with a keyed hash from
          a 256-bit secret, and the parameters take successive parts of it. A step number must not be used twice with
          other data: count steps over the whole run, and build a new object for each run or stage.
        - *Unknown to the reader.* The secret comes from the operating system and is in no file.
        - *Every coordinate.* A parameter without a gradient gets noise too: whether it has one depends on data.

    *Floating point.* A Gaussian that is drawn and added in float32 has holes: which numbers can come out depends on the
    sum, most near zero (Mironov, 2012). So the noise is drawn and added in float64, and the result is rounded to
    multiples of 2⁻³⁰σC (the next power of two). Between two neighbours of this grid lie millions of the numbers that
    sum and noise can have, so each is reached from every sum, with the Gaussian's probability up to one part in
    millions; the rounding to the gradient's dtype comes after it. Rounding a coordinate moves it by 10⁻⁹ of the noise.

    On the CPU, NumPy's PCG64 is seeded with all 256 derived bits (PyTorch's CPU generator keeps only 32 bits of its
    seed, few enough to try them all); on other devices, that device's generator with 63 bits. Both are statistical
    generators, not cryptographic ones.

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
        """Let all ranks use rank 0's secret, before the first step.

        Args:
            broadcast: Takes this rank's uint8 tensor [32] (on the CPU) and returns rank 0's.
        """
        self._secret.share(broadcast)

    @torch.no_grad()
    def add_(self, params: Iterable[nn.Parameter], step: int) -> None:
        """Add N(0, (σC)²) to the ``.grad`` of each trainable parameter, in the order given.

        Args:
            params: The parameters, in the same order on every rank; a repeated (tied) one counts once, a
                missing gradient is taken for zero, a frozen one is passed over.
            step: Number of the optimiser step, counted from 0 over the whole run, never used twice.
        """
        stream = _NoiseStream(self._secret.derive("noise", step))
        std = self.noise_multiplier * self.max_grad_norm if self.noise_multiplier else 0.0
        grid = 2.0 ** (math.ceil(math.log2(std)) - GRID_BITS) if std else 0.0
        for parameter in {id(p): p for p in params if p.requires_grad}.values():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = gradient.contiguous()  # whose flat view is itself, so that the noise arrives
            if std:
                for part in parameter.grad.view(-1).split(_PART):
                    noisy = stream.draw(part).mul_(std / grid).add_(part, alpha=1.0 / grid)
                    part.copy_(noisy.round_().mul_(grid))


class _NoiseStream:
    """Standard normal draws of one step: one generator per device, used in parameter order."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numpy = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        self._torch: dict[torch.device, torch.Generator] = {}

    def draw(self, like: Tensor) -> Tensor:
        """N(0, 1) of the tensor's shape on its device, in float64."""
        if like.device.type == "cpu":
            return torch.from_numpy(self._numpy.standard_normal(like.numel())).view(like.shape)
        if like.device not in self._torch:
            self._torch[like.device] = torch.Generator(like.device).manual_seed(self._seed % 2**63)
        return torch.randn(like.shape, generator=self._torch[like.device], device=like.device, dtype=torch.float64)
