"""Seeds of a model's own randomness, such as dropout, one for each step."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

#: Maps (step, rank) to a seed of PyTorch's generators, or to None to leave them as they are.
StepSeed = Callable[[int, int], int | None]


def public_step_seed(step: int, rank: int) -> int | None:
    """A function of ``seed_everything``, the step and the rank: a resumed run draws what an undisturbed one draws.

    For training that makes no privacy claim: whoever reads the configuration knows the seed.
    :class:`~callbacks.differential_privacy.DifferentialPrivacy` puts a secret in its place.

    Args:
        step: Optimiser step, counted from the start of training.
        rank: Global rank of this process.

    Returns:
        A number of 63 bits; None if nothing was seeded.
    """
    seed = os.environ.get("PL_GLOBAL_SEED")
    if seed is None:
        return None
    digest = hashlib.blake2b(f"step,{seed},{step},{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
