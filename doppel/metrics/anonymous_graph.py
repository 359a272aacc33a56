"""What is compared of a parse tree: the names in its graph, strings hidden."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from doppel.lispress import ANONYMOUS_STRING, anonymise, is_valid, read, to_graph

STRING = f'"{ANONYMOUS_STRING.spelling}"'
"""Name of every string's node."""


@dataclass(frozen=True, slots=True)
class AnonymousGraph:
    """The names of a graph, or of a part of one, as Zhou et al. (2022) compare them.

    Two of them are equal where the multisets of names and of triples are: not quite isomorphism of the graphs,
    but cheap, and blind to the order in which nodes were made.

    Attributes:
        nodes: names of all nodes, repeats kept, sorted.
        triples: (source's name, label, target's name) of all edges, repeats kept, sorted.
    """

    nodes: tuple[str, ...]
    triples: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, names: tuple[str, ...], edges: Iterable[tuple[int, str, int]], members: Iterable[int]) -> Self:
        """Return the part of a graph that ``members`` span."""
        kept = set(members)
        triples = ((names[s], label, names[t]) for s, label, t in edges if s in kept and t in kept)
        return cls(tuple(sorted(names[node] for node in kept)), tuple(sorted(triples)))


@lru_cache(maxsize=1 << 15)
def _names_and_edges(tree: str) -> tuple[tuple[str, ...], tuple[tuple[int, str, int], ...]] | None:
    if not is_valid(tree):
        return None
    graph = to_graph(anonymise(read(tree)))
    return graph.nodes, graph.edges


@lru_cache(maxsize=1 << 15)
def anonymous_graph(tree: str) -> AnonymousGraph | None:
    """Return the names of a tree's graph, every string being called ``"STRING"``; None for no valid Lispress."""
    parts = _names_and_edges(tree)
    return None if parts is None else AnonymousGraph.of(*parts, range(len(parts[0])))


def anonymous_subgraphs(tree: str, roots: Set[str]) -> list[AnonymousGraph]:
    """Return all that can be reached from each node whose name is in ``roots``, one graph for each such node.

    Parts may lie inside each other, and a shared node belongs to each part that reaches it. A tree that is no
    valid Lispress has none.
    """
    parts = _names_and_edges(tree)
    if parts is None:
        return []
    names, edges = parts
    targets: dict[int, list[int]] = {}
    for source, _, target in edges:
        targets.setdefault(source, []).append(target)
    graphs = []
    for root in (node for node, name in enumerate(names) if name in roots):
        reached, todo = {root}, [root]
        while todo:
            new = [node for node in targets.get(todo.pop(), ()) if node not in reached]
            reached.update(new)
            todo += new
        graphs.append(AnonymousGraph.of(names, edges, reached))
    return graphs
