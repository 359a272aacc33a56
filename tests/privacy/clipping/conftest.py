"""What all tests of the clipping engine have in common."""

from __future__ import annotations

import pytest

from doppel.privacy.clipping import formed


@pytest.fixture(autouse=True)
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of more than 2,048 numbers have products as gradients, as users' have: models here are small."""
    monkeypatch.setattr(formed, "_SMALL_MATRIX", 2048)
