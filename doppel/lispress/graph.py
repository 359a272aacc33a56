"""The program graph of a tree: one node per computed value, shared where ``let`` shares it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from doppel.lispress.calls import Call, call_of
from doppel.lispress.expression import (
    Expression,
    List,
    Number,
    ReaderLiteral,
    String,
    Symbol,
    TypeAnnotation,
    is_number,
    write,
)
from doppel.lispress.validity import require_valid

PARAMETER = "lambda-parameter"
"""Label of the node that a lambda's parameter becomes, whatever its name was."""

TYPE = ":type"
"""Label of the edge from a value to the type that is ascribed to it."""

_ARGUMENT = re.compile(r":(type-)?arg(0|[1-9][0-9]*)").fullmatch

Edge = tuple[int, str, int]
"""Source node, label, target node."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed acyclic graph with labelled nodes and edges.

    Attributes:
        nodes: Labels; a node is named by its index. Strings carry their quotes, numbers their spelling.
        edges: ``(source, label, target)``, sorted by source, in the order of the text.
    """

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]

    @property
    def roots(self) -> tuple[int, ...]:
        """Nodes that no edge points to, in order: the statements of the program."""
        targets = {target for _, _, target in self.edges}
        return tuple(node for node in range(len(self.nodes)) if node not in targets)


def argument_number(label: str) -> tuple[bool, int] | None:
    """Return whether ``:arg3`` or ``:type-arg3`` is a type argument, and its number; None for other labels."""
    found = _ARGUMENT(label)
    return found and (found[1] is not None, int(found[2]))


def is_type_label(label: str) -> bool:
    """Return whether an edge with this label leads to a type."""
    return label == TYPE or label.startswith(":type-arg") and _ARGUMENT(label) is not None


def is_literal(label: str) -> bool:
    """Return whether a label is that of a string or a number, which take no arguments."""
    return label.startswith('"') or is_number(label) is not None


def to_graph(expression: Expression) -> Graph:
    """Convert a tree to its program graph (SMCalFlow's ``Program``, as in Zhou et al.'s semantic parser).

    A call is a node labelled with its function; ``:arg0``, … lead to positional arguments, ``:name`` to keyword
    arguments, ``:type-arg0``, … to type arguments; literals and bare symbols are leaves. A type ``(List Event)`` is a
    node ``List`` with ``:type-arg0`` to ``Event``; ``^T e`` is an edge ``:type`` from ``e`` (the first one, where a
    shared value has several). ``let`` makes no node: every use leads to the node of the value. ``do`` makes none
    either: its statements are roots, its value the last one. ``lambda`` has parameters (nodes `PARAMETER`, shared by
    their uses), then its body, as arguments. ``#(Number 23)``, ``#(String "a")`` and ``#(Boolean true)`` equal bare
    literals; any other ``#(T v)`` is a node ``T`` with argument ``v``.

    Args:
        expression: A well-formed expression, however deep.

    Returns:
        The graph, its nodes numbered in the order of the text.

    Raises:
        LispressError: The expression is not well-formed in the sense of `doppel.lispress.first_error`.
    """
    require_valid(expression)
    return _Builder().build(expression)


@dataclass(slots=True)
class _Variable:
    """A variable in scope, a link of a chain, innermost first; `node` is set when its value is visited."""

    name: str
    outer: _Variable | None
    node: int = -1


class _Visit(NamedTuple):
    """An expression still to be visited, and where its node must be attached."""

    expression: Expression
    scope: _Variable | None = None
    parent: int = -1
    label: str = ""
    ascription: Expression | None = None
    binds: tuple[_Variable, ...] = ()
    is_type: bool = False


