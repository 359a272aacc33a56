"""The table of private evolution: texts that are given are no private ones, cells are run once, and the rest go on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from commands.quality.frame import read_csv
from commands.run.experiment.experiment import load, shipped
from studies.tables import evolution


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Words of the runs that were started, each of which leaves a report."""
    found: list[list[str]] = []

    def run(command: Sequence[str], **_: Any) -> SimpleNamespace:
        words = list(command)[2:]
        found.append(words)
        if words[0] == "evaluate":
            given = dict(zip(words[1::2], words[2::2], strict=False))
            judged = {"attribute_jsd": 0.2, "attribute_downstream_function": 0.7, "word_overlap": None}
            judged |= {"human_attribute_downstream_function": 0.8}
            Path(words[words.index("--out") + 1]).write_text(json.dumps({"parser": given["--parser"], **judged}))
            return SimpleNamespace(returncode=0)
        folder, system = Path(words[2]), words[words.index("--systems") + 1]
        folder.mkdir(parents=True, exist_ok=True)
        metrics = {"mauve_minilm": 0.5, "word_overlap": 0.3, "human_mauve_minilm": 0.9}
        (folder / "report.json").write_text(json.dumps({"num_samples": 9, "metrics": {system: metrics}}))
        if system == "evolution":
            (folder / system).mkdir(exist_ok=True)
            (folder / system / "samples.jsonl.evolution.json").write_text('{"spent_calls": 27}')
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(evolution, "subprocess", SimpleNamespace(run=run))
    return found


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    rows = [
        {
            "text": f"{'short' if i % 3 else 'long ' * 40} review {i}",
            "label1": "Business Category: Bars",
            "label2": "5.0",
        }
        for i in range(60)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "dev.csv", index=False)
    return tmp_path / "dev.csv"


def call(reviews: Path, *more: str) -> int:
    folder = reviews.parent
    words = ["yelp", str(reviews), "--runs", str(folder / "runs"), "--out", str(folder / "out.csv"), "--epsilons", "4"]
    return evolution.main([*words, "--num-donated", "5", "--num-reference", "20", *more])


def test_every_cell_is_a_run_of_one_experiment_and_a_row_of_the_table(reviews: Path, started: list[list[str]]) -> None:
    assert call(reviews) == 0
    assert len(started) == len(evolution.CELLS) and len({words[2] for words in started}) == len(started)
    frame = read_csv(reviews.parent / "out.csv")
    assert set(frame["setting"]) == {*evolution.CELLS, "people"}
    answers = frame[frame["metric"] == "answers"].set_index("setting")["value"]
    assert answers["MAPLE"] == 27 and answers["one_stage + votes"] == 0
    assert frame[frame["setting"] == "people"]["epsilon"].isna().all()
    for words in started:
        changes = dict(word.split("=", 1) for word in words[words.index("--set") + 1 :])
        load(shipped("yelp-evolution"), {"systems": [words[words.index("--systems") + 1]], **changes})
    assert call(reviews, "--cells", "0 shot", "+E") == 0
    assert len(started) == len(evolution.CELLS), "what has finished is not run again"
    (reviews.parent / "runs" / "yelp" / "0shot,epsilon=4,seed=1" / "report.json").unlink()
    assert call(reviews) == 0 and len(started) == len(evolution.CELLS) + 1
    assert len((reviews.parent / "runs" / "yelp" / "0shot,epsilon=4,seed=1.cpu").read_text().splitlines()) == 2


def test_cells_that_have_finished_are_judged_by_a_parser_that_comes_later_and_only_once(
    reviews: Path, started: list[list[str]]
) -> None:
    assert call(reviews, "--cells", "0 shot", "one_stage") == 0
    reports = {path: path.read_bytes() for path in (reviews.parent / "runs").rglob("report.json")}
    assert len(reports) == len(started) == 2
    for _ in range(2):
        assert call(reviews, "--cells", "0 shot", "one_stage", "--parser", "last.ckpt") == 0
    assert [words[0] for words in started] == ["run"] * 2 + ["evaluate"] * 2
    for words in started[2:]:
        samples = Path(words[words.index("--synthetic") + 1])
        assert samples.parents[1] / "report.json" in reports and words[words.index("--parser") + 1] == "last.ckpt"
        assert words[words.index("--seed") + 1] == "1", "the human turns of the run's own comparison"
    assert {path: path.read_bytes() for path in reports} == reports, "a finished run was changed"
    frame = read_csv(reviews.parent / "out.csv").set_index(["setting", "metric"])["value"]
    assert frame["0 shot", "attribute_jsd"] == 0.2 and frame["one_stage", "word_overlap"] == 0.3
    assert frame["0 shot", "attribute_downstream_function"] == 0.7
    assert frame["people", "attribute_downstream_function"] == 0.8
    assert call(reviews, "--cells", "0 shot", "--parser", "another.ckpt") == 0 and len(started) == 5
    for path in reports:  # as a run writes it that had the parser from the start
        told = json.loads(path.read_text())
        path.write_text(json.dumps(told | {"parser": f"{Path('own.ckpt').resolve()} 0123456789abcdef"}))
    assert call(reviews, "--cells", "0 shot", "--parser", "own.ckpt") == 0 and len(started) == 5


def test_given_texts_are_short_and_no_private_ones(reviews: Path, started: list[list[str]]) -> None:
    assert call(reviews, "--cells", "MAPLE") == 0
    private, donated, reference = (
        pd.read_csv(reviews.parent / "runs" / "yelp" / f"{name}.csv") for name in ("private", "donated", "reference")
    )
    texts = [set(table["text"]) for table in (private, donated, reference)]
    assert [len(own) for own in texts] == [35, 5, 20] and len(set.union(*texts)) == 60
    assert donated["text"].str.split().str.len().max() <= 30
    assert list(donated.columns) == ["text", "category", "stars", "words"] and set(donated["category"]) == {"Bars"}
    assert list(private.columns) == ["text", "label1", "label2"]
    (words,) = started
    assert f"evolution.examples={reviews.parent / 'runs' / 'yelp' / 'donated.csv'}" in words
    assert "evolution.rows=attributes" in words
