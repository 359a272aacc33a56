"""The half-built program graph behind the parser's state machine: which edges may come next, and what they do."""

from __future__ import annotations

from collections.abc import Iterable

from doppel.parsing.build_order import MAX_LEVEL, ROOT_LEVEL, level_below
from doppel.parsing.tables import Group, Kind, Tables

_ROOT, _FUNCTION, _LEAF, _TYPE, _LAMBDA = map(int, Kind)
_VALUES = int(Group.VALUE | Group.LAMBDA)
_TYPES, _PARAMETERS = int(Group.TYPE), int(Group.PARAMETER)

Sources = list[tuple[int, int]]
"""Nodes that an edge may come from, nearest first, each with its possible labels as bits."""


class GrowingGraph:
    """Nodes, numbered from 1 in the order of their actions, and edges; 0 is the virtual root.

    The rules are those of `doppel.parsing.machine`; edge labels are bits of `doppel.parsing.tables`.

    Attributes:
        num_nodes: How many nodes there are, the pending one among them.
        is_pending: Whether the newest node waits for its first edge.
        edges: Source, number of the label's bit, target; in the order in which they came.
    """

    def __init__(self, tables: Tables) -> None:
        self.num_nodes = 0
        self.is_pending = False
        self.edges: list[tuple[int, int, int]] = []
        self._tables = tables
        # Of every node that has its place: what it is, the labels of its edges out, how deep it nests, its sources.
        self._kinds = [_ROOT]
        self._used = [0]
        self._levels = [ROOT_LEVEL]
        self._sources: list[list[int]] = [[]]
        self._path = [0]
        self._closed: list[int] = []
        # Nodes that lack an argument: they stay on the path until they have it.
        self._unmet: set[int] = set()
        # Of every lambda: how many parameters it has, and the number of its body's label, 0 before it is known.
        self._num_parameters: dict[int, int] = {}
        self._bodies: dict[int, int] = {}
        self._scopes = _Scopes()
        # Of the newest node: its label and what it may stand for, and how far its next edges may reach.
        self._label = ""
        self._kind = _ROOT
        self._groups = 0
        self._right_limit = self._left_limit = 0

    @property
    def has_gap(self) -> bool:
        """Whether some node lacks an argument."""
        return bool(self._unmet)

    def node_groups(self) -> int:
        """Return the groups of labels that one more node may have."""
        if not self._unmet and not self._tables.has_lambda and not self._tables.has_pure_type:
            return _VALUES
        groups = (int(Group.VALUE), _TYPES, int(Group.LAMBDA), _PARAMETERS)
        return sum(group for group in groups if self.first_sources(group))

    def gap_groups(self) -> int:
        """Return the groups of labels of a node that fills the newest gap, without a lambda."""
        node = max(self._unmet)
        if self._kinds[node] == _LAMBDA and not self._accepted(node, int(Group.VALUE)) & self._tables.argument_bits:
            return _PARAMETERS
        return int(Group.VALUE)

    def first_sources(self, groups: int, only_gap: bool = False) -> Sources:
        """Return where the first edge to a node of some groups may come from.

        Args:
            groups: Bits of `Group`.
            only_gap: Take no other edge if such a node can fill the newest gap.
        """
        lowest = max(self._unmet, default=0)
        if only_gap and lowest:
            bits = self._accepted(lowest, groups) & self._tables.argument_bits
            if bits:
                return [(lowest, bits)]
        sources = []
        for node in reversed(self._path):
            if node < lowest:
                break
            if bits := self._accepted(node, groups):
                sources.append((node, bits))
        return sources

    def next_sources(self, only_gap: bool = False) -> Sources:
        """Return where the next edge to the newest node may come from; after its first one, from farther up."""
        if self.is_pending:
            return self.first_sources(self._groups, only_gap)
        newest = self.num_nodes
        if not newest or self._kinds[newest] == _TYPE or not self._sources[newest][0] or not self._right_limit:
            return []
        tables, sources = self._tables, []
        if self._groups & _PARAMETERS:
            owner = self._sources[newest][0]
            if not self._bodies[owner]:
                bodies = tables.argument_bits & -(1 << (tables.first_argument + self._num_parameters[owner]))
                sources.append((owner, bodies))
            return sources
        for node in reversed(self._path[:-1]):
            if node <= self._right_limit and self._kinds[node] == _FUNCTION and self._levels[node] <= MAX_LEVEL:
                bits = (tables.keyword_bits | tables.argument_bits) & ~self._used[node]
                if bits:
                    sources.append((node, bits))
        return sources

    def _accepted(self, node: int, groups: int) -> int:
        """The labels by which an open node may lead to a new node of these groups."""
        kind = self._kinds[node]
        if kind == _ROOT:
            return 1 if groups & _VALUES else 0
        tables, used, bits = self._tables, self._used[node], 0
        is_deep = self._levels[node] > MAX_LEVEL
        if kind == _LAMBDA:
            number, body = self._num_parameters[node], self._bodies[node]
            free = 1 << (tables.first_argument + number)
            last = free if body else free << 1  # the body's label must exist too
            if groups & _PARAMETERS and (number < body or not body) and last & tables.argument_bits:
                bits |= free
            if number and not body and groups & (int(Group.VALUE) if is_deep else _VALUES):
                bits |= free
            return bits | (tables.type_bit & ~used if groups & _TYPES and not is_deep else 0)
        if is_deep:
            return 0
        if groups & _TYPES:
            if kind != _TYPE:
                bits = tables.type_bit & ~used
            if kind != _LEAF:
                bits |= _lowest_free(used, tables.type_argument_bits)
        if kind == _FUNCTION and groups & _VALUES:
            bits |= tables.keyword_bits & ~used | _lowest_free(used, tables.argument_bits)
        return bits

    def left_labels(self) -> int:
        """Return the labels by which the newest node may lead to closed ones."""
        tables, newest = self._tables, self.num_nodes
        kind = self._kinds[newest]
        if kind == _FUNCTION and self._levels[newest] <= MAX_LEVEL:
            bits = tables.left_bits & ~self._used[newest]
        elif kind == _LAMBDA and not self._bodies[newest]:
            bits = tables.left_bits & tables.argument_bits & ~(1 << tables.first_argument)
        else:
            return 0
        return bits if bits and self.left_targets() else 0

    def left_targets(self) -> list[int]:
        """Return the closed nodes that the newest node may lead to, nearest first."""
        newest, limit = self.num_nodes, self._left_limit
        can_use = self._scopes.can_use
        return sorted((node for node in self._closed if node <= limit and can_use(newest, node)), reverse=True)

    def add_node(self, action: int, label: str) -> None:
        """Begin a node: `label` is that of its action, or a quote for a string."""
        self.num_nodes += 1
        self.is_pending = True
        self._label, self._kind, self._groups = label, int(self._tables.kinds[action]), self._tables.groups[action]

    def add_right(self, source: int, label: int) -> None:
        """Add an edge from an earlier node to the newest one."""
        if self.is_pending:
            self._place(source, label)
            return
        self._right_limit = source
        is_body = self._kinds[source] == _LAMBDA
        if not is_body:
            self._scopes.share(self.num_nodes, source)
        self._connect(source, label, self.num_nodes, is_body)

    def add_left(self, target: int, label: int) -> None:
        """Add an edge from the newest node to an earlier one."""
        newest = self.num_nodes
        self._right_limit, self._left_limit = 0, target
        self._scopes.use(newest, target)
        self._connect(newest, label, target, is_body=self._kinds[newest] == _LAMBDA)

    def _place(self, source: int, label: int) -> None:
        """Hang the pending node on an open one, and close all nodes below that one."""
        tables, scopes, newest = self._tables, self._scopes, self.num_nodes
        while self._path[-1] != source:
            node = self._path.pop()
            scopes.close(node, self._sources[node])
            if self._kinds[node] != _TYPE and self._sources[node][0]:
                self._closed.append(node)
        is_type = bool(1 << label & (tables.type_bit | tables.type_argument_bits))
        is_inside = self._kinds[source] == _LAMBDA and not is_type
        self._kinds.append(_TYPE if is_type else self._kind)
        self._used.append(0)
        self._levels.append(level_below(self._levels[source], self._label, is_type))
        self._sources.append([])
        scopes.add(source, is_inside)
        self._path.append(newest)
        self.is_pending = False
        self._right_limit, self._left_limit = source, newest
        self._groups = 0 if is_type else self._groups & ~_TYPES
        if self._kinds[newest] == _LAMBDA:
            self._num_parameters[newest] = self._bodies[newest] = 0
            self._unmet.add(newest)
        if self._groups & _PARAMETERS:
            scopes.bind(newest)
            self._num_parameters[source] += 1
            self._connect(source, label, newest, is_body=False)
        else:
            self._connect(source, label, newest, is_body=is_inside)

    def _connect(self, source: int, label: int, target: int, is_body: bool) -> None:
        """Record an edge, and whether its source now lacks something."""
        self.edges.append((source, label, target))
        self._sources[target].append(source)
        if not source:
            return
        self._used[source] |= 1 << label
        if self._kinds[source] == _LAMBDA:
            if is_body:
                self._bodies[source] = label - self._tables.first_argument
            is_unmet = self._bodies[source] == 0 or self._bodies[source] != self._num_parameters[source]
        else:
            arguments = (self._used[source] & self._tables.argument_bits) >> self._tables.first_argument
            is_unmet = bool(arguments & arguments + 1)
        if is_unmet:
            self._unmet.add(source)
        else:
            self._unmet.discard(source)


