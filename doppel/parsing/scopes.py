"""Where the values of a growing graph are computed, and which lambdas they need."""

from __future__ import annotations

from collections.abc import Iterable


class Scopes:
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
