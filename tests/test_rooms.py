"""The order of the rooms: imports run downward only, and no two modules import each other."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: From the top down: a room imports from itself and from the rooms that stand after it.
ROOMS = ("cli", "commands", "callbacks", "lightning_modules", "datamodules", "doppel")


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    paths = [ROOT / "cli.py", *(path for room in ROOMS[1:] for path in sorted((ROOT / room).rglob("*.py")))]
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in paths}
    return {".".join(p[:-1] if p[-1] == "__init__" else p): path for path, p in parts.items()}


@cache
def imported(name: str) -> frozenset[str]:
    """All that a module imports, wherever it does: inside functions and for type checkers too."""
    path, found = modules()[name], set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            members = {f"{source}.{alias.name}" for alias in node.names}
            found |= {member if member in modules() else source for member in members}
    return frozenset(found)


def circles(graph: dict[str, set[str]]) -> set[tuple[str, ...]]:
    """Strongly connected components of more than one module (Tarjan, 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: set[tuple[str, ...]] = set()

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.add(tuple(sorted(stack[at:])))
            del stack[at:]

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_imports_run_downward() -> None:
    upward = {
        (name, other)
        for name in modules()
        for other in imported(name)
        if (room := other.split(".")[0]) in ROOMS and ROOMS.index(room) < ROOMS.index(name.split(".")[0])
    }
    assert upward == set()


def test_no_modules_import_each_other() -> None:
    graph = {name: {other for other in imported(name) if other in modules() and other != name} for name in modules()}
    assert circles(graph) == set()


def test_a_circle_is_found() -> None:
    graph: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert circles(graph) == {("a", "b", "c")}
