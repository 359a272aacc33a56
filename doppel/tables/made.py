"""Values that a column has of a request itself: of its words, its tree or its label, in place of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from doppel.lispress.function_types import valid_function_types

#: What a column can be made of: the number of words of the text; of the tree, the number of calls, or the outermost of
#: the listed functions; the label that the row has; the value that a language model finds likeliest for the text, which
#: `python cli.py fill` writes into a column of its own.
Made = Literal["words", "calls", "function", "label", "model"]
MADE: tuple[Made, ...] = get_args(Made)
#: What a model is asked unless a schema says otherwise; after it comes the value.
ASK = "{text}\n%s:"
#: Those that are numbers, which need bins.
NUMBERS: tuple[Made, ...] = ("words", "calls")
#: Those that are made of the tree.
OF_TREE: tuple[Made, ...] = ("calls", "function")


def make(
    made: Made, values: Sequence[str], text: str | None, tree: str | None, label: str | None
) -> str | int | float | None:
    """Return the value that a request has.

    Formal guarantees:
        A function of this one row and of public values.

    Args:
        made: What the column is made of.
        values: Its public values.
        text: What was said.
        tree: Its tree; one that is not well-formed has no value.
        label: Its label.

    Returns:
        None where the row lacks what it is made of, or has none of the values.
    """
    if made == "words":
        return None if text is None else len(text.split())
    if made == "label":
        return label
    heads = (None if tree is None else valid_function_types(tree, "call_heads")) or ()
    if made == "calls":
        return len(heads) or None
    return next((head for head in heads if head in values), None)
