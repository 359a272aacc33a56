"""The secret from which all private randomness comes, and the keyed streams that are drawn from it."""

from __future__ import annotations

import hashlib
import random
import secrets
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from torch import Tensor

SECRET_BYTES = 32


class Secret:
    """256 bits that key private randomness; it never appears in ``repr``, a pickle, a copy or a state dict.

    Whoever knows it can subtract the noise. So it comes from the operating system and lives in this process only.

    Formal guarantees:
        What is drawn is a stream of ChaCha20 (RFC 8439) for each purpose and step, its key of 256 bits a keyed hash
        (BLAKE2b) of both. Whoever sees any part of the streams cannot tell the rest from coin tosses without breaking
        one of the two. So against readers who compute in bounded time the guarantee is that of true randomness.

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

    def key(self, purpose: str, *counters: int) -> bytes:
        """Return 32 bytes, a function of the secret and the arguments, unpredictable without the secret."""
        message = ",".join([purpose, *map(str, counters)]).encode()
        return hashlib.blake2b(message, key=self.__bytes, digest_size=SECRET_BYTES).digest()

    def derive(self, purpose: str, *counters: int) -> int:
        """Return the derived key as a number of 256 bits."""
        return int.from_bytes(self.key(purpose, *counters), "little")

    def stream(self, purpose: str, *counters: int) -> KeyedStream:
        """Return a stream of its own for each purpose and counters."""
        return KeyedStream(self.key(purpose, *counters))

    def share(self, broadcast: Callable[[Tensor], Tensor]) -> None:
        """Replace the secret by what ``broadcast`` makes of it: that of rank 0.

        Args:
            broadcast: Takes this rank's uint8 tensor [32] (on the CPU) and returns rank 0's.
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


class KeyedStream(random.Random):
    """The stream of ChaCha20 under a key, with what Python's generators offer (``randrange``, ``sample``, …).

    Args:
        key: 32 secret bytes, used for one stream alone: of 256 GB, where its counter ends.
        start: Place of the first word of 64 bits that is drawn; a multiple of 8, which are one block of the cipher.
    """

    def __new__(cls, key: bytes, start: int = 0) -> KeyedStream:
        return super().__new__(cls)  # the base class would seed its own generator, which is never asked

    def __init__(self, key: bytes, start: int = 0) -> None:
        counter = (start // 8).to_bytes(16, "little")
        self._cipher = Cipher(ChaCha20(key, counter), mode=None).encryptor()

    def seed(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the key is all."""

    def randbytes(self, n: int) -> bytes:
        """Return the next bytes of the stream."""
        return self._cipher.update(bytes(n))

    def getrandbits(self, k: int) -> int:
        """Return a number of k bits."""
        num_bytes = (k + 7) // 8
        return int.from_bytes(self.randbytes(num_bytes), "little") >> (8 * num_bytes - k)

    def random(self) -> float:
        """Return a multiple of 2⁻⁵³ in [0, 1)."""
        return self.getrandbits(53) * 2.0**-53

    def words(self, n: int) -> NDArray[np.int64]:
        """Return the next n words of 64 bits."""
        words = np.empty(n, dtype=np.int64)
        self._cipher.update_into(bytes(8 * n), words.view(np.uint8).data)
        return words


def keyed_words(key: bytes, start: int, num: int, device: torch.device) -> Tensor:
    """Return the ``num`` words of :class:`KeyedStream` (``key``, ``start``), formed on a device: int64 [num]."""
    num_blocks = -(-num // 8)
    constants = np.frombuffer(b"expand 32-byte k" + key, dtype="<i4").tolist()
    counter = torch.arange(start // 8, start // 8 + num_blocks, device=device, dtype=torch.int64)
    state = torch.zeros(16, num_blocks, device=device, dtype=torch.int32)
    state[:12] = torch.tensor(constants, device=device, dtype=torch.int32).unsqueeze(1)
    state[12] = counter.to(torch.int32)
    a, b, c, d = state.clone().view(4, 4, num_blocks)
    for _ in range(10):
        a, b, c, d = _quarter_rounds(a, b, c, d)  # columns, then diagonals
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    block = torch.cat([a, b, c, d]).add_(state)
    return block.t().reshape(-1).view(torch.int64)[:num]


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _rotate(x: Tensor, bits: int) -> Tensor:
    return (x << bits) | ((x >> (32 - bits)) & ((1 << bits) - 1))
