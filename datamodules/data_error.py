"""The error of every bad input file."""

from __future__ import annotations

from doppel.errors import UserError


class DataError(UserError):
    """Input that cannot be used: what is wrong, where, and how to mend it. Never quotes the data itself."""
