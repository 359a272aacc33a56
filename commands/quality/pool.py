"""Pools the runs of one setting: mean and unbiased standard deviation over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commands.quality.runs import Point


@dataclass(frozen=True)
class Cell:
    """A metric over the ``num`` seeds that have it: mean, unbiased deviation, and why others lack it."""

    mean: float | None
    std: float | None
    num: int
    note: str = ""

    @classmethod
    def of(cls, values: Sequence[float], note: str = "") -> Cell:
        """The cell of one value a seed."""
        mean = statistics.fmean(values) if values else None
        return cls(mean, statistics.stdev(values) if len(values) > 1 else None, len(values), note)


@dataclass(frozen=True)
class Group:
    """All runs of one setting, whose keys are equal: those that count, in order of seed, and why others do not."""

    key: Mapping[str, Any]
    points: tuple[Point, ...]
    notes: tuple[str, ...]

    @property
    def commits(self) -> list[str]:
        """Commits that made the runs."""
        return list(dict.fromkeys(part for point in self.points for part in point.commit.split(", ")))

    @property
    def spent(self) -> float | None:
        """Largest ε that a run spent; None without privacy."""
        return max((point.spent for point in self.points if point.spent is not None), default=None)

    def cell(self, metric: str) -> Cell:
        """A metric over the group's seeds."""
        found = [(point, point.values.get(metric)) for point in self.points]
        numbers = [value for _, value in found if value is not None]
        note = "; ".join(dict.fromkeys(_why(point, metric) for point, value in found if value is None))
        if note and numbers:
            note = f"only {len(numbers)} of {len(self.points)} seeds: {note}"
        return Cell.of(numbers, note)

    def metrics(self) -> list[str]:
        """Every metric that some run has."""
        return list(dict.fromkeys(name for point in self.points for name in point.values))


def pool(points: Iterable[Point]) -> list[Group]:
    """Put the points with equal keys together.

    A seed that occurs twice counts once if both runs have the same numbers; otherwise neither counts, for nothing
    tells which is right. A run without a seed counts only where it is alone.
    """
    by_key: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        by_key.setdefault(tuple(point.key.values()), []).append(point)
    return [_group(members) for members in by_key.values()]


def _group(members: Sequence[Point]) -> Group:
    by_seed: dict[int | None, list[Point]] = {}
    for point in members:
        by_seed.setdefault(point.seed, []).append(point)
    kept, notes = [], []
    for seed, same in by_seed.items():
        paths = " and ".join(point.path for point in same)
        if seed is None and len(members) > 1:
            notes.append(f"{paths} left out: without a seed, a repeated run cannot be told from a new one")
        elif all(point.values == same[0].values for point in same):
            kept.append(same[0])
            if len(same) > 1:
                notes.append(f"duplicate seed {seed}: {paths} hold the same numbers, counted once")
        else:
            notes.append(f"duplicate seed {seed}: {paths} hold different numbers, both left out")
    kept.sort(key=lambda point: -1 if point.seed is None else point.seed)
    return Group(members[0].key, tuple(kept), tuple(notes))


def _why(point: Point, metric: str) -> str:
    """The report's own reason for a missing value."""
    seed = "" if point.seed is None else f"seed {point.seed}: "
    if metric.startswith("parsed_") and point.key["parser"] == "none":
        return f"{seed}evaluated without a semantic parser"
    if metric not in point.values:
        return f"{seed}not in the report"
    stem = metric.split("@")[0].removeprefix("parsed_")
    reasons = [note for note in point.notes if stem in note or "null" in note]
    return f"{seed}null in the report" + (f" ({'; '.join(reasons)})" if reasons else "")
