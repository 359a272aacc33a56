"""Steps that are stopped while a model reads texts, and begun again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commands.privacy import embedded_parts, feature_extractors
from doppel.models.texts import by_length, padded


class Reads:
    """Counts the texts that models read, in small batches and parts, and stops them where it is told to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._num_left, self._num_read = -1, 0
        patch.setattr(embedded_parts, "_BATCHES", 10)
        for module in ("models.encoders", "models.text_reader", "metrics.fluency"):
            patch.setattr(f"doppel.{module}.by_length", lambda rows, _, what: by_length(rows, 50, what))
        for module in ("models.encoders", "metrics.fluency"):
            patch.setattr(f"doppel.{module}.padded", self._padded)

    def _padded(self, rows: Any, *fill: int) -> Any:
        if not self._num_left:
            raise SystemExit(75)
        self._num_left -= 1
        self._num_read += len(rows)
        return padded(rows, *fill)

    def of(self, step: Callable[[], object], num_batches: int = -1) -> int:
        """Return how many texts are read by a step, which is stopped after some batches, if given."""
        self._num_left, self._num_read = num_batches, 0
        feature_extractors._encoder.cache_clear()
        if num_batches < 0:
            step()
        else:
            with pytest.raises(SystemExit):
                step()
        return self._num_read

    def are_kept(self, undisturbed: Callable[[], object], stopped: Callable[[], object], num_batches: int) -> None:
        """Assert that a step goes on with what is missing, where it was stopped after some batches."""
        whole, before, after = self.of(undisturbed), self.of(stopped, num_batches), self.of(stopped)
        assert 0 < after < whole <= before + after < whole + 20, "the part in which it was stopped is read again"
