"""What samples teach a small language model about the next token of human turns, beside what human turns teach."""

from __future__ import annotations

import random
from collections.abc import Sequence

from commands.lightning.trained_model import place_of
from commands.runs.system import BASE_MODEL


def next_token_metrics(
    samples: Sequence[str], reference: Sequence[str], epochs: int, seed: int
) -> dict[str, float | None]:
    """Return the accuracy of the next token of one half of the reference.

    Formal guarantees:
        A function of samples, of a public reference and of a public model.

    Returns:
        ``next_token_accuracy`` after so many samples as half of the reference has turns,
        ``human_next_token_accuracy`` after that half, and ``next_token_accuracy_untrained`` of the model as it is.
    """
    from doppel.metrics.next_token import next_token_accuracy

    base = place_of(BASE_MODEL)
    rows = random.Random(seed).sample(list(reference), len(reference))
    human, judged = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    return {
        "next_token_accuracy": next_token_accuracy(samples[: len(human)], judged, base, epochs, seed),
        "human_next_token_accuracy": next_token_accuracy(human, judged, base, epochs, seed),
        "next_token_accuracy_untrained": next_token_accuracy([], judged, base, 0, seed),
    }
