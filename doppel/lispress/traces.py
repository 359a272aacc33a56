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
    | \w_\?                                    # the name of a test, such as Event.subject_?
    | ^\W*(?:[A-Z][a-z]+){3,}\W*$              # nothing but a long name, such as RepeatAgentStillHere
    """,
    re.VERBOSE,
)


_SMILEY = re.compile(r"[:;=]['o^-]?[()]+")
_BRACKET = re.compile(r"""([^\W\d_]{3}|")?([()])""")  # and whether a word or a string ends just before it


def holds_tree(text: str) -> bool:
    """Return whether a text is a parse tree, whole or broken, or has a piece of one in it.

    What people put into brackets (``dinner (with Ana)``) is none, unless the brackets hold all that is said. Nor is a
    smiley, ``b)`` of a list, or a bracket that is never closed: people leave one open, and code that stops there shows
    itself by its names. But nobody closes, just behind a word, what was not opened (``RepeatAgentStillHere)``).

    Of real utterances at hand, 6 in 396,605 public ones count as a tree, and none in 11,771 of SMCalFlow, in 131,262
    of Schema-Guided Dialogue and in 5,000 reviews of Yelp but one (``tests/lispress/test_lispress_traces.py``).

    Args:
        text: What a model wrote for an utterance.
    """
    text = text.strip()
    if text.startswith("(") and (text.endswith(")") or ")" not in text):
        return True
    return _TRACE.search(text) is not None or _closes_too_much(text)


def _closes_too_much(text: str) -> bool:
    """Whether a bracket closes, just behind a word or a string, what was not opened."""
    depth = 0
    for match in _BRACKET.finditer(_SMILEY.sub(" ", text)):
        if match[2] == ")" and depth == 0 and match[1]:
            return True
        depth = depth + 1 if match[2] == "(" else max(depth - 1, 0)
    return False
