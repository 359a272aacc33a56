"""One half of the public reference teaches the base, before anything private is read, and is compared with nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from finished_run import step_here
from run_folders import work_of
from tiny_model import PAIRS

import cli
from commands.quality.taught import without_taught
from commands.report.quality import advice
from commands.run import launch
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load, save, shipped
from commands.run.preflight.sources import inputs_of, read_sources
from commands.run.steps.recipes import steps_of
from commands.run_folder.manifest import Manifest
from commands.run_folder.private_files import learnt_from
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import Step
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.reading.columns import Columns
from datamodules.reading.examples import read_examples
from doppel.errors import DataError, UserError

REFERENCE = "public.txt"
OWN = {"data.train_path": "mine.csv", "reference": REFERENCE, "epochs.public": 4, "data.unit": "user"}
TWO = {"parse_tree": 1, "parse2utterance": 1}
OWN |= {"data.columns": {"text": "message", "unit": "who"}, "systems": ["topics", "labels", "two_stage"], "labels": "l"}


def steps(**changes: Any) -> dict[str, Step]:
    return {step.name: step for step in steps_of(load(shipped("own-data-small"), OWN | changes), Path("run"))}


def arguments(step: Step, of: str) -> dict[str, Any]:
    return dict(step.config[of]["init_args"])


def test_the_base_is_taught_once_by_public_requests_for_all_systems_that_write_them() -> None:
    found = steps(**{"model.optimizer": {"lr": 3e-3}, "model.max_length": 99, "stages.one_stage.model.dropout": 0.5})
    first = next(iter(found.values()))
    assert (first.name, first.kind, first.protected, first.mechanisms) == ("public", "fit", (), ())
    assert (first.config["not_private"], "privacy" in first.config) == (True, False)
    assert first.config["trainer"]["max_epochs"] == 4
    data = arguments(first, "data")
    assert (data["train_path"], data["is_public"], data["columns"]) == (REFERENCE, True, {"text": "message"})
    model = arguments(first, "model")
    assert model["max_length"] == 99, "as the private models are"
    assert not {"optimizer", "dropout"} & model.keys(), "which suit private steps, or another stage"
    taught = str(Path("run/public/checkpoints/last.ckpt"))
    for name in ("topics-one_stage", "labels-labels"):
        assert arguments(found[name], "model")["init_weights"] == taught
        assert found[name].needs == ("public",)
    for name in ("two_stage-parse_tree", "two_stage-parse2utterance"):
        assert "init_weights" not in arguments(found[name], "model")
    for system in ("topics", "labels", "two_stage"):  # of one run, so they are compared with the same requests
        assert found[f"{system}-evaluate"].config["taught"] == "run/public"


def test_each_stage_of_two_stage_is_taught_as_its_private_model_is_and_of_the_same_half() -> None:
    given: dict[str, Any] = {"epochs.public_parse_tree": 9, "epochs.public_parse2utterance": 3}
    given |= {"stages.public.model.optimizer.lr": 1e-3, "stages.public_parse_tree.model.optimizer.lr": 5e-4}
    given |= {
        "stages.parse_tree.model": {"max_length": 77, "lora": None, "optimizer": {"lr": 0.1}},
        "model.lora.rank": 4,
    }
    found = steps(**given)
    names = ["public", "public_parse_tree", "public_parse2utterance"]
    assert list(found)[:3] == names
    halves = []
    for name, epochs, module, rate in zip(
        names, (4, 9, 3), ("UtteranceLM", "ParseTreeLM", "Parse2Utterance"), (1e-3, 5e-4, 1e-3), strict=True
    ):
        lesson = found[name]
        assert (lesson.kind, lesson.protected, lesson.mechanisms, lesson.config["not_private"]) == ("fit", (), (), True)
        assert lesson.config["trainer"]["max_epochs"] == epochs
        assert lesson.config["model"]["class_path"].endswith(module)
        assert arguments(lesson, "model")["optimizer"]["init_args"] == {"lr": rate}
        halves.append(arguments(lesson, "data"))
    assert halves[0] == halves[1] == halves[2]
    assert [[file.needs for file in found[name].inputs] for name in names] == [[()], [("parse",)], [("parse",)]]
    tree, text = (arguments(found[name], "model") for name in names[1:])
    assert (tree["max_length"], tree["lora"], text["lora"]["rank"]) == (77, None, 4)
    for stage in ("parse_tree", "parse2utterance"):
        start = str(Path(f"run/public_{stage}/checkpoints/last.ckpt"))
        assert arguments(found[f"two_stage-{stage}"], "model")["init_weights"] == start
        assert f"public_{stage}" in found[f"two_stage-{stage}"].needs
    alone = steps(**given, **{"epochs.public": 0, "systems": ["two_stage"]})
    assert "public" not in alone and alone["two_stage-evaluate"].config["taught"] == "run/public_parse_tree"


@pytest.mark.parametrize(
    "changes",
    [{"epochs.public": 0}, {"reference": None}, {"systems": ["two_stage"]}, {"systems": ["evolution"]}],
)
def test_nothing_is_taught_where_nobody_asks_or_nothing_would_start_from_it(changes: dict[str, Any]) -> None:
    found = steps(**changes)
    assert "public" not in found
    assert not any("taught" in step.config for step in found.values())


def test_epochs_of_the_lesson_are_whole() -> None:
    with pytest.raises(UserError, match=r"epochs\.public is 0\.5: give a whole number of at least 0"):
        steps(**{"epochs.public": 0.5})


def test_the_reference_alone_is_asked_for_and_not_what_the_run_makes(tmp_path: Path) -> None:
    experiment = load(shipped("own-data-small"), OWN)
    assert {row.field for row in inputs_of(work_of(experiment))} == {"data.train_path", "reference", "labels"}


@pytest.mark.parametrize(("num", "is_told"), [(599, True), (600, False)])
def test_a_small_reference_is_told_that_half_of_it_is_compared(num: int, is_told: bool, tmp_path: Path) -> None:
    files = {"reference": write(tmp_path / "public.txt", [f"find {i}" for i in range(num)])}
    files["data.train_path"] = write(tmp_path / "mine.txt", [f"book {i}" for i in range(60)])
    given = {"epochs.public": 4, "systems": ["one_stage"], "data.unit": "utterance"}
    experiment = load(shipped("own-data-small"), given | {name: str(path) for name, path in files.items()})
    notes = read_sources(work_of(experiment)).notes
    assert (f"half of the {num} requests of the reference teach the base" in " ".join(notes)) == is_told


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def trained(folder: Path, path: Path, **data: Any) -> Path:
    """A folder of ``fit`` as far as anybody asks it what it learnt."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"data": {"init_args": {"train_path": str(path), **data}}, "privacy": None}
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    return folder


