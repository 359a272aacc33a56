"""A process opens a private file once: rows, checks and fingerprint come of one reading."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_folders import work_of
from table_files import FORMS, write_table

import cli
from commands.run.experiment.experiment import load
from commands.run.preflight.sources import read_sources
from commands.run_folder.manifest import Manifest
from commands.run_folder.manifest_writer import declare, enter
from commands.run_folder.steps import File, Step
from datamodules.guards.selection import Selection
from datamodules.reading.columns import Columns
from datamodules.reading.examples import read_examples, utterances_of
from datamodules.reading.files import content_digest
from doppel.errors import DataError

ROOT = Path(__file__).resolve().parents[2]
_opened: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str | os.PathLike):
        _opened.append(os.path.realpath(arguments[0]))


sys.addaudithook(_note)  # for the life of the process; it notes while a test asks for it


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Files that Python opens, in order."""
    global _opened
    _opened = []
    yield _opened
    _opened = None


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_fingerprints_of_every_form_come_of_one_reading(form: str, tmp_path: Path, opened: list[str]) -> None:
    rows = [{"utterance": f"call {number}", "label": "phone", "unit": f"u{number % 3}"} for number in range(9)]
    path = write_table(tmp_path, form, rows)
    files = {os.path.realpath(file) for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".json"}
    files.add(os.path.realpath(path))
    opened.clear()
    assert len(read_examples(path, "user")) == 9
    found = {content_digest(path), content_digest(path, Selection(keep_share=0.5))}
    assert len({*found, content_digest(path, columns=Columns(text="utterance"))}) == 3
    assert len(utterances_of(path)) == 9
    counts = [opened.count(file) for file in files if os.path.isfile(file)]
    assert counts and set(counts) == {1}


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("one\ntwo\n")
    assert len(read_examples(str(path), "utterance")) == 2
    before = content_digest(str(path))
    path.write_text("one\ntwo\nthree\n")
    assert content_digest(str(path)) != before
    path.write_text("one\ntwo\n")
    os.utime(path, (1, 1))
    assert content_digest(str(path)) == before


def test_a_reading_that_stops_early_gives_no_digest(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text\none\n"broken\n')
    with pytest.raises(DataError):
        read_examples(str(path), "utterance")
    whole = tmp_path / "copy.bin"
    whole.write_bytes(path.read_bytes())
    assert content_digest(str(path)) == content_digest(str(whole))


def test_a_private_fit_opens_each_of_its_files_once(
    tiny_model: str, corpus: str, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    train, val = tmp_path / "train.jsonl", tmp_path / "val.jsonl"
    train.write_bytes(Path(corpus).read_bytes())
    val.write_text(json.dumps({"utterance": "move my dentist to Monday", "parse": "(Ok)"}) + "\n")
    words = ["--config", str(ROOT / "configs" / "utterance_lm.yaml"), f"--model.init_args.base_model={tiny_model}"]
    words += ["--data=datamodules.dialogue_data_module.DialogueDataModule", "--data.init_args.batch_size=12"]
    words += ["--data.init_args.unit=utterance"]
    words += [f"--data.init_args.train_path={train}", f"--data.init_args.val_path={val}"]
    words += ["--data.init_args.val_is_public=true"]  # so that it is compared with the other
    words += ["--trainer.accelerator=cpu", "--trainer.logger=false", "--trainer.max_epochs=1"]
    words += ["--privacy.target_epsilon=8", "--privacy.accountant=rdp", "--privacy.epochs=[1]", "--privacy.scope=one"]
    opened.clear()
    assert cli.main(["fit", *words, f"--run_dir={tmp_path / 'run' / 'one_stage'}"]) == 0
    assert [opened.count(os.path.realpath(path)) for path in (train, val)] == [1, 1]


def test_the_check_the_fingerprint_and_the_manifest_of_a_run_open_each_private_file_once(
    tmp_path: Path, opened: list[str]
) -> None:
    paths = [tmp_path / f"{name}.jsonl" for name in ("private", "val", "reference")]
    for path in paths:
        path.write_text(json.dumps({"utterance": f"hello {path.stem}", "review": "x"}) + "\n")
    opened.clear()
    private, val, reference = map(str, paths)
    changes = {"systems": ["one_stage"], "data.train_path": private, "data.val_path": val, "reference": reference}
    read_sources(work_of(load(ROOT / "configs" / "experiments" / "own-data-small.yaml", changes)))
    content_digest(private)
    for name in ("one", "two"):  # whoever executes all steps enters each of them
        step = Step(name, "tool", ("fit",), reads=(private,), protected=(private,), writes=(File(name, "data"),))
        (tmp_path / name).write_text(name)
        declare(step, tmp_path)
        enter(tmp_path, name)
    assert len(Manifest.read(tmp_path).files) == 2
    assert [opened.count(os.path.realpath(path)) for path in paths[:2]] == [1, 1], "the reference is public"
