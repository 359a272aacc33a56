"""Somebody edits the ledger of a run, by a slip or on purpose: what was changed in the middle is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from known_plans import known_plan

from doppel.privacy.ledger import Ledger, LedgerError

SPEC = known_plan("two epochs")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of 8 lines: a budget, a mechanism, five steps and a caveat."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    name = ledger.open(scope="one_stage", stage="fit", spec=SPEC, planned_steps=40, data_fingerprint="f00d")
    for _ in range(5):
        ledger.spend(name)
    ledger.caveat("one_stage", "the exact histogram was released", voids=True)
    return ledger.path


def edit(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        pytest.param(lambda lines: lines[:4] + lines[5:], ", line 5", id="a-step-is-removed"),
        pytest.param(lambda lines: lines[:3] + lines[6:], ", line 4", id="three-steps-are-removed"),
        pytest.param(lambda lines: lines[1:], ", line 1", id="the-first-line-is-removed"),
        pytest.param(lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], ", line 4", id="two-lines-swap"),
        pytest.param(lambda lines: [*lines, lines[3]], ", line 9", id="a-line-is-copied"),
        pytest.param(
            lambda lines: [line.replace('"num_units": 2000', '"num_units": 9000') for line in lines],
            ", line 2",
            id="a-number-is-changed",
        ),
        pytest.param(
            lambda lines: [line.replace('"voids": true', '"voids": false') for line in lines],
            ", line 8",
            id="a-caveat-is-softened",
        ),
        pytest.param(
            lambda lines: [*lines, '{"type": "spend", "mechanism": "one_stage/fit", "steps": 1}\n'],
            ", line 9",
            id="a-line-is-written-by-hand",
        ),
    ],
)
def test_a_ledger_that_was_edited_is_refused_with_the_place(
    path: Path, change: Callable[[list[str]], list[str]], place: str
) -> None:
    edit(path, change)
    with pytest.raises(LedgerError) as error:
        Ledger(path).summary()
    assert error.value.about == f"{path}{place}" and "\n" not in str(error.value)
    with pytest.raises(LedgerError) as again:
        Ledger(path).spend("one_stage/fit")
    assert again.value.about == error.value.about


def test_a_ledger_without_its_chains_is_refused(path: Path) -> None:
    def unchained(line: str) -> str:
        record = json.loads(line)
        del record["chain"]
        return f"{json.dumps(record)}\n"

    edit(path, lambda lines: [unchained(line) for line in lines])
    with pytest.raises(LedgerError):
        Ledger(path).summary()


@pytest.mark.parametrize("num_lines", range(3, 9))
def test_lines_that_are_missing_at_the_end_take_their_releases_with_them(path: Path, num_lines: int) -> None:
    """So what was saved after them counts as paid by nobody, and no training goes on from it."""
    Ledger(path).release("one_stage/fit", sha256="ab" * 32)
    edit(path, lambda lines: lines[:num_lines])
    assert Ledger(path).unpaid_reason("ab" * 32, "one_stage") is not None
