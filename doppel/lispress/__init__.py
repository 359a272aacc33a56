"""Lispress parse trees: read, write, check, turn into graphs, count function types, anonymise.

The notation is that of SMCalFlow 2.0 and TreeDST (Lispress 2.0), with the ``#(Type value)`` literals of Lispress 1.0.
"""

from doppel.lispress.expression import (
    ANONYMOUS_STRING,
    Expression,
    LispressError,
    List,
    Number,
    ReaderLiteral,
    String,
    Symbol,
    TypeAnnotation,
    anonymise,
    write,
)
from doppel.lispress.function_types import Counting, function_types, uses_function, valid_function_types
from doppel.lispress.graph import Edge, Graph, to_graph
from doppel.lispress.reader import MAX_DEPTH, read
from doppel.lispress.traces import holds_tree
from doppel.lispress.validity import first_error, is_valid

__all__ = [
    "ANONYMOUS_STRING",
    "MAX_DEPTH",
    "Counting",
    "Edge",
    "Expression",
    "Graph",
    "LispressError",
    "List",
    "Number",
    "ReaderLiteral",
    "String",
    "Symbol",
    "TypeAnnotation",
    "anonymise",
    "first_error",
    "function_types",
    "holds_tree",
    "is_valid",
    "read",
    "to_graph",
    "uses_function",
    "valid_function_types",
    "write",
]