@dataclass(slots=True)
class _Builder:
    """Visits a well-formed tree in the order of the text, with a stack of its own."""

    nodes: list[str] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    todo: list[_Visit] = field(default_factory=list)
    typed: set[int] = field(default_factory=set)

    def build(self, expression: Expression) -> Graph:
        self.todo.append(_Visit(expression))
        while self.todo:
            visit = self.todo.pop()
            expression = visit.expression
            if isinstance(expression, List):
                self._visit_list(visit, expression)
            elif isinstance(expression, Symbol):
                variable = None if visit.is_type else _look_up(expression.name, visit.scope)
                self._attach(visit, self._add(expression.name) if variable is None else variable.node)
            elif isinstance(expression, String | Number):
                self._attach(visit, self._add(write(expression)))
            elif isinstance(expression, TypeAnnotation):
                ascription = visit.ascription or expression.type
                self.todo.append(visit._replace(expression=expression.body, ascription=ascription))
            else:
                self._visit_literal(visit, expression)
        return Graph(tuple(self.nodes), tuple(sorted(self.edges, key=lambda edge: edge[0])))

    def _add(self, label: str) -> int:
        self.nodes.append(label)
        return len(self.nodes) - 1

    def _attach(self, visit: _Visit, node: int) -> None:
        """Tie a node to the place where its expression stands."""
        if visit.parent >= 0:
            self.edges.append((visit.parent, visit.label, node))
        for variable in visit.binds:
            variable.node = node
        if visit.ascription is not None and node not in self.typed:
            self.typed.add(node)
            self.todo.append(_Visit(visit.ascription, None, node, TYPE, is_type=True))

    def _visit_list(self, visit: _Visit, expression: List) -> None:
        if visit.is_type:
            head, *inner = expression.items
            call = Call(write(head), tuple(inner), (), ())
        else:
            call = call_of(expression)
        if call.function == "do" and not call.types:
            self._visit_do(visit, expression.items[1:])
            return
        if call.parameters:
            (self._visit_let if call.function == "let" else self._visit_lambda)(visit, call)
            return
        node = self._add(call.function)
        parts = [
            _Visit(argument, None, node, f":type-arg{number}", is_type=True)
            for number, argument in enumerate(call.types)
        ]
        num_positional = 0
        for keyword, argument, _ in call.arguments:
            parts.append(_Visit(argument, visit.scope, node, keyword or f":arg{num_positional}"))
            num_positional += not keyword
        self.todo.extend(reversed(parts))
        self._attach(visit, node)

    def _visit_let(self, visit: _Visit, call: Call) -> None:
        *inner, body = call.arguments
        parts, scope = [], visit.scope
        for (name, _), argument in zip(call.parameters, inner, strict=True):
            variable = _Variable(name, scope)
            parts.append(_Visit(argument.value, scope, binds=(variable,)))
            scope = variable
        parts.append(visit._replace(expression=body.value, scope=scope))
        self.todo.extend(reversed(parts))

    def _visit_lambda(self, visit: _Visit, call: Call) -> None:
        node, scope = self._add("lambda"), visit.scope
        self._attach(visit, node)
        types = []
        for number, (name, ascription) in enumerate(call.parameters):
            scope = _Variable(name, scope, self._add(PARAMETER))
            self.edges.append((node, f":arg{number}", scope.node))
            if ascription is not None:
                self.typed.add(scope.node)
                types.append(_Visit(ascription, None, scope.node, TYPE, is_type=True))
        self.todo.append(_Visit(call.arguments[-1].value, scope, node, f":arg{len(call.parameters)}"))
        self.todo.extend(reversed(types))

    def _visit_do(self, visit: _Visit, arguments: tuple[Expression, ...]) -> None:
        if not arguments:
            self._attach(visit, self._add("do"))
            return
        self.todo.append(visit._replace(expression=arguments[-1]))
        self.todo.extend(_Visit(statement, visit.scope) for statement in reversed(arguments[:-1]))

    def _visit_literal(self, visit: _Visit, expression: ReaderLiteral) -> None:
        assert isinstance(expression.body, List)
        schema, *values = expression.body.items
        assert isinstance(schema, Symbol)
        if len(values) == 1 and schema.name in ("Number", "String", "Boolean"):
            self.todo.append(visit._replace(expression=values[0]))
            return
        node = self._add(schema.name)
        parts = [_Visit(value, visit.scope, node, f":arg{number}") for number, value in enumerate(values)]
        self.todo.extend(reversed(parts))
        self._attach(visit, node)


def _look_up(name: str, scope: _Variable | None) -> _Variable | None:
    while scope is not None and scope.name != name:
        scope = scope.outer
    return scope
