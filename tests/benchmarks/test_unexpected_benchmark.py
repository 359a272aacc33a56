"""The benchmark of what nobody expected: the reference lacks what is hidden, and private units are whole."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from benchmarks.unexpected import DATA, NUM_HIDDEN, draw
from datamodules.reading.example import Example

needs_data = pytest.mark.skipif("DOPPEL_DATA" not in os.environ, reason="DOPPEL_DATA names no folder of data")


def test_units_are_drawn_whole_and_a_smaller_draw_is_part_of_a_larger_one() -> None:
    turns = [Example(f"turn {i}", None, f"dialogue {i // 3}") for i in range(60)]
    rows = draw(turns, 5, "dialogue", seed=1)
    assert set(Counter(turn.unit for turn in rows).values()) == {3} and len(rows) == 15
    small, large = draw(turns, 20, "utterance", seed=1), draw(turns, 40, "utterance", seed=1)
    assert len({turn.unit for turn in small}) == 20 and {*small} < {*large}


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", DATA)
def test_the_reference_lacks_what_is_hidden_and_private_rows_have_it(name: str) -> None:
    trial = DATA[name](2000, hide=1)
    assert len(trial.private) == 2000 and trial.hidden < trial.shares().keys()
    assert not trial.hidden & {turn.label for turn in trial.reference}
    assert len(trial.hidden) == (NUM_HIDDEN if name == "sgd" else 1)
