"""The tool ``parser-metrics``: the table and the JSON of aligned files, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cli
from doppel.metrics import identical_trees, parser_metrics

GOLD = [
    ("will it rain", "(Yield (WeatherQueryApi (Now)))"),
    ("when do I meet Ann", '(Yield (EventOnDateTime (FindManager "Ann")))'),
    ("and Bob", '(Yield (EventOnDate (FindManager "Bob")))'),
    ("thanks", "(PleasantryAnythingElseCombined)"),
]
PREDICTED = [GOLD[0][1], '(Yield (EventOnDate (FindManager "Ann")))', GOLD[2][1], "(Broken ("]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Aligned predicted and gold lines."""
    predicted = [{"utterance": u, "parse": tree} for (u, _), tree in zip(GOLD, PREDICTED, strict=True)]
    gold = [{"utterance": u, "parse": tree} for u, tree in GOLD]
    return write_lines(tmp_path / "predicted.jsonl", predicted), write_lines(tmp_path / "gold.jsonl", gold)


def test_table_and_json(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "values.json"
    functions = ("WeatherQueryApi", "EventOnDate*", "Absent")
    arguments = ["--predicted", files[0], "--gold", files[1], "--function", *functions[:2], "--out", str(out)]
    arguments += ["--function", functions[2]]  # the option may stand twice
    assert cli.main(["step", "parser-metrics", *arguments]) == 0
    gold = [tree for _, tree in GOLD]
    strict = identical_trees(PREDICTED, gold)
    assert strict == {"identical_trees": 0.5, "num_groups": 0, "consistent_groups": None}
    assert json.loads(out.read_text()) == parser_metrics(PREDICTED, gold, functions) | strict
    *lines, told = capsys.readouterr().out.splitlines()
    assert told == "identical trees, strings included: 0.5000"
    rows = {line[:20].strip(): line[20:].split() for line in lines}
    assert rows["turns"][0] == "exact_match"
    assert (rows["all"][0], rows["all"][-1]) == ("0.5000", "4")
    assert (rows["WeatherQueryApi"][0], rows["EventOnDate*"][0]) == ("1.0000", "0.5000")
    assert rows["Absent"] == ["–"] * 5 + ["0"]
    assert len({len(line) for line in lines}) == 1  # aligned


def test_the_list_of_apis_is_an_option(files: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "values.json"
    for name, recall in (("smcalflow", (1 + 1 / 2 + 1) / 3), ("treedst", None)):  # of Ann's turn, FindManager alone
        arguments = ["--predicted", files[0], "--gold", files[1], "--apis", name, "--out", str(out)]
        assert cli.main(["step", "parser-metrics", *arguments]) == 0
        assert json.loads(out.read_text())["api_recall"] == (
            recall if recall is None else pytest.approx(recall, abs=1e-6)
        )


def test_turns_without_a_gold_tree_are_left_out(files: tuple[str, str], tmp_path: Path) -> None:
    gold = write_lines(
        tmp_path / "half.jsonl", [{"utterance": u, "parse": t if n else None} for n, (u, t) in enumerate(GOLD)]
    )
    out = tmp_path / "values.json"
    assert cli.main(["step", "parser-metrics", "--predicted", files[0], "--gold", gold, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["num_turns"] == 3


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (GOLD[:2] + GOLD[3:], [], "predicted.jsonl:3: "),
        (GOLD[:3], [], "--predicted has 3"),
        (GOLD, ["--function", "Event*Date"], "--function: 'Event*Date'"),
    ],
)
def test_errors(
    rows: list[tuple[str, str]],
    options: list[str],
    message: str,
    files: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    predicted = write_lines(tmp_path / "predicted.jsonl", [{"utterance": u, "parse": tree} for u, tree in rows])
    assert cli.main(["step", "parser-metrics", "--predicted", predicted, "--gold", files[1], *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "thanks" not in error


def test_gold_without_trees_is_refused(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = write_lines(tmp_path / "bare.jsonl", [{"utterance": u} for u, _ in GOLD])
    assert cli.main(["step", "parser-metrics", "--predicted", files[0], "--gold", gold]) == 2
    assert "--gold" in capsys.readouterr().err
