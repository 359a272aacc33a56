"""Sheets go out in the order of what is worth annotating first, and corrections come back."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import cli
from commands.annotate.sheets import COLUMNS, by_value
from datamodules.reading.examples import read_examples
from doppel.parsing.vocabulary import ActionVocabulary
from lightning_modules.parsing.action_decoder import DecoderArguments
from lightning_modules.parsing.source_encoder import EncoderArguments
from lightning_modules.semantic_parser import SemanticParser

ROWS = [
    ("meet Ana", '(Meet "Ana")', 0.9),
    ("meet Bo", '(Meet "Bo")', 0.2),
    ('rain, "maybe"?\nor snow', "(Rain)", 0.95),
    ("garbled", "(Meet (", 0.99),
    ("meet Cy", '(Meet "Cy")', 0.4),
]


def run(*words: str | Path) -> int:
    """Call the command line."""
    return cli.main([str(word) for word in words])


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a sheet of either form."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.DictReader(file))
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a sheet as an annotator's program would."""
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    rows = [{"utterance": text, "parse": tree, "confidence": sure} for text, tree, sure in ROWS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_work_of_annotators_is_not_written_over(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet, jsonl = tmp_path / "sheet.csv", tmp_path / "sheet.jsonl"
    for path in (sheet, jsonl):
        assert run("choose", samples, "--to-sheet", path) == 0
        filled = [row | {"correction": "ok"} for row in read(path) if row["utterance"] != "garbled"]
        write(path, filled) if path is sheet else path.write_text("".join(json.dumps(row) + "\n" for row in filled))
        before = path.read_bytes()
        assert run("choose", samples, "--to-sheet", path) == 2
        assert "there already" in capsys.readouterr().err
        assert run("choose", "--from-sheet", path, "--out", path) == 2
        assert "--out is the file that is read" in capsys.readouterr().err
        assert path.read_bytes() == before
    before = samples.read_bytes()
    assert run("choose", samples, "--num", "2", "--out", tmp_path / "." / samples.name) == 2
    assert run("choose", samples, "--to-sheet", samples) == 2 and samples.read_bytes() == before
    out = tmp_path / "annotated.jsonl"
    assert run("choose", "--from-sheet", sheet, "--out", out) == 0
    for path in (sheet, jsonl, out):  # sheets that are filled in, and what came back of one
        before = path.read_bytes()
        assert run("choose", samples, "--num", "2", "--out", path) == 2
        assert run("choose", "--from-sheet", sheet, "--out", path) == 2
        assert path.read_bytes() == before
    chosen = tmp_path / "chosen.jsonl"
    words = ["choose", samples, "--out", chosen, "--skip-bad-rows", "--num"]
    assert [run(*words, num) for num in "21"] == [0, 0]  # of a step that goes on


def test_what_annotators_do_not_mean_is_told(samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that was emptied, quotes of a word processor, and two opinions of one row."""
    sheet, out = tmp_path / "sheet.csv", tmp_path / "turns.jsonl"
    assert run("choose", samples, "--to-sheet", sheet) == 0
    rows = [row | {"correction": "ok"} for row in read(sheet) if row["utterance"] != "garbled"]
    for bad, told in (
        ([rows[0] | {"utterance": " "}, *rows[1:]], ":2: no utterance"),
        ([rows[0] | {"correction": "(Yield (Name \u201cAna\u201d))"}, *rows[1:]], ":2: a tree with typographic quotes"),
        ([*rows, rows[0] | {"correction": "drop"}], f": the same row as {sheet}:2, with another"),
    ):
        write(sheet, bad)
        assert run("choose", "--from-sheet", sheet, "--out", out) == 2
        assert told in capsys.readouterr().err and not out.exists()
    write(sheet, [rows[0] | {"correction": '(Yield (Name "\u201cAna\u201d"))'}, *rows[1:], rows[1]])  # nothing is wrong
    assert run("choose", "--from-sheet", sheet, "--out", out) == 0


def test_no_cell_of_a_sheet_is_a_formula_and_every_text_comes_back(tmp_path: Path) -> None:
    texts = [
        '=HYPERLINK("http://x", "ok")',
        "+1 of it",
        "-2",
        "@home",
        "\t=1",
        "'=1",
        "''+1",
        "'quoted'",
        "＝1",
        "plain",
    ]
    rows = [{"utterance": text, "parse": f"(Meet {place})"} for place, text in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sheet, out = tmp_path / "sheet.csv", tmp_path / "out.jsonl"
    assert run("choose", tmp_path / "rows.jsonl", "--to-sheet", sheet) == 0
    cells = read(sheet)
    assert not any(str(cell)[:1] in tuple("=+-@\t＝") and cell for row in cells for cell in row.values())
    write(sheet, [row | {"correction": "ok"} for row in cells])
    assert run("choose", "--from-sheet", sheet, "--out", out) == 0
    assert sorted(json.loads(line)["utterance"] for line in out.open()) == sorted(texts)


@pytest.mark.parametrize("name", ["sheet.csv", "sheet.jsonl"])
def test_each_template_once_and_in_a_round_the_least_sure_first(name: str, samples: Path, tmp_path: Path) -> None:
    assert run("choose", samples, "--to-sheet", tmp_path / name) == 0
    rows = read(tmp_path / name)
    assert [row["utterance"] for row in rows] == [ROWS[place][0] for place in (1, 2, 3, 4, 0)]
    assert [row["template"] for row in rows] == ["(Meet VALUE)", "(Rain)", "", "(Meet VALUE)", "(Meet VALUE)"]
    assert [str(row["id"]) for row in rows] == ["2", "3", "4", "5", "1"]
    assert list(rows[0]) == list(COLUMNS) and not any(row["correction"] for row in rows)


def test_rows_of_equal_worth_keep_their_order() -> None:
    rows = [{"parse": "(A)", "confidence": None, "id": number} for number in range(5)]
    assert [row["id"] for row in by_value(rows)] == [0, 1, 2, 3, 4]


def test_corrections_come_back_as_rows_to_train_on(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet, out = tmp_path / "sheet.csv", tmp_path / "turns.jsonl"
    assert run("choose", samples, "--to-sheet", sheet) == 0
    rows = read(sheet)
    for row, correction in zip(rows, (" OK ", "(Snow)", "drop", "", '(Meet (Named "Ana"))'), strict=True):
        row["correction"] = correction
    write(sheet, rows)
    capsys.readouterr()
    assert run("choose", "--from-sheet", sheet, "--out", out) == 0
    assert capsys.readouterr().out.startswith("1 ok, 2 corrected, 1 drop, 0 skipped, 1 not looked at; 3 rows")
    found = [(turn.utterance, turn.parse) for turn in read_examples(str(out), "utterance", needs=["parse"])]
    assert found == [("meet Bo", '(Meet "Bo")'), (ROWS[2][0], "(Snow)"), ("meet Ana", '(Meet (Named "Ana"))')]


@pytest.mark.parametrize("correction", ["(Meet (", "yes", "now => x => notify"])
def test_a_broken_correction_is_named_and_skipped_only_when_asked_to(
    correction: str, samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet, out = tmp_path / "sheet.csv", tmp_path / "turns.jsonl"
    assert run("choose", samples, "--to-sheet", sheet) == 0
    rows = read(sheet)
    rows[0]["correction"], rows[1]["correction"] = correction, "ok"
    write(sheet, rows)
    assert run("choose", "--from-sheet", sheet, "--out", out) == 2
    assert f"error: {sheet}:2: " in capsys.readouterr().err and not out.exists()
    assert run("choose", "--from-sheet", sheet, "--out", out, "--skip-bad-rows") == 0
    assert f"skipped {sheet}:2: " in capsys.readouterr().err
    assert len(read(out)) == 1


def test_a_sheet_that_nobody_filled_in_and_one_of_other_columns_are_refused(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet, out = tmp_path / "sheet.jsonl", tmp_path / "turns.jsonl"
    assert run("choose", samples, "--to-sheet", sheet) == 0
    assert run("choose", "--from-sheet", sheet, "--out", out) == 2
    assert f"{sheet}: " in capsys.readouterr().err
    assert run("choose", "--from-sheet", samples, "--out", out) == 2
    assert "samples.jsonl:1: " in capsys.readouterr().err


def test_rows_without_trees_need_a_parser_which_says_how_sure_it_is(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, sheet = tmp_path / "texts.txt", tmp_path / "sheet.jsonl"
    path.write_text("meet Ana\nwill it rain\n", encoding="utf-8")
    assert run("choose", path, "--to-sheet", sheet) == 2
    assert "texts.txt:1: " in capsys.readouterr().err
    torch.manual_seed(0)
    parser = SemanticParser(
        encoder=EncoderArguments(name="small", num_layers=1),
        decoder=DecoderArguments(size=32, num_heads=2, num_layers=2, feedforward_size=32),
    )
    parser.build(ActionVocabulary.build([turn.parse for turn in read_examples(corpus, "utterance") if turn.parse]))
    checkpoint = {"state_dict": dict(parser.state_dict())}
    parser.on_save_checkpoint(checkpoint)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    assert run("choose", path, "--to-sheet", sheet, "--parser", tmp_path / "last.ckpt") == 0
    rows = read(sheet)
    assert {row["utterance"] for row in rows} == {"meet Ana", "will it rain"}
    assert all(row["parse"].startswith("(") and 0 < row["confidence"] <= 1 for row in rows)
