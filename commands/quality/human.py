"""What human turns have in place of a metric of samples: without it a figure says neither good nor bad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def human_value(metrics: Mapping[str, Any], name: str) -> float | None:
    """The value that human turns have of a metric; None where the report has none.

    Args:
        metrics: Of one system, as ``evaluate`` writes them.
        name: A metric, such as ``word_overlap`` or ``private/exact_copies``.
    """
    value = next((metrics[key] for key in baselines(name) if metrics.get(key) is not None), None)
    return float(value) if isinstance(value, int | float) else None


def baselines(name: str) -> list[str]:
    """Under which names the human value of a metric may stand."""
    room, _, own = name.rpartition("/")
    room += "/" if room else ""
    if own.startswith("parsed_"):  # with a parser's errors, which both sides have
        return [f"{room}ground_truth_{'exact_match' if own == 'parsed_own_tree_match' else own[7:]}"]
    return [f"{room}{word}_{own}" for word in ("human", "reference")]


def is_baseline(name: str) -> bool:
    """Whether a metric is the human value of another one."""
    return name.rpartition("/")[2].startswith(("human_", "reference_", "ground_truth_"))