def test_samples_are_compared_with_requests_that_taught_nothing(tmp_path: Path) -> None:
    texts = [f"find me a place number {i}" for i in range(100)]
    path = write(tmp_path / "public.txt", [*texts, *texts[:10]])  # ten are said twice
    how = {"is_public": True, "keep_share": 0.5, "limit_train_units": 30, "columns": {"text": "message"}}
    module = DialogueDataModule(str(path), **{**how, "columns": Columns(text="message")})  # of the private file
    learnt = {turn.utterance for turn in module.rows.read()[:30]}
    turns = read_examples(str(path), "utterance")
    folder = trained(tmp_path / "public", tmp_path / "gone.txt", **how)  # the run has a copy of its reference
    left = without_taught(turns, folder, str(path))
    assert 20 < len(learnt) <= 30
    assert learnt.isdisjoint(turn.utterance for turn in left), "nor is a second request of the same words"
    assert {turn.utterance for turn in left} == set(texts) - learnt
    everything = trained(tmp_path / "all", path, is_public=True)
    with pytest.raises(DataError, match=r"all learnt all requests of .*public\.txt"):
        without_taught(turns, everything, str(path))


def test_what_taught_the_base_is_told_to_who_refuses_private_files(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run" / "public", write(tmp_path / "public.txt", ["find it"]), is_public=True)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.ckpt").touch()
    for start in (folder, folder / "checkpoints" / "last.ckpt"):
        assert [path for _, path, _ in learnt_from("model.init_weights", start)] == [str(tmp_path / "public.txt")]


