"""A kill at a chosen moment, as the processes of a test see it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


class Killed(BaseException):
    """As a kill: nothing catches it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, after: bool = False) -> None:
    """Let the number-th call of a function be the last thing that happens."""
    known, calls = getattr(owner, name), Counter[str]()

    def called(*args: Any, **options: Any) -> Any:
        calls["made"] += 1
        if calls["made"] == number and not after:
            raise Killed
        result = known(*args, **options)
        if calls["made"] == number:
            raise Killed
        return result

    monkeypatch.setattr(owner, name, called)
