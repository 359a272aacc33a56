"""The one error that reading or interpreting a parse tree can raise."""

from __future__ import annotations


class LispressError(ValueError):
    """A text or an expression is not well-formed Lispress.

    The message never quotes the tree, which may be private: it says what is wrong, the position says where.

    Attributes:
        message: What is wrong and what was expected, without the position.
        position: 0-based character offset of the error in the text.
    """

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message, position)
        self.message = message
        self.position = position

    def __str__(self) -> str:
        return f"{self.message} (at character {self.position})"
