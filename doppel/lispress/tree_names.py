"""The names that trees are made of."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from doppel.errors import DataError
from doppel.files import read_json_lines
from doppel.lispress.calls import values
from doppel.lispress.expression import Expression, List, ReaderLiteral, TypeAnnotation, write
from doppel.lispress.function_types import bare_symbols, valid_function_types
from doppel.lispress.names import ApiNames
from doppel.lispress.reader import read
from doppel.lispress.validity import is_valid

#: How a file of public trees ends; any other one is a table of an API.
TREES = ".jsonl"


def read_tree_names(path: str | Path) -> ApiNames:
    """Read the names in a file of public trees, see :func:`names_in_trees`.

    Args:
        path: JSON lines with ``"parse"``; ``~`` and variables such as ``${DOPPEL_DATA}`` are expanded.

    Raises:
        DataError: The file cannot be read, or a line has no tree; the message says which.
    """
    lines = list(read_json_lines(os.path.expanduser(os.path.expandvars(path))))
    for number, line in lines:
        if not is_valid(str(line.get("parse"))):
            raise DataError('no tree in Lispress under "parse"', about=f"{path}:{number}")
    return names_in_trees(str(line["parse"]) for _, line in lines)


def names_in_trees(trees: Iterable[str]) -> ApiNames:
    """Return the functions, types, constants and names of arguments that occur in trees.

    A function takes as many arguments as it has in some tree, and what lies between; see :class:`ApiNames`.

    Formal guarantees:
        The names are a function of the trees alone. What is sampled under a grammar of them is post-processing of the
        model as long as the trees are public: of private ones the grammar would tell, without noise, which functions
        somebody has called.

    Args:
        trees: Lispress; one that is not well-formed has no names.
    """
    functions: dict[tuple[str, tuple[str, ...]], None] = {}
    types, constants, literals = set[tuple[str, int]](), set[str](), set[str]()
    for tree in filter(is_valid, dict.fromkeys(trees)):
        expression = read(tree)
        constants |= bare_symbols(expression)
        for node, _, call in values(expression):
            if isinstance(node, TypeAnnotation):
                types.update(_types_in([node.type]))
            elif isinstance(node, ReaderLiteral):
                assert isinstance(node.body, List)
                literals.add(write(node.body.items[0]))
            elif call is not None:
                types.update(_types_in([*call.types, *(of for _, of in call.parameters if of is not None)]))
                if not call.parameters:
                    functions[call.function, tuple(argument.keyword[1:] for argument in call.arguments)] = None
    return ApiNames(functions, types, constants, literals)


def unseen_share(trees: Sequence[str]) -> float:
    """Estimate the probability that the next tree calls a function that none of some trees calls.

    The estimate of Good (1953), of trees in place of single functions: the share of the trees that call a function that
    no other one calls.

    Args:
        trees: Well-formed trees, with repeats.

    Returns:
        A share of 0 to 1; 1 without trees.
    """
    functions = [frozenset(valid_function_types(tree, "call_heads") or ()) for tree in trees]
    counts = Counter(name for of_tree in functions for name in of_tree)
    return sum(any(counts[name] == 1 for name in of_tree) for of_tree in functions) / len(trees) if trees else 1.0


def _types_in(todo: list[Expression]) -> Iterator[tuple[str, int]]:
    """Name and number of arguments of some types and of those in them."""
    while todo:
        part = todo.pop()
        if isinstance(part, List):
            yield write(part.items[0]), len(part.items) - 1
            todo += part.items[1:]
        else:
            yield write(part), 0