class _Scopes:
    """The scopes of one graph: the program, number 0, and the body of every lambda.

    A value is computed in the innermost scope that holds all its uses, and may only use what is bound there: values
    that need no parameter, or parameters of lambdas around it. Sets of scopes are bits of an integer.
    """

    def __init__(self) -> None:
        self._around = [1]
        self._home = [0]
        self._needs = [0]
        self._own: dict[int, int] = {}

    def add(self, source: int, is_inside: bool) -> None:
        """Append a node that `source` leads to; `is_inside`: as its body or parameter, `source` being a lambda."""
        home = self._home[source]
        if is_inside:
            if source not in self._own:
                self._own[source] = len(self._around)
                self._around.append(self._around[home] | 1 << len(self._around))
            home = self._own[source]
        self._home.append(home)
        self._needs.append(0)

    def bind(self, parameter: int) -> None:
        """Say that a node is a parameter of the scope it was added to."""
        self._needs[parameter] = 1 << self._home[parameter]

    def share(self, node: int, source: int) -> None:
        """Compute a node farther out, so that `source` can use it too."""
        common = self._around[self._home[node]] & self._around[self._home[source]]
        self._home[node] = common.bit_length() - 1

    def can_use(self, node: int, target: int) -> bool:
        """Whether an open node may use a closed one: all parameters that this one needs are bound around it."""
        return not self._needs[target] & ~self._around[self._home[node]]

    def use(self, node: int, target: int) -> None:
        """Let a node need what a node that it uses needs."""
        self._needs[node] |= self._needs[target]

    def close(self, node: int, sources: Iterable[int]) -> None:
        """Finish a node: those that use it need what it needs, but for a lambda's own parameters."""
        needs = self._needs[node]
        if needs:
            for source in sources:
                self._needs[source] |= needs & ~(1 << self._own[source] if source in self._own else 0)


def _lowest_free(used: int, bits: int) -> int:
    """The lowest of `bits`, which lie side by side, that is not used; 0 if none."""
    free = bits & ~used
    return free & -free