@pytest.mark.parametrize(
    ("epochs", "system", "is_told"), [(0, "topics", True), (3, "topics", False), (0, "two_stage", False)]
)
def test_a_page_of_poor_samples_advises_it_to_a_run_that_has_not(
    epochs: int, system: str, is_told: bool, tmp_path: Path
) -> None:
    experiment = load(shipped("own-data-small"), OWN | {"epochs.public": epochs, "systems": [system]})
    save(experiment, tmp_path / "experiment.yaml")
    assert ("half of the reference teaches the base" in advice(RunFolder(tmp_path))) == is_told


@pytest.mark.slow  # three models are trained
def test_a_run_teaches_trains_and_is_verified(
    tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = list(enumerate(PAIRS * 20))
    rows = [
        {"message": f"{words} {i}", "parse": tree, "label": "ab"[i % 2], "who": f"u{i}"} for i, (words, tree) in pairs
    ]
    write(tmp_path / "mine.jsonl", [json.dumps(row) for row in rows])
    write(tmp_path / "labels.txt", ["a", "b"])
    known = [{"text": f"please {words} now {i}", "parse": tree} for i, (words, tree) in pairs]
    write(tmp_path / "public.jsonl", [json.dumps(row) for row in known])
    given = {
        "systems": ["one_stage", "labels", "two_stage"],
        "num_samples": 12,
        "reference": str(tmp_path / "public.jsonl"),
        "labels": str(tmp_path / "labels.txt"),
        "candidates": 1,
        "words": None,
        "stages": {"labels": {"privacy": {"histogram_noise_multiplier": 10.0}}},
        "epochs": {"public": 3, "one_stage": 1, "public_parse_tree": 2, "public_parse2utterance": 2, **TWO},
        "data": {"train_path": str(tmp_path / "mine.jsonl"), "batch_size": 20, "unit": "user"},
        "model": {"base_model": tiny_model, "optimizer": {"lr": 0.01}, "lora": {"rank": 2, "alpha": 4.0}},
        "sampling": {"max_new_tokens": 8, "redraws": None},
        "trainer": {"accelerator": "cpu", "logger": False, "enable_progress_bar": False},
    }
    given["data"]["columns"] = {"text": "message", "unit": "who"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(given))
    run = tmp_path / "run"
    work = launch.begin(load(tmp_path / "mine.yaml"), run, load_site(None, {}))
    launch.write(work, overwrite=True)
    for step in work.steps:
        if step.command != "evaluate":  # MAUVE takes minutes
            assert step_here("", run / ".done" / step.name, ["python", "cli.py", *step.words(run)]) == 0, step.name
    assert cli.main(["verify", str(run)]) == 0
    assert "VERIFIED" in capsys.readouterr().out
    origins = json.loads((run / "privacy_card.json").read_text())
    lessons = ("public", "public_parse_tree", "public_parse2utterance")
    for lesson in lessons:
        assert f"{lesson}/checkpoints/last.ckpt" in json.dumps(origins), "the card says where the weights came from"
    assert Manifest.read(run).find("checkpoint")
    cli.main(
        [
            "evaluate",
            "--synthetic",
            str(run / "one_stage/samples.jsonl"),
            "--reference",
            given["reference"],
            "--taught",
            str(run / "public"),
            "--no-mauve",
            "--out",
            str(tmp_path / "found.json"),
        ]
    )
    assert json.loads((tmp_path / "found.json").read_text())["num_compared"] == 12
    turns = read_examples(given["reference"], "utterance")
    first, *others = (
        [turn.utterance for turn in without_taught(turns, run / name, given["reference"])] for name in lessons
    )
    assert len(first) < len(turns) and all(other == first for other in others), "all learn the same half"
