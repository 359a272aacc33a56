"""The benchmark of replay: who was said is counted by how often, who was not is chance, and settings are real ones."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from commands.quality.frame import read_csv
from commands.run.experiment.experiment import load, shipped
from datamodules.guards.redaction import Redaction
from datamodules.reading.example import Example
from doppel.files import read_json_lines, write_json_lines
from studies.redaction import replay


@pytest.fixture
def repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Words of the runs that were started, each of which repeats what its redaction leaves of the private rows."""
    found: list[list[str]] = []

    def run(command: Any, **_: Any) -> SimpleNamespace:
        words = list(command)[2:]
        found.append(words)
        told = (word.split("=", 1) for word in words[words.index("--set") + 1 :])
        changes = {name: yaml.safe_load(value) for name, value in told}
        experiment = load(shipped("own-data-small"), {"systems": ["one_stage"], **changes})
        turns = [
            Example(row["text"], None, row["unit"]) for _, row in read_json_lines(Path(changes["data.train_path"]))
        ]
        if experiment.redact is not None:
            turns = Redaction.from_config(experiment.redact).apply(turns)  # type: ignore[union-attr]
        samples = Path(words[2]) / "one_stage" / "samples.jsonl"
        samples.parent.mkdir(parents=True, exist_ok=True)
        write_json_lines(samples, ({"utterance": turn.utterance} for turn in turns))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(replay, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(replay, "FILE", "turns.jsonl")
    rows = [
        {"utterance": f"turn {i} about a {'doctor' if i % 2 else 'table'}", "label": ("Restaurants", "Services")[i % 2]}
        for i in range(1200)
    ]
    (tmp_path / "turns.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return found


def test_what_is_repeated_is_counted_by_how_often_it_was_said(tmp_path: Path, repeated: list[list[str]]) -> None:
    words = ["--folder", str(tmp_path), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out.csv")]
    words += ["--num-people", "2", "--num-rows", "80"]
    assert replay.main([*words, "--seeds", "1", "2"]) == 0
    assert len(repeated) == 2 * len(replay.SETTINGS)
    frame = read_csv(tmp_path / "out.csv")
    told = frame.groupby(["setting", "metric"])["value"].mean()
    for what in ("name", "number"):
        assert told["as it is, in 0 rows", f"{what}s_replayed"] == 0
        for times in (1, 4, 16, 64):
            assert told[f"as it is, in {times} rows", f"{what}s_replayed"] == 1
            assert told[f"as it is, in {times} rows", f"samples_with_{what}"] == times
    assert told["patterns, in 64 rows", "numbers_replayed"] == 0, "patterns hide numbers"
    assert told["patterns, in 64 rows", "names_replayed"] == 1, "and no names"
    assert set(frame[frame["setting"].str.startswith("DP-SGD")]["epsilon"]) == {8}
    assert frame[~frame["setting"].str.startswith("DP-SGD")]["epsilon"].isna().all()
    units = {row[row.index("--epsilon") + 1]: [w for w in row if w.startswith("data.unit")] for row in repeated}
    assert units == {"inf": ["data.unit=utterance"], "8": ["data.unit=user"]}
    private = [row for _, row in read_json_lines(tmp_path / "runs" / "seed-1" / "private.jsonl")]
    assert len(private) == 80 + 2 * (1 + 4 + 16 + 64) and len({row["unit"] for row in private}) == 80 + 2 * 4
    public = {row["text"] for _, row in read_json_lines(tmp_path / "runs" / "seed-1" / "sensitive.jsonl")}
    assert not public & {row["text"] for row in private}, "the ranker reads no private row"
    assert replay.main([*words, "--seeds", "2", "--settings", "p = .3"]) == 0
    assert len(read_csv(tmp_path / "out.csv")) == len(frame), "rows of a setting and a seed are written once"


def test_made_up_people_share_no_part_of_a_name() -> None:
    people = replay.make_people(4, replay.random.Random(3))
    assert len(people) == 20 and [sum(p.times == times for p in people) for times in replay.TIMES] == [4] * 5
    for part in (0, 1):
        assert len({person.name.split()[part] for person in people}) == 20
    assert len({person.number for person in people}) == 20
