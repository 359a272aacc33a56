"""The attacker copies a run folder in the middle of its training, and lets both copies spend the same budget."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from private_training import data_module, fit, privacy
from run_folders import spec

from commands.pipeline.run_record import RunRecord
from commands.privacy.verify import card
from doppel.privacy import _ledger_notes
from doppel.privacy.checkpoint import privacy_state, read_checkpoint, weights_fingerprint
from doppel.privacy.ledger import Ledger, LedgerError, join
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")

STEP_3, STEP_9 = (f"fit/checkpoints/step={n}.ckpt" for n in (3, 9))


@pytest.fixture(autouse=True)
def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / "site" / "key"))
    monkeypatch.setattr(_ledger_notes, "_has_warned", False)


def opened(run: Path, scope: str = "mine") -> tuple[Ledger, str]:
    ledger = Ledger(run / "ledger.jsonl")
    terms = {"planned_steps": 20, "data_fingerprint": "f00d"}
    return ledger, ledger.open(scope=scope, stage="fit", spec=spec(3.0), **terms)


def spend(run: Path, steps: int) -> Ledger:
    ledger, name = opened(run)
    for _ in range(steps):
        ledger.spend(name)
    return ledger


def caveats(run: Path) -> str:
    return " ".join(Ledger(run / "ledger.jsonl").summary()["scopes"]["mine"]["caveats"])


def told(run: Path) -> str:
    """Why the card is not signed, in one line."""
    return " ".join(card(RunRecord(run))["prevents"])


def test_two_copies_of_a_training_are_not_signed_as_one(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    def train(run: Path, max_steps: int, ckpt_path: Path | None = None) -> None:
        given = None if ckpt_path is None else str(ckpt_path)
        model, callback = UtteranceLM(base_model=tiny_model), privacy(run, seed=None)
        data = data_module(corpus, sampling_seed=None)
        keeper = ModelCheckpoint(run / "fit" / "checkpoints", "{step}", every_n_train_steps=3, save_top_k=-1)
        settings = {"enable_checkpointing": True, "max_steps": max_steps}
        fit(run / "fit", model, data, [callback, keeper], ckpt_path=given, **settings)

    first, second = tmp_path / "first", tmp_path / "second"
    train(first, 3)
    shutil.copytree(first, second)
    for run in (first, second):
        train(run, 10, run / STEP_3)
    cards = [card(RunRecord(run)) for run in (first, second)]
    names = [content["ledger"]["identity"] for content in cards]
    assert [content["signed"] for content in cards] == [True, True] and len(set(names)) == 2
    said = f"goes on from a copy of ledger {names[0]}"
    assert said not in json.dumps(cards[0]) and said in cards[1]["statement"]
    assert said in " ".join(cards[1]["scopes"]["default"]["caveats"])
    # what one paid for, the other did not
    checkpoint = read_checkpoint(first / STEP_9)
    state: Any = privacy_state(checkpoint)
    gap = Ledger(second / "ledger.jsonl").gap(state, weights_fingerprint(checkpoint["state_dict"]))
    assert gap is not None and "no longer holds the line" in gap


def test_checkpoints_from_before_the_copy_stay_paid_for(tmp_path: Path) -> None:
    ledger = spend(tmp_path / "a", 5)
    ledger.note_weights("mine/fit", 5, "0" * 64)
    state = {"mechanism_id": "mine/fit", "num_steps": 5, "ledger": ledger.anchor}
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    spend(tmp_path / "a", 1)
    copy = spend(tmp_path / "b", 1)
    assert copy.gap(state, "0" * 64) is None and copy.anchor["identity"] != state["ledger"]["identity"]
    again = Ledger(copy.path)
    assert again.gap(state, "0" * 64) is None and again.anchor == copy.anchor
    spend(tmp_path / "b", 1)
    assert caveats(tmp_path / "b").count("goes on from a copy") == 1 and caveats(tmp_path / "a") == ""


def test_a_run_that_went_back_in_time_says_so(tmp_path: Path) -> None:
    run, kept = tmp_path / "run", tmp_path / "kept"
    before = spend(run, 5).anchor["identity"]
    shutil.copytree(run, kept)
    spend(run, 10)
    shutil.rmtree(run)
    kept.rename(run)
    assert "older copy" in told(run), "before a line is written"
    spend(run, 1)
    assert f"a copy of ledger {before}" in caveats(run) and "older copy" not in told(run)


def test_a_stale_copy_is_not_signed_and_a_copy_of_a_finished_run_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    spend(run, 20)
    shutil.copytree(run, tmp_path / "stale")
    for folder in (run, tmp_path / "stale"):
        assert card(RunRecord(folder))["signed"]
    opened(run, "another")[0].spend("another/fit")
    shutil.copytree(run, tmp_path / "moved")
    content = card(RunRecord(tmp_path / "stale"))
    assert not content["signed"] and "older copy" in " ".join(content["prevents"])
    assert not any("another copy" in text for text in content["not_checked"])
    assert "older copy" not in told(run) + told(tmp_path / "moved")


def test_a_line_torn_in_a_copy_does_not_make_it_the_newest(tmp_path: Path) -> None:
    spend(tmp_path / "a", 5)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    spend(tmp_path / "a", 1)
    with (tmp_path / "b" / "ledger.jsonl").open("a") as file:
        file.write('{"type": "spend", "mechanism": "mi')
    spend(tmp_path / "b", 1)
    assert "goes on from a copy" in caveats(tmp_path / "b") and Ledger(tmp_path / "a" / "ledger.jsonl").outrun is None


def _spend_often(run: Path, scope: str) -> None:
    ledger, name = opened(run, scope)
    for _ in range(12):
        ledger.spend(name)
        assert ledger.outrun is None


def test_processes_that_share_a_ledger_are_no_copies_of_one_another(tmp_path: Path) -> None:
    context, shared = get_context("spawn"), tmp_path / "site" / "people.jsonl"
    runs = [tmp_path / "a", tmp_path / "b", tmp_path / "b"]
    for run in runs:
        join(run / "ledger.jsonl", shared)
    workers = [context.Process(target=_spend_often, args=(run, f"s{i}")) for i, run in enumerate(runs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    lines = [json.loads(line) for line in shared.read_bytes().splitlines()]
    assert [line["type"] for line in lines].count("spend") == 36 and "copy" not in {line["type"] for line in lines}
    assert Ledger(shared).outrun is None and Ledger(shared).not_checked == []


def _no_folder(notes: Path) -> None:
    """The key lies where nobody can write: a file is where the notes would be."""
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text("")


def _gone(notes: Path) -> None:
    shutil.rmtree(notes, ignore_errors=True)


@pytest.mark.parametrize(("place", "warns"), [(_no_folder, 1), (_gone, 0)])
def test_where_nothing_can_be_noted_that_is_said_once_and_on_the_card(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: Callable[[Path], None], warns: int
) -> None:
    notes = tmp_path / "site" / "key.ledgers"
    place(notes)
    with caplog.at_level(logging.WARNING):
        ledger = spend(tmp_path / "run", 3)
    assert [str(notes) in record.getMessage() for record in caplog.records] == [True] * warns
    assert bool(ledger.not_checked) == bool(warns)
    if notes.is_dir():
        shutil.rmtree(notes)
    (text,) = Ledger(ledger.path).not_checked
    assert "another copy" in text and ledger.anchor["identity"] in text


@pytest.mark.parametrize("end", [b"", b"\xff", b"   3"])
def test_a_note_that_a_crash_cut_stops_nobody(tmp_path: Path, end: bytes) -> None:
    ledger = spend(tmp_path / "run", 3)
    (note,) = (tmp_path / "site" / "key.ledgers").iterdir()
    note.write_bytes(end)
    assert len(ledger.not_checked) == 1 and ledger.outrun is None
    spend(tmp_path / "run", 1)
    assert Ledger(ledger.path).not_checked == [] and "copy" not in ledger.path.read_text()


def test_a_ledgers_name_leads_to_no_other_folder(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    body = json.dumps({"type": "ledger", "version": 2, "identity": "../../elsewhere", "time": "now"}).encode()[:-1]
    path.write_bytes(body + f', "chain": "{hashlib.sha256(body).hexdigest()}"}}\n'.encode())
    with pytest.raises(LedgerError, match="name"):
        Ledger(path).caveat("a", "text", voids=False)
    assert list(tmp_path.rglob("elsewhere*")) == []
