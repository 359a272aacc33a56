"""Whoever plans for ever is answered in seconds, with a bound that holds; no attack, but what invites a shortcut."""

from __future__ import annotations

import time

from doppel.console.plan import report, table
from doppel.privacy.accounting import compute_epsilon
from doppel.privacy.spec import plan


def test_a_plan_of_a_million_epochs_takes_seconds_and_keeps_its_promise() -> None:
    start = time.process_time()
    spec = plan(133_584, 2048, 1e6, 8.0)
    text = table(report(spec))
    assert time.process_time() - start < 20  # minutes before
    assert spec.steps == 65_226_563 and "65,226,563" in text
    assert "epsilon by pld is a Rényi bound" in text
    assert 7.9 < compute_epsilon(spec.mechanisms(), spec.budget.delta, "rdp") <= 8.1
