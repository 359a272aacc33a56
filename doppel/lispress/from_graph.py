"""From program graph back to expression: ``let``, ``do`` and type annotations are put where they belong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container

from doppel.lispress.calls import BINDERS
from doppel.lispress.expression import (
    Expression,
    List,
    Number,
    ReaderLiteral,
    String,
    Symbol,
    TypeAnnotation,
    is_variable,
)
from doppel.lispress.graph import PARAMETER, TYPE, Graph, argument_number, is_literal, is_type_label

CONSTANTS = frozenset(("true", "false"))
"""Labels that are written bare, where nothing else is said."""


def to_expression(graph: Graph, constants: Container[str] = CONSTANTS) -> Expression:
    """Write a program graph as an expression: the inverse of `doppel.lispress.to_graph`.

    A node that several edges point to becomes a variable ``x0``, ``x1`` …, bound by the ``let`` of the
    innermost lambda body (or the program) that holds all its uses, after the values that its own value needs.
    Several roots become the statements of one ``do``.

    Args:
        graph: A graph that `to_graph` made, or one like it: acyclic, labels of one source distinct, no gap
            before ``:arg{i}``, every use of a lambda's parameter inside its body.
        constants: Labels of the nodes that are written bare (``true``) rather than as a call without
            arguments (``(FenceScope)``), when they have none.

    Returns:
        The expression; `to_graph` of it equals `graph` up to the numbering of the nodes.

    Raises:
        ValueError: The graph has no root or a cycle.
        LispressError: A label cannot be written.
    """
    return _Writer(graph, constants).write()


class _Writer:
    """Writes the nodes of one graph, targets before sources. A scope is a lambda, or -1 for the program."""

    def __init__(self, graph: Graph, constants: Container[str]) -> None:
        self.nodes = graph.nodes
        self.roots = graph.roots
        self.constants = constants
        self.edges: list[list[tuple[str, int]]] = [[] for _ in graph.nodes]
        self.num_uses = Counter(target for _, _, target in graph.edges)
        for source, label, target in graph.edges:
            self.edges[source].append((label, target))
        self.order = self._targets_first()
        self.types = self._types()
        self.lambdas = {node: label for node in self.order if (label := self._body_label(node)) is not None}
        self.parameters: set[int] = set()
        self.scope = self._scopes()
        self.variables: dict[int, Symbol] = {}
        self.bindings: defaultdict[int, list[Expression]] = defaultdict(list)

    def write(self) -> Expression:
        expressions: dict[int, Expression] = {}
        for node in self.order:
            if node in self.parameters or self.num_uses[node] > 1:
                self.variables[node] = Symbol(f"x{len(self.variables)}")
        for node in self.order:
            expression = self._expression(node, expressions)
            if node in self.variables and node not in self.parameters:
                self.bindings[self.scope[node]] += (self.variables[node], expression)
                expression = self.variables[node]
            expressions[node] = expression
        statements = [expressions[root] for root in self.roots]
        body = statements[0] if len(statements) == 1 else List((Symbol("do"), *statements))
        return self._with_bindings(-1, body)

    def _targets_first(self) -> list[int]:
        """All nodes, the target of every edge before its source."""
        order: list[int] = []
        begun: set[int] = set()
        todo = [(root, False) for root in reversed(self.roots)]
        while todo:
            node, are_targets_done = todo.pop()
            if are_targets_done:
                order.append(node)
            elif node not in begun:
                begun.add(node)
                todo.append((node, True))
                todo.extend((target, False) for _, target in reversed(self.edges[node]))
        position = {node: number for number, node in enumerate(order)}
        for source, edges in enumerate(self.edges):
            if any(position.get(target, len(order)) >= position.get(source, -1) for _, target in edges):
                raise ValueError("the graph has a cycle: no program computes it")
        if not order:
            raise ValueError("the graph has no root: a program has at least one statement")
        return order

    def _types(self) -> set[int]:
        """The nodes that stand for types: what ``:type`` and ``:type-arg{i}`` lead to, if it looks like one."""
        typed = {target for edges in self.edges for label, target in edges if is_type_label(label)}
        types: set[int] = set()
        for node in self.order:
            label = self.nodes[node]
            is_name = not label.startswith(":") and not is_literal(label)
            has_types = all(label != TYPE and child in types for label, child in self.edges[node])
            if node in typed and self.num_uses[node] == 1 and is_name and has_types:
                types.add(node)
        return types

    def _body_label(self, node: int) -> str | None:
        """Of a lambda, the label of the edge to its body: its other arguments are its parameters."""
        if self.nodes[node] != "lambda":
            return None
        arguments = sorted((edge for edge in self.edges[node] if edge[0] != TYPE), key=_argument_number)
        parameters = [target for _, target in arguments[:-1] if self.nodes[target] == PARAMETER]
        numbered = [label for label, _ in arguments] == [f":arg{number}" for number in range(len(arguments))]
        return arguments[-1][0] if numbered and 0 < len(set(parameters)) == len(arguments) - 1 else None

    def _scopes(self) -> dict[int, int]:
        """The innermost scope that holds all uses of a node, for every node; finds the parameters on the way."""
        scope = dict.fromkeys(self.roots, -1)
        for node in reversed(self.order):
            for label, target in self.edges[node]:
                here = scope[node]
                if node in self.lambdas and label != TYPE:
                    here = node
                    if label != self.lambdas[node]:
                        self.parameters.add(target)
                scope[target] = self._common(scope[target], here, scope) if target in scope else here
        return scope

    @staticmethod
    def _common(one: int, other: int, scope: dict[int, int]) -> int:
        """The innermost scope around two scopes."""
        around = {one}
        while one != -1:
            one = scope[one]
            around.add(one)
        while other not in around:
            other = scope[other]
        return other

    def _with_bindings(self, scope: int, body: Expression) -> Expression:
        bindings = self.bindings[scope]
        return List((Symbol("let"), List(tuple(bindings)), body)) if bindings else body

    def _expression(self, node: int, expressions: dict[int, Expression]) -> Expression:
        """What a node computes, and the type ascribed to it."""
        label = self.nodes[node]
        ascription: Expression | None = None
        types: list[Expression] = []
        values: list[Expression] = []
        keywords: list[Expression] = []
        for name, target in sorted(self.edges[node], key=_argument_number):
            value = expressions[target]
            if name == TYPE and target in self.types and ascription is None:
                ascription = value
            elif name == f":type-arg{len(types)}" and target in self.types:
                types.append(value)
            elif name == f":arg{len(values)}":
                values.append(value)
            else:
                keywords += (Symbol(name), value)
        symbol = None if is_literal(label) else Symbol(label)
        is_leaf = not (types or values or keywords)

        expression: Expression
        if symbol is None:
            expression = String(label[1:-1]) if label.startswith('"') else Number(label)
        elif node in self.types:
            return symbol if is_leaf else List((symbol, *types))
        elif node in self.parameters:
            expression = self.variables[node]
        elif node in self.lambdas:
            expression = List((symbol, List(tuple(values[:-1])), self._with_bindings(node, values[-1])))
        elif is_leaf and (label in self.constants or label in BINDERS):
            expression = symbol
        elif types:
            expression = List((TypeAnnotation(List(tuple(types)), symbol), *values, *keywords))
        elif not is_leaf and (label in (*BINDERS, "do") or is_variable(label)):
            expression = ReaderLiteral(List((symbol, *values)))
        else:
            expression = List((symbol, *values, *keywords))
        return expression if ascription is None else TypeAnnotation(ascription, expression)


def _argument_number(edge: tuple[str, int]) -> int:
    """Sorts arguments by their numbers, and keywords behind them in the order of the graph."""
    found = argument_number(edge[0])
    return found[1] if found else 1 << 30
