"""`sample --words`: a plain draw, of which those that say the words are kept apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cli
from commands.run.experiment.experiment import load, shipped
from commands.run.oversampling import for_words
from commands.run.steps.context import Wanted
from commands.run.steps.recipes import draw
from commands.run_folder.systems import system
from doppel.errors import UserError

TEXTS = ["a rental car", "rental of two cars", "a car, please", "the car rental", "songs"]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps({"utterance": text}) + "\n" for text in TEXTS))
    return path


def test_samples_that_say_all_of_the_words_are_kept_in_their_order(samples: Path, tmp_path: Path) -> None:
    config = tmp_path / "saying.yaml"
    for num, kept in ((1, TEXTS[:1]), (9, [TEXTS[0], TEXTS[3]])):
        out = tmp_path / "saying.jsonl"
        config.write_text(json.dumps({"samples": str(samples), "say": ["rental", "car"], "out": str(out), "num": num}))
        assert cli.main(["step", "keep-saying", "--config", str(config)]) == 0
        assert [json.loads(line)["utterance"] for line in out.read_text().splitlines()] == kept


def test_as_many_texts_are_drawn_as_the_samples_of_the_run_promise(samples: Path) -> None:
    told = for_words(samples, ["rental", "car"], num=10)
    assert (told.found, told.num_samples, told.oversample, told.most_draws) == (2, 5, 4, 1)  # 1.3 times 5/2
    assert for_words(samples, ["dentist"], num=2).oversample == 3, "as many as the run has, once"
    with pytest.raises(UserError, match=r"--words has 'rental car': .*rental,car"):
        for_words(samples, ["rental car"], num=10)


@pytest.mark.parametrize("name", ["one_stage", "two_stage"])
def test_the_draw_is_a_plain_one_and_reads_nothing_private(name: str, tmp_path: Path) -> None:
    wanted = Wanted(40, words=("rental", "car"), oversample=4)
    *steps, last = draw(load(shipped("quickstart")), tmp_path, system(name), 2, wanted)
    assert (last.command, last.writes[0].role, last.config["num"]) == ("keep-saying", "examples", 40)
    assert last.writes[0].path == f"{name}/draws/2/saying.jsonl"
    assert [file.role for step in steps for file in step.writes if file.path.endswith("2/samples.jsonl")] == ["more"]
    assert not any(step.protected or step.command == "words" for step in [*steps, last])
