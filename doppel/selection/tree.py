"""A program's tree, as both languages have it."""

from __future__ import annotations

#: What stands for every entity.
VALUE = "VALUE"

#: A label and the parts below it; a leaf has none.
Tree = tuple[str, tuple["Tree", ...]]


class ProgramError(ValueError):
    """A program cannot be read; the message says where and never quotes it."""
