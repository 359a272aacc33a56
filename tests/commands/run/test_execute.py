"""Steps one after the other, here."""

from __future__ import annotations

import time

import pytest

from commands.run import execute


def test_a_step_without_a_bar_says_that_it_goes_on_and_nothing_after_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execute, "_PULSE", 0.05)
    with execute.telling_the_time("resample_topics"):
        time.sleep(0.3)
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line == "   resample_topics: 0 s so far" for line in lines)
    time.sleep(0.15)
    assert not capsys.readouterr().out
