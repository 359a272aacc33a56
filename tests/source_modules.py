"""The product's modules and what they import."""

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
