"""The attacker edits the ledger of a run, so that it tells of fewer steps than were taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from doppel.privacy.ledger import Ledger, LedgerError
from doppel.privacy.spec import plan

SPEC = plan(2000, 100, 2, 6.0, delta=1e-5, accountant="rdp")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of 9 lines: its name, a budget, a mechanism, five steps and a caveat."""
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
        pytest.param(lambda lines: lines[:-1], "", id="the-caveat-is-removed-from-the-end"),
        pytest.param(lambda lines: lines[:-3], "", id="the-last-steps-are-removed"),
        pytest.param(lambda lines: [], "", id="the-file-is-emptied"),
        pytest.param(lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], ", line 4", id="two-lines-swap"),
        pytest.param(lambda lines: [*lines, lines[3]], ", line 10", id="a-line-is-copied"),
        pytest.param(
            lambda lines: [line.replace('"num_units": 2000', '"num_units": 9000') for line in lines],
            ", line 3",
            id="a-number-is-changed",
        ),
        pytest.param(
            lambda lines: [line.replace('"voids": true', '"voids": false') for line in lines],
            ", line 9",
            id="a-caveat-is-softened",
        ),
        pytest.param(
            lambda lines: [*lines, '{"type": "spend", "mechanism": "one_stage/fit", "steps": 1}\n'],
            ", line 10",
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


def test_a_ledger_that_was_deleted_does_not_begin_anew(path: Path) -> None:
    path.unlink()
    with pytest.raises(LedgerError, match=r"ledger\.jsonl\.head"):
        Ledger(path).open(scope="a", stage="fit", spec=SPEC, planned_steps=40, data_fingerprint="f00d")
    assert not path.exists()


def test_a_ledger_put_back_from_an_older_copy_is_refused(path: Path) -> None:
    before = path.read_bytes()
    Ledger(path).spend("one_stage/fit")
    path.write_bytes(before)
    with pytest.raises(LedgerError, match=r"ledger\.jsonl\.head"):
        Ledger(path).summary()


def test_a_ledger_of_another_run_in_its_place_is_refused(path: Path, tmp_path: Path) -> None:
    other = Ledger(tmp_path / "other" / "ledger.jsonl")
    name = other.open(scope="one_stage", stage="fit", spec=SPEC, planned_steps=40, data_fingerprint="f00d")
    for _ in range(10):
        other.spend(name)
    path.write_bytes(other.path.read_bytes())
    with pytest.raises(LedgerError, match=r"ledger\.jsonl\.head"):
        Ledger(path).summary()


@pytest.mark.parametrize("has_head", [True, False])
def test_a_ledger_without_its_chains_is_refused(path: Path, has_head: bool) -> None:
    def unchained(line: str) -> str:
        record = json.loads(line)
        del record["chain"]
        return f"{json.dumps(record)}\n"

    edit(path, lambda lines: [unchained(line) for line in lines[:-3]])
    if not has_head:
        path.with_name("ledger.jsonl.head").unlink()
    for lines in (path.read_text(), "".join(path.read_text().splitlines(keepends=True)[1:])):  # with its name, without
        path.write_text(lines)
        with pytest.raises(LedgerError):
            Ledger(path).summary()


def test_a_head_that_is_behind_its_ledger_is_what_a_crash_leaves(path: Path) -> None:
    head = path.with_name("ledger.jsonl.head")
    before = head.read_text()
    Ledger(path).spend("one_stage/fit")
    for text in (before, ""):
        head.write_text(text)
        assert Ledger(path).mechanisms["one_stage/fit"].done_steps == 6
    Ledger(path).spend("one_stage/fit")
    assert head.read_text() != before
