"""How attributes are distributed over texts, and how often texts have those that they were written for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def jensen_shannon(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> float:
    """Compute the Jensen–Shannon divergence of the shares of values, in bits: 0 where they are equal, at most 1.

    The divergence itself, as MAPLE reports it, and not its square root, which SciPy's ``jensenshannon`` returns.

    Raises:
        ValueError: A side is empty.
    """
    if not ours or not theirs:
        raise ValueError("there is no value on one side")
    p, q = Counter(ours), Counter(theirs)
    total = 0.0
    for value in p | q:
        a, b = p[value] / len(ours), q[value] / len(theirs)
        middle = (a + b) / 2
        total += sum(share * math.log2(share / middle) / 2 for share in (a, b) if share)
    return min(max(total, 0.0), 1.0)


def adherence(wanted: Sequence[Hashable], read: Sequence[Hashable]) -> tuple[float, float]:
    """Return the share of texts with the value that they were written for, and the same for shuffled texts.

    The second is what texts have that do not follow their prompts, but have the same values as often.

    Args:
        wanted: Value that each text was written for.
        read: Value that is read in it.
    """
    asked, found, size = Counter(wanted), Counter(read), len(wanted)
    own = sum(w == r for w, r in zip(wanted, read, strict=True)) / size
    return own, sum(count * found[value] for value, count in asked.items()) / size**2
