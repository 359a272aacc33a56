"""The error that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """Something outside the code is wrong: an input, a setting, a budget. The message is one line: what is wrong,
    where, and how to mend it; the command line prints it without a traceback.

    Args:
        message: What is wrong, and how to mend it.
        about: The place, with which the line then begins: a file, a file with ``:line``, an option.
    """

    def __init__(self, message: str, *, about: object = "") -> None:
        self.about = str(about)
        super().__init__(f"{about}: {message}" if self.about else message)


class DataError(UserError):
    """Input that cannot be used, or output that cannot be written. Never quotes the data itself."""


class PrivateTrainingError(UserError):
    """A setting that would break the guarantee."""
