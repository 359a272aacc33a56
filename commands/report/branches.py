"""How requests are built: the functions of all samples, arranged by who calls them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commands.report.asked import Sample, lacks
from commands.report.names import Names
from commands.report.supported import Supported


@dataclass(frozen=True)
class Branch:
    """A function in the hierarchy: who calls it is above it.

    Attributes:
        names: Functions that always call one another in a row, the outermost first.
        count: Samples that use this path.
        share: Of all samples.
        unserved: Of the samples that use this path, those that use something that is not supported; None: unknown.
        inner: What these call, the most frequent first.
        num_rarer: How many more they call, each too rarely to show.
    """

    names: tuple[str, ...]
    count: int
    share: float
    unserved: float | None
    inner: tuple[Branch, ...]
    num_rarer: int


def hierarchy(
    calls: Sequence[tuple[Sample, frozenset[tuple[str, ...]]]],
    names: Names,
    supported: Supported | None,
    fewest: int,
) -> tuple[Branch, ...]:
    """Arrange the functions of all samples by who calls them.

    Args:
        calls: Each sample with the paths of its tree, from the outermost function down.
        names: What is plumbing.
        supported: What the assistant supports.
        fewest: Samples that a path must have.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    unserved: Counter[tuple[str, ...]] = Counter()
    for sample, paths in calls:
        counts.update(paths)
        unserved.update(paths if lacks(sample, names, supported) else ())
    inner: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for path in counts:
        inner[path[:-1]].append(path)
    return _branches((), inner, counts, None if supported is None else unserved, len(calls), fewest)


def _branches(
    parent: tuple[str, ...],
    inner: Mapping[tuple[str, ...], list[tuple[str, ...]]],
    counts: Mapping[tuple[str, ...], int],
    unserved: Mapping[tuple[str, ...], int] | None,
    total: int,
    fewest: int,
) -> tuple[Branch, ...]:
    found = []
    for path in sorted(inner.get(parent, ()), key=lambda path: (-counts[path], path)):
        if counts[path] < fewest:
            continue
        end = path
        while len(own := inner.get(end, [])) == 1 and counts[own[0]] == counts[end]:  # always the one call
            end = own[0]
        names = end[len(path) - 1 :]
        found.append(
            Branch(
                names=names,
                count=counts[path],
                share=counts[path] / total,
                unserved=None if unserved is None else unserved[path] / counts[path],
                inner=_branches(end, inner, counts, unserved, total, fewest),
                num_rarer=sum(counts[own] < fewest for own in inner.get(end, ())),
            )
        )
    return tuple(found)
