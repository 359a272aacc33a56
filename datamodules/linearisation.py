"""How a parse tree is written for a language model."""

from __future__ import annotations

import re
from typing import Literal

#: ``raw``: the Lispress text as it is. ``spaced``: a space inside each quote, so that a byte-level tokenizer cuts the
#: words of a quoted name as it cuts them in the utterance, which makes copying names easy for a small model.
Linearisation = Literal["raw", "spaced"]

_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SPACED_STRING = re.compile(r'" ((?:[^"\\]|\\.)*) "')


def linearise(tree: str, linearisation: Linearisation) -> str:
    """Linearise a tree: its text as the model reads it or learns to write it."""
    return _STRING.sub(r'" \1 "', tree) if linearisation == "spaced" else tree


def delinearise(text: str, linearisation: Linearisation) -> str:
    """Invert :func:`linearise`; text of a model that forgot a space is left as it is."""
    return _SPACED_STRING.sub(r'"\1"', text) if linearisation == "spaced" else text
