"""`choose` as a user calls it: whole rows in the order of choice, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli

GOOD = [f'b-{n}\tbooks called {n}\t(Find (Book "{n}"))\tbooks' for n in range(9)] + [
    f"c-{n}\thow many books\t(Count (Find (Book)))\tbooks" for n in range(3)
]
HEADER = "id\tutterance\tparse\tlabel"
BAD = ["d\tno program", "d\t \t(Find)\tbooks", "d\tsay\t(Find ( secret\tbooks", 'd\tsay\t"(Find" (Book))\tbooks']


def run(*words: str | Path) -> int:
    """Call the command line."""
    return cli.main([str(word) for word in words])


def read(path: Path) -> list[dict[str, Any]]:
    """Objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def written(path: Path, lines: list[str]) -> Path:
    """A file of these lines."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return written(tmp_path / "pool.tsv", [HEADER, *GOOD])


@pytest.mark.parametrize("line", BAD)
def test_a_bad_row_is_named_and_skipped_only_when_asked_to(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "bad.tsv", [HEADER, *GOOD[:2], line, *GOOD[2:]])
    words = ["choose", path, "--num", "12", "--out", tmp_path / "out.jsonl"]
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert f"error: {path}:4: " in error and "--skip-bad-rows" in error and "secret" not in error
    assert run(*words, "--skip-bad-rows") == 0
    streams = capsys.readouterr()
    assert len(read(tmp_path / "out.jsonl")) == 12
    assert f"skipped {path}:4: " in streams.err and f"skipped 1 of 13 rows of {path}" in streams.err


@pytest.mark.parametrize("method", ["uat", "uniform"])
def test_choose_writes_whole_rows_in_the_order_of_choice(method: str, pool: Path, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("first.jsonl", "again.jsonl", "fewer.jsonl")]
    for out, k in zip(outs, ("6", "6", "4"), strict=True):
        assert run("choose", pool, "--method", method, "--num", k, "--out", out) == 0
    rows = read(outs[0])
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert read(outs[2]) == rows[:4]
    assert len({row["id"] for row in rows}) == 6
    for row in rows:
        line = next(line for line in GOOD if line.startswith(row["id"] + "\t"))
        assert row["utterance"] == line.split("\t")[1] and row["label"] == "books"
        assert row["parse"] == line.split("\t")[2]
        assert row["template"] in ("(Find (Book VALUE))", "(Count (Find (Book)))")


def test_choose_reads_lispress_and_skips_what_a_model_wrote_badly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [{"utterance": f"book {n}", "parse": f'(Book (Named "{n}"))', "stage": "two"} for n in range(8)]
    samples.insert(3, {"utterance": "", "parse": "(Book)", "stage": "two"})
    samples.insert(5, {"utterance": "cut off", "parse": "(Book (Named", "stage": "two"})
    path, out = written(tmp_path / "synthetic.jsonl", [json.dumps(s) for s in samples]), tmp_path / "out.jsonl"
    words = ["choose", path, "--num", "8", "--out", out]
    assert run(*words) == 2
    assert f"{path}:4: " in capsys.readouterr().err and not out.exists()
    assert run(*words, "--skip-bad-rows") == 0
    assert f"skipped {path}:6: " in capsys.readouterr().err
    rows = read(out)
    assert {row["utterance"] for row in rows} == {f"book {n}" for n in range(8)}
    assert {row["template"] for row in rows} == {"(Book (Named VALUE))"} and {row["stage"] for row in rows} == {"two"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "uat", "--num", "13"], "13 rows are asked of a pool of 12"),
        (["--method", "uat", "--num", "2", "--alpha", "2"], "alpha is 2.0"),
        (["--method", "uniform", "--num", "2", "--alpha", "1"], "belong to --method uat"),
        (["--num", "2", "--parser", "last.ckpt"], "--parser"),
        (["--num", "2", "--from-sheet", "sheet.csv"], "--from-sheet"),
        (["--to-sheet", "sheet.csv"], "--out"),
        (["--from-sheet", "sheet.csv"], "--from-sheet"),
        ([], "--num"),
    ],
)
def test_what_does_not_fit_is_refused(
    words: list[str], said: str, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("choose", pool, "--out", tmp_path / "out.jsonl", *words) == 2
    assert said in capsys.readouterr().err


def test_an_empty_file_and_one_without_programs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    assert run("choose", written(tmp_path / "two.tsv", ["id\ttext", "a\tb"]), "--num", "1", "--out", out) == 2
    assert "two.tsv:2: " in capsys.readouterr().err
    (tmp_path / "empty.jsonl").touch()
    assert run("choose", tmp_path / "empty.jsonl", "--num", "1", "--out", out) == 2
    assert "holds no row" in capsys.readouterr().err


def test_a_column_of_another_name_is_told_by_the_names_that_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "pool.tsv", ["message\ttree", "find books\t(Find (Book))"])
    assert run("choose", path, "--num", "1", "--out", tmp_path / "out.jsonl") == 2
    error = capsys.readouterr().err
    assert f"{path}:2: no utterance, for there is no column `utterance` or `text`, but" in error and "rename" in error


def test_templates_that_are_tested_on_stay_out_of_a_sample(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = written(
        tmp_path / "test.tsv",
        [HEADER, "t\thow many\t(Count (Find (Book)))\tbooks"],
    )
    words = ["choose", pool, "--out", tmp_path / "out.jsonl", "--held-out", test]
    assert run(*words, "--num", "9") == 0
    assert {row["id"][0] for row in read(tmp_path / "out.jsonl")} == {"b"}
    assert run(*words, "--num", "10") == 2
    assert "pool of 9" in capsys.readouterr().err
    assert run(*words, "--held-out", written(tmp_path / "bad.tsv", [HEADER, GOOD[0], "u\tsay"]), "--num", "1") == 2
    assert "bad.tsv:3" in capsys.readouterr().err
