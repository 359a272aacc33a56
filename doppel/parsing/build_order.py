"""The order in which a parser builds a graph: its nodes depth first, each with its arcs to earlier nodes."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from doppel.lispress import MAX_DEPTH, Graph, String
from doppel.lispress.expression import is_variable
from doppel.lispress.graph import PARAMETER, TYPE, argument_number, is_literal, is_type_label

LAMBDA = "lambda"
MAX_LEVEL = MAX_DEPTH - 20
"""Deepest level (see `level_below`) of a node that takes arguments freely."""


class Arc(NamedTuple):
    """An edge between the node at hand and an earlier one, whose number it holds, or -1 for the virtual root."""

    node: int
    label: str


class Step(NamedTuple):
    """One node of a ordered graph; nodes are numbered in the order of the steps.

    Attributes:
        label: As in the graph.
        right: Edges from earlier nodes to this one, nearest first; never empty.
        left: Edges from this node to earlier ones, nearest first.
    """

    label: str
    right: list[Arc]
    left: list[Arc]


@cache
def edge_rank(label: str) -> tuple[int, int]:
    """Return the sort key of the edges out of one node: ``:type``, type arguments, arguments, keywords."""
    if label == TYPE:
        return 0, 0
    argument = argument_number(label)
    return (3, 0) if argument is None else (1 if argument[0] else 2, argument[1])


def can_be_value(label: str) -> bool:
    """Return whether a node with this label may stand for a value; `LAMBDA` and `PARAMETER` have other rules."""
    return label not in ("let", "do") and not is_variable(label)


def can_be_type(label: str) -> bool:
    """Return whether a node with this label may stand for a type."""
    return label not in (LAMBDA, PARAMETER) and not label.startswith(":") and not is_literal(label)


def level_below(level: int, label: str, is_type: bool) -> int:
    """Return how deep brackets may nest inside a node below a node of a given level, whatever ``let`` moves."""
    return level + (3 if is_type else 4 if label == LAMBDA else 2)


ROOT_LEVEL = 3
"""Level of the virtual root: room for ``let``, its bindings and ``do``."""


def build_steps(graph: Graph) -> list[Step] | None:
    """Order a program graph for the parser of `doppel.parsing.machine`.

    The nodes come depth first from the roots, in the order of their first visit; the children of a node by
    `:type`, type arguments, positional arguments, keywords in their order in the graph.

    Args:
        graph: The graph of a well-formed tree, or one that equals such a graph.

    Returns:
        The steps, or None for the few graphs outside the parser's language: two edges of one source with the
        same label, a gap before ``:arg{i}``, `let`, `do` or a variable as a function, a shared type, a string
        that JSON spells differently, nesting near `MAX_DEPTH`.
    """
    children: list[list[Arc]] = [[] for _ in graph.nodes]
    for source, label, target in graph.edges:
        children[source].append(Arc(target, label))
    for arcs in children:
        arcs.sort(key=lambda arc: edge_rank(arc.label))

    number = [-1] * len(graph.nodes)
    steps: list[Step] = []
    visits: list[tuple[int, bool]] = []  # of each step, its node and whether that is a type
    levels: list[int] = []
    pending: list[list[Arc]] = [[] for _ in graph.nodes]
    todo = [(root, Arc(-1, ":root")) for root in reversed(graph.roots)]
    while todo:
        node, first = todo.pop()
        if number[node] >= 0:
            continue
        number[node] = len(steps)
        is_type = first.node >= 0 and is_type_label(first.label)
        visits.append((node, is_type))
        levels.append(level_below(ROOT_LEVEL if first.node < 0 else levels[first.node], graph.nodes[node], is_type))
        left = []
        for child, label in children[node]:
            if number[child] >= 0:
                left.append(Arc(number[child], label))
            else:
                pending[child].append(Arc(number[node], label))
        steps.append(Step(graph.nodes[node], _nearest_first(pending[node]) or [first], _nearest_first(left)))
        todo.extend((child, Arc(number[node], label)) for child, label in reversed(children[node]))
    if max(levels) > MAX_LEVEL:
        return None
    parameters: set[int] = set()
    for step, (node, is_type) in zip(steps, visits, strict=True):
        targets = [graph.nodes[child] for child, _ in children[node]]
        is_astray = step.label == PARAMETER and node not in parameters
        if is_astray or not _is_expressible(step, [label for _, label in children[node]], targets, is_type):
            return None
        if step.label == LAMBDA:
            own = [child for child, label in children[node][:-1] if label != TYPE]
            if len(set(own)) < len(own) or any(number[child] < number[node] for child in own):
                return None
            parameters.update(own)
    return steps


def _nearest_first(arcs: list[Arc]) -> list[Arc]:
    return sorted(arcs, key=lambda arc: -arc.node)


def _is_expressible(step: Step, labels: list[str], targets: list[str], is_type: bool) -> bool:
    """Whether a node may stand where it stands and has the edges out that its kind may have."""
    if len(set(labels)) < len(labels):
        return False
    for of_types in (False, True):
        numbers = [found[1] for found in map(argument_number, labels) if found and found[0] is of_types]
        if numbers != list(range(len(numbers))):
            return False
    if is_type:
        plain = len(step.right) == 1 and not step.left and TYPE not in labels
        return plain and can_be_type(step.label) and all(map(is_type_label, labels))
    if not can_be_value(step.label) or any(is_type_label(arc.label) for arc in (*step.right, *step.left)):
        return False
    if is_literal(step.label) or step.label == PARAMETER:
        if step.label.startswith('"') and String.of(String(step.label[1:-1]).value).spelling != step.label[1:-1]:
            return False
        return all(label == TYPE for label in labels)
    if step.label == LAMBDA:
        skip = labels[:1] == [TYPE]
        numbered = all(argument_number(label) and not is_type_label(label) for label in labels[skip:])
        return numbered and len(labels) - skip > 1 and all(target == PARAMETER for target in targets[skip:-1])
    return True
