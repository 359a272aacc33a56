"""The attacker knows every line of the private file but one, and tries guesses of it against what a run shows."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest
import torch

from datamodules.guards.redaction import Redaction
from datamodules.guards.selection import Selection
from datamodules.reading.columns import Columns
from datamodules.reading.files import content_digest
from datamodules.unit_data_module import UnitDataModule
from doppel.errors import DataError
from doppel.privacy.fingerprint import keyed_fingerprint
from doppel.privacy.ledger import Ledger, LedgerError
from doppel.privacy.spec import plan

LINE = '{"utterance": "call the clinic", "unit": "a"}\n'


def guesses(path: Path) -> set[str]:
    """What anybody can compute who guesses the content of a file."""
    inner, plain = hashlib.sha256(path.read_bytes()), hashlib.sha256()
    plain.update(inner.digest())
    return {inner.hexdigest(), plain.hexdigest(), content_digest(str(path))}


def fingerprint_of(path: Path, selection: Selection | None = None, columns: Columns | None = None) -> str:
    """What is written down of a data set."""
    return keyed_fingerprint(content_digest(str(path), selection, columns))


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "private.jsonl"
    path.write_text(LINE)
    return path


def test_a_guess_of_the_file_cannot_be_tried_against_its_fingerprint(private: Path) -> None:
    found = fingerprint_of(private)
    assert found not in guesses(private) and not any(found[:8] in guess for guess in guesses(private))
    assert found == fingerprint_of(private) != fingerprint_of(private, Selection(keep_share=0.5))
    with private.open("a") as file:
        file.write(LINE)
    assert fingerprint_of(private) != found


def test_settings_and_folders_leave_a_fingerprint_as_it_is(
    private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same files in another folder of another machine are the same data."""
    found = set()
    for name in ("here", "there"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "data.jsonl").write_bytes(private.read_bytes())
        (folder / "words.txt").write_text("clinic\n")
        (folder / "schema.yaml").write_text("columns: []\n")
        selection = Selection(redact=Redaction(words=str(folder / "words.txt")))
        columns = Columns(attributes=str(folder / "schema.yaml"))
        monkeypatch.setenv("DOPPEL_LEDGER", str(folder / "site.jsonl"))
        monkeypatch.chdir(folder)
        for path in (folder / "data.jsonl", Path("data.jsonl")):
            found.add(fingerprint_of(path, selection, columns))
    assert len(found) == 1
    (tmp_path / "there" / "words.txt").write_text("doctor\n")
    assert fingerprint_of(Path("data.jsonl"), selection, columns) not in found


def test_another_key_gives_another_fingerprint_and_the_key_is_its_owners_alone(
    private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("one", "two"):
        monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / name / "key"))
        found.append(fingerprint_of(private))
        assert stat.S_IMODE((tmp_path / name / "key").stat().st_mode) == 0o600
    assert found[0] != found[1]


def test_a_run_goes_on_whatever_ledger_is_named_and_another_key_is_named_as_what_it_is(
    private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOPPEL_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ledger, spec = Ledger(tmp_path / "run" / "ledger.jsonl"), plan(2000, 100, 1, 6.0, delta=1e-5, accountant="rdp")

    def go_on() -> None:
        found = content_digest(str(private))
        ledger.spend(ledger.open(scope="a", stage="fit", spec=spec, planned_steps=20, data_fingerprint=found))

    go_on()
    monkeypatch.setenv("DOPPEL_LEDGER", str(tmp_path / "site.jsonl"))
    go_on()
    monkeypatch.setenv("HOME", str(tmp_path / "second machine"))
    with pytest.raises(LedgerError, match="another key of fingerprints than .*second machine.*DOPPEL_KEY"):
        go_on()
    monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / "home" / ".config" / "doppel" / "key"))
    go_on()


def test_an_empty_key_is_refused(private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / "key"))
    (tmp_path / "key").write_text("")
    with pytest.raises(DataError, match="key"):
        fingerprint_of(private)


def test_what_is_no_ordinary_file_is_not_replaced_by_a_key(
    private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``DOPPEL_KEY=/dev/null`` would be, where root runs."""
    monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / "key"))
    os.mkfifo(tmp_path / "key")
    with pytest.raises(DataError, match="no ordinary file: set DOPPEL_KEY"):
        fingerprint_of(private)
    assert (tmp_path / "key").is_fifo()


def test_a_ledger_holds_no_plain_hash_even_if_a_data_module_gives_one(private: Path, tmp_path: Path) -> None:
    spec = plan(2000, 100, 1, 6.0, delta=1e-5, accountant="rdp")
    plain, ledger = content_digest(str(private)), Ledger(tmp_path / "ledger.jsonl")
    ledger.open(scope="a", stage="fit", spec=spec, planned_steps=20, data_fingerprint=plain)
    assert plain[:8] not in ledger.path.read_text()
    assert [m["data_fingerprint"] for m in ledger.summary()["mechanisms"]] == [fingerprint_of(private)]


@pytest.mark.parametrize(
    "given",
    [hashlib.md5(LINE.encode()).hexdigest(), "clinic 2026-11", "z" * 64, "é" * 64, keyed_fingerprint("ab" * 32), ""],
    ids=["MD5", "name", "no hexadecimal", "no ASCII", "copied from a keyed one", "empty"],
)
def test_nothing_that_a_data_module_gives_stands_in_the_ledger_as_it_is(tmp_path: Path, given: str) -> None:
    found = []
    for name in ("a", "b"):
        ledger = Ledger(tmp_path / name / "ledger.jsonl")
        spec = plan(2000, 100, 1, 6.0, delta=1e-5, accountant="rdp")
        for _ in range(2):  # the second time it is known again
            ledger.open(scope="a", stage="fit", spec=spec, planned_steps=20, data_fingerprint=given)
        assert not given or given not in ledger.path.read_text()
        found += [m["data_fingerprint"] for m in ledger.summary()["mechanisms"]]
    assert found[0] == found[1] == keyed_fingerprint(given) and len(found[0]) == 32


def test_large_tensors_that_differ_in_the_middle_are_other_data() -> None:
    def module(value: float) -> UnitDataModule:
        picture = torch.zeros(2000)
        picture[1000] = value
        rows = [{"user": str(i), "picture": picture, "label": i} for i in range(4)]
        return UnitDataModule(rows, "user", list, batch_size=2)

    assert module(1.0).data_fingerprint == module(1.0).data_fingerprint != module(2.0).data_fingerprint
