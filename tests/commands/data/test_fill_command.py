"""`fill`: columns that public models read in each row by itself, which `metadata` and `run` then take."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from killed import Killed, kill_at
from tiny_model import PAIRS

import cli
from commands.data import fill as fill_module
from commands.quality.attributes import Side, attribute_metrics
from datamodules.reading.columns import Columns, check_schema
from datamodules.reading.examples import read_examples
from doppel.errors import DataError

ROOT = Path(__file__).resolve().parents[3]
TEXTS = [f"{text} {number}" for number in range(4) for text, _ in PAIRS]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: str) -> Path:
    (tmp_path / "schema.yaml").write_text(
        f"mood: {{made: model, by: {tiny_model}, values: [calm, in a hurry], ask: 'Said: {{text}}\\nMood:'}}\n"
        "words: {made: words, bins: [4]}\nstars: [1, 2]\n"
    )
    rows = [{"text": text, "stars": number % 2 + 1, "unit": f"u{number}"} for number, text in enumerate(TEXTS)]
    write(tmp_path / "private.jsonl", rows)
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def call(folder: Path, *more: str, table: str = "private.jsonl", out: str = "filled.jsonl") -> int:
    words = ["fill", str(folder / table), "--schema", str(folder / "schema.yaml"), "--out", str(folder / out)]
    return cli.main([*words, *more])


def test_no_file_is_written_over_and_what_is_written_has_its_ending(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fill_module, "value_chooser", lambda by: pytest.fail("a model is loaded before the refusal"))
    before = (folder / "private.jsonl").read_bytes()
    assert call(folder, out="private.jsonl") == 2 and "--out is the file that is read" in capsys.readouterr().err
    assert call(folder, out="schema.yaml") == 2 and call(folder, out="filled.csv") == 2
    (folder / "other.jsonl").write_text("mine\n")
    assert call(folder, out="other.jsonl") == 2 and "there already" in capsys.readouterr().err
    assert (folder / "private.jsonl").read_bytes() == before and (folder / "other.jsonl").read_text() == "mine\n"


def test_a_column_is_filled_with_public_values_and_all_else_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(folder) == 0
    told = capsys.readouterr()
    assert "filled mood" in told.out and not re.search(rf"\b{len(TEXTS)}\b", told.out + told.err), "a count of rows"
    before, after = lines(folder / "private.jsonl"), lines(folder / "filled.jsonl")
    assert [{name: row[name] for name in row if name != "mood"} for row in after] == before
    assert {row["mood"] for row in after} <= {"calm", "in a hurry"}
    assert list(folder.glob("*.part")) == []


def test_a_row_more_changes_the_value_of_no_other_row(folder: Path) -> None:
    assert call(folder) == 0
    of_all = {row["text"]: row["mood"] for row in lines(folder / "filled.jsonl")}
    rows = lines(folder / "private.jsonl")
    write(folder / "neighbour.jsonl", [{"text": "one long row more that nobody else has said " * 4}, *rows[5:]][::-1])
    assert call(folder, table="neighbour.jsonl", out="other.jsonl") == 0
    others = {row["text"]: row["mood"] for row in lines(folder / "other.jsonl")}
    assert len(others) == len(rows) - 4
    assert {text: of_all[text] for text in others if text in of_all} == {t: m for t, m in others.items() if t in of_all}


def test_cells_that_are_there_stay_and_an_empty_text_is_other(folder: Path) -> None:
    write(folder / "private.jsonl", [{"text": "yes", "mood": "furious"}, {"text": " "}, {"text": "no", "mood": ""}])
    assert call(folder) == 0
    first, second, third = (row["mood"] for row in lines(folder / "filled.jsonl"))
    assert (first, second) == ("furious", "other") and third in ("calm", "in a hurry")


def test_killed_it_goes_on_with_the_rows_that_it_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(folder, out="whole.jsonl") == 0
    with monkeypatch.context() as patch:
        kill_at(patch, fill_module, "append_json_line", 8)
        with pytest.raises(Killed):
            call(folder)
    asked = []
    known = fill_module._filled
    monkeypatch.setattr(fill_module, "_filled", lambda row, *more: asked.append(row) or known(row, *more))
    assert call(folder) == 0
    assert len(asked) == len(TEXTS) - 6 and lines(folder / "filled.jsonl") == lines(folder / "whole.jsonl")


def test_what_was_begun_with_another_table_is_not_gone_on_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, fill_module, "append_json_line", 3)
        with pytest.raises(Killed):
            call(folder)
    write(folder / "private.jsonl", [{"text": "yes"}])
    assert call(folder) == 2 and "another table" in capsys.readouterr().err


def test_metadata_and_trainings_read_what_was_filled_and_nothing_less(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--schema", str(folder / "schema.yaml"), "--epsilon", "4", "--num-rows", "9", "--delta", "1e-3"]
    words += ["--method", "independent", "--unit", "utterance", "--out", str(folder / "rows" / "rows.csv")]
    columns = Columns(attributes=str(folder / "schema.yaml"))
    assert cli.main(["metadata", str(folder / "private.jsonl"), *words]) == 2
    assert "python cli.py fill" in capsys.readouterr().err and not list((folder / "rows").glob("rows.csv*"))
    with pytest.raises(DataError, match=r"no row has a column 'mood'.*python cli.py fill"):
        read_examples(str(folder / "private.jsonl"), "utterance", columns=columns)
    assert call(folder) == 0
    assert cli.main(["metadata", str(folder / "filled.jsonl"), *words]) == 0
    rows = list(csv.DictReader((folder / "rows" / "rows.csv").open()))
    assert len(rows) == 9 and {row["mood"] for row in rows} <= {"calm", "in a hurry", "other"}
    turns = read_examples(str(folder / "filled.jsonl"), "utterance", columns=columns)
    moods = [row["mood"] for row in lines(folder / "filled.jsonl")]
    assert [str(turn.label).split(" | ")[0] for turn in turns] == [f"Mood: {mood}" for mood in moods]


def test_samples_are_read_by_the_model_that_filled(folder: Path) -> None:
    """So texts that follow their prompts adhere, and the reference needs no such column."""
    assert call(folder) == 0
    codes, filled = check_schema(str(folder / "schema.yaml")), lines(folder / "filled.jsonl")
    rows = [codes.write(codes.schema.codes(row, "", row["text"])) for row in filled]
    values, _ = attribute_metrics(codes, Side(tuple(TEXTS), rows), Side(tuple(TEXTS), [None] * len(TEXTS)))
    assert values["attribute_adherence_mood"] == 1 and values["attribute_jsd_mood"] is not None
    assert "attribute_adherence_stars" not in values


def test_turns_of_dialogues_get_trees_of_a_parser_each_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def parse(text: str) -> str:
        asked.append(text)
        return "(Yield (Today))"

    monkeypatch.setattr(fill_module, "_parse_alone", lambda parser: parse)
    (folder / "parser.ckpt").write_bytes(b"weights")
    turns = [{"user_utterance": {"original_text": "yes"}, "lispress": "(Yes)"}]
    write(folder / "dialogues.jsonl", [{"dialogue_id": "d", "turns": turns}])
    assert call(folder, "--parser", str(folder / "parser.ckpt"), table="dialogues.jsonl", out="turns.jsonl") == 0
    (turn,) = lines(folder / "turns.jsonl")
    assert (turn["text"], turn["parse"], turn["unit"]) == ("yes", "(Yes)", "d") and not asked
    write(folder / "private.jsonl", [{"text": "yes", "parse": "(Yes)"}, {"text": "what now"}, {"text": ""}])
    assert call(folder, "--parser", str(folder / "parser.ckpt")) == 0
    assert [row.get("parse") for row in lines(folder / "filled.jsonl")] == ["(Yes)", "(Yield (Today))", None]
    assert asked == ["what now"]


def test_a_schema_of_which_no_model_fills_anything_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "schema.yaml").write_text("stars: [1, 2]\n")
    assert call(folder) == 2 and "no column of it is filled by a model" in capsys.readouterr().err


def test_what_could_not_begin_is_in_nobodys_way(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = (folder / "schema.yaml").read_text()
    (folder / "schema.yaml").write_text(f"mood: {{made: model, by: {folder}/nowhere, values: [calm]}}\n")
    assert call(folder) == 2 and "nowhere" in capsys.readouterr().err
    (folder / "schema.yaml").write_text(schema)
    (folder / "file").write_text("")
    assert call(folder, out="file/filled.jsonl") == 2 and "cannot be written to" in capsys.readouterr().err
    assert call(folder) == 0


def test_a_second_command_of_the_same_file_neither_mixes_rows_nor_writes_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is given again after a lost connection, while the first goes on."""
    second: list[int] = []

    class Chooser:
        def likeliest(self, *_: object) -> str:
            if not second:
                words = ["fill", *map(str, [folder / "private.jsonl", "--schema", folder / "schema.yaml"])]
                command = [sys.executable, str(ROOT / "cli.py"), *words, "--out", str(folder / "filled.jsonl")]
                second.append(subprocess.run(command, capture_output=True, cwd=ROOT, timeout=300).returncode)
            return "calm"

    monkeypatch.setattr(fill_module, "value_chooser", lambda by: Chooser())
    assert call(folder) == 0 and second == [2]
    assert [row["text"] for row in lines(folder / "filled.jsonl")] == TEXTS
    assert {path.name for path in folder.iterdir()} == {"private.jsonl", "schema.yaml", "filled.jsonl"}


def test_a_row_without_a_text_is_told_before_a_model_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fill_module, "value_chooser", lambda by: pytest.fail("a model is loaded before the refusal"))
    write(folder / "private.jsonl", [*({"text": text} for text in TEXTS), {"text": 5}])
    assert call(folder) == 2
    assert f"private.jsonl:{len(TEXTS) + 1}: 'text' is a whole number: give a text" in capsys.readouterr().err
    assert not list(folder.glob("*filled*"))


def test_dates_of_parquet_are_texts_and_what_is_no_number_is_null(folder: Path) -> None:
    import pandas as pd

    when = datetime(2026, 11, 30, 12, 5)
    cells = {"text": TEXTS[:2], "at": [when, when], "price": [Decimal("1.50"), None], "score": [0.5, math.nan]}
    pd.DataFrame(cells).to_parquet(folder / "private.parquet")
    assert call(folder, table="private.parquet") == 0
    first, second = lines(folder / "filled.jsonl")
    assert (first["at"], first["price"], first["score"]) == (str(when), 1.5, 0.5)
    assert second["score"] is None and "NaN" not in (folder / "filled.jsonl").read_text()
