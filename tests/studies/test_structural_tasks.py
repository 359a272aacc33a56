"""`templates`, `choose` and `split` of programs in ThingTalk and Lispress, as somebody calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from studies.structural_sampling.__main__ import main

BOOK = "( @org.schema.Book.Book )"
GOOD = [
    f'b-{n}\tbooks called {n}\t"now => {BOOK} filter param:id:String =~ "" {n} "" => notify"\tbooks' for n in range(9)
] + [f"c-{n}\thow many books\tnow => aggregate count of {BOOK} => notify\tbooks" for n in range(3)]
BAD = [
    "d\tno program",
    "d\t \tnow => @a.B => notify\tbooks",
    "d\tsay\tnow => ( secret => notify\tbooks",
    'd\tsay\t"now" => notify\tbooks',
]


def run(*words: str | Path) -> int:
    """Call the command line."""
    return main([str(word) for word in words])


def read(path: Path) -> list[dict[str, Any]]:
    """Objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def written(path: Path, lines: list[str]) -> Path:
    """A file of these lines."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return written(tmp_path / "pool.tsv", GOOD)


def test_templates_prints_ids_and_templates(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("templates", pool) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert lines[0] == "b-0\tnow => ( schema_table ) filter param:property REL_OP VALUE => notify"
    assert lines[-1] == "c-2\tnow => FUNC_OP of ( schema_table ) => notify"


@pytest.mark.parametrize("line", BAD)
def test_a_bad_row_is_named_and_skipped_only_when_asked_to(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "bad.tsv", [*GOOD[:2], line, *GOOD[2:]])
    assert run("templates", path) == 2
    error = capsys.readouterr().err
    assert f"error: {path}:3: " in error and "--skip-bad-rows" in error and "secret" not in error
    assert run("templates", path, "--skip-bad-rows") == 0
    streams = capsys.readouterr()
    assert len(streams.out.splitlines()) == 12
    assert f"skipped {path}:3: " in streams.err and f"skipped 1 of 13 rows of {path}" in streams.err


@pytest.mark.parametrize("method", ["cmaxent", "uat", "uniform"])
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
        assert row["parse"] == line.split("\t")[2].strip('"').replace('""', '"')
        assert row["template"].startswith("now => ")


def test_choose_reads_lispress_and_skips_what_a_model_wrote_badly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [{"utterance": f"book {n}", "parse": f'(Book (Named "{n}"))', "stage": "two"} for n in range(8)]
    samples.insert(3, {"utterance": "", "parse": "(Book)", "stage": "two"})
    samples.insert(5, {"utterance": "cut off", "parse": "(Book (Named", "stage": "two"})
    path, out = written(tmp_path / "synthetic.jsonl", [json.dumps(s) for s in samples]), tmp_path / "out.jsonl"
    words = ["choose", path, "--method", "cmaxent", "--num", "8", "--out", out]
    assert run(*words) == 2
    assert f"{path}:4: " in capsys.readouterr().err and not out.exists()
    assert run(*words, "--skip-bad-rows") == 0
    assert f"skipped {path}:6: " in capsys.readouterr().err
    rows = read(out)
    assert {row["utterance"] for row in rows} == {f"book {n}" for n in range(8)}
    assert {row["template"] for row in rows} == {"(Book (Named VALUE))"} and {row["stage"] for row in rows} == {"two"}


def test_a_tsv_with_names_of_columns_is_read_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "named.tsv", ["parse\ttext", "(F 1)\tone", "(F 2)\ttwo"])
    assert run("templates", path) == 0
    assert capsys.readouterr().out == "1\t(F VALUE)\n2\t(F VALUE)\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num", "13"], "13 rows are asked of a pool of 12"),
        (["--num", "0"], "0 rows are asked"),
        ([], "--num"),
    ],
)
def test_what_does_not_fit_is_refused(
    words: list[str], said: str, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("choose", pool, "--out", tmp_path / "out.jsonl", *words) == 2
    assert said in capsys.readouterr().err


def test_an_empty_file_and_one_without_programs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("templates", written(tmp_path / "two.tsv", ["id\ttext", "a\tb"])) == 2
    assert "two.tsv:2: " in capsys.readouterr().err
    (tmp_path / "empty.jsonl").touch()
    assert run("templates", tmp_path / "empty.jsonl") == 2
    assert "holds no row" in capsys.readouterr().err


def test_a_split_writes_five_files_whose_templates_differ(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [f"e-{n}\tsay {n}\tnow => ( @org.schema.Book.Book ) [ {n} ] => notify\tbooks" for n in range(5)]
    path = written(tmp_path / "more.tsv", [*GOOD, *more])
    assert run("split", path, "--out", tmp_path / "split", "--comp-share", "0.5", "--seed", "2") == 0
    parts = {file.stem: read(file) for file in (tmp_path / "split").iterdir()}
    assert set(parts) == {"train", "iid_dev", "iid_test", "comp_dev", "comp_test"}
    kinds = {name: {row["template"] for row in rows} for name, rows in parts.items()}
    assert not kinds["train"] & (kinds["comp_dev"] | kinds["comp_test"])
    assert "train" in capsys.readouterr().out
    assert run("split", path, "--out", tmp_path / "split", "--comp-share", "0.9") == 2


def test_templates_that_are_tested_on_stay_out_of_a_sample(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = written(
        tmp_path / "comp_dev.tsv",
        ["t\thow many\tnow => aggregate count of ( @org.schema.Movie.Movie ) => notify\tbooks"],
    )
    words = ["choose", pool, "--out", tmp_path / "out.jsonl", "--held-out", test]
    assert run(*words, "--num", "9") == 0
    assert {row["id"][0] for row in read(tmp_path / "out.jsonl")} == {"b"}
    assert run(*words, "--num", "10") == 2
    assert "pool of 9" in capsys.readouterr().err
    assert run(*words, "--held-out", written(tmp_path / "bad.tsv", [GOOD[0], "u\tsay"]), "--num", "1") == 2
    assert "bad.tsv:2" in capsys.readouterr().err
