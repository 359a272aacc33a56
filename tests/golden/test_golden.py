"""What a move of code must not change: steps, ledgers, the grammar, σ, and trained weights to the last bit.

Where a change is meant, ``python -m tests.golden.dump --update`` writes new goldens and names the values that changed.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest

from tests.golden import model_loops
from tests.golden.batches import batches
from tests.golden.dump import STEPS, VALUES, changed, read
from tests.golden.experiments import steps
from tests.golden.trainings import goldens
from tests.golden.values import grammar, machine, noise_multipliers


def kept(lead: str) -> dict[str, Any]:
    """The goldens whose names begin so, without that."""
    return {name.removeprefix(lead): value for name, value in read(VALUES).items() if name.startswith(lead)}


def same(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Fail with the names of all goldens that differ."""
    lines = changed(old, new)
    assert not lines, "\n".join(lines)


def test_every_step_of_three_experiments_is_what_it_was() -> None:
    old, new = (text.splitlines() for text in (STEPS.read_text(encoding="utf-8"), steps()))
    assert old == new, "\n".join(difflib.unified_diff(old, new, "as it was", "as it is", n=20, lineterm=""))


def test_the_grammar_generates_the_same_turns() -> None:
    same(kept("grammar/"), grammar())


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
def test_files_become_the_same_turns_and_batches(tmp_path: Path) -> None:
    same(kept("batches/"), batches(tmp_path))


@pytest.mark.slow
def test_the_accountants_give_the_same_numbers() -> None:
    old, new = kept("accountants/"), noise_multipliers()
    assert new == pytest.approx(old, abs=1.5e-6)


def test_every_loop_over_a_model_reads_and_writes_the_same() -> None:
    old, new, is_here = kept("models/features/"), model_loops.features(), kept("machine/") == machine()
    assert set(new) >= {name for name in old if "minilm" not in name}
    for name, values in new.items():
        assert values == pytest.approx(old[name], abs=1e-6 if is_here else 1e-3), name
    if is_here:
        same(kept("models/words/"), model_loops.words())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.ddp)])
def test_trainings_give_the_same_ledgers_weights_and_samples(ranks: int, tmp_path: Path) -> None:
    found = goldens(tmp_path, ranks)
    same(kept(f"{ranks} ranks/ledgers/"), found.ledgers)
    old, here, floats = kept("machine/"), machine(), kept(f"{ranks} ranks/floats/")
    if here != old and floats != found.floats:  # equal bits are a promise of the same processor and release alone
        pytest.skip(f"ledgers are equal; the hashes of floats are of another machine, {old}; this one is {here}")
    same(floats, found.floats)
