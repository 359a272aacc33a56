"""The system `attributes` on the embedded grammar, from `--check` to a report: of words, trees and labels."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from finished_run import step_here
from run_folders import work_of

import cli
from commands.privacy import attributes as command
from commands.run import launch
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load, shipped
from commands.run.preflight import estimate
from commands.run.preflight.sources import check_sources, read_sources
from commands.run.steps.recipes import steps_of
from doppel.errors import DataError, UserError
from doppel.privacy.ledger import Ledger
from doppel.tables.mixture import Mixture

SCHEMA = """
length: {made: words, bins: [5, 8]}
act: {made: function, values: [CreateCommitEventWrapper, FindEventWrapperWithDefaults]}
area: {made: label, values: [calendar, weather]}
"""


def settings(folder: Path, tiny_model: str, **more: Any) -> dict[str, Any]:
    (folder / "schema.yaml").write_text(SCHEMA)
    return {
        "systems": ["attributes"],
        "epsilon": 4.0,
        "num_samples": 20,
        "reference": "embedded:test?num=60&seed=9",
        "attributes": {"schema": str(folder / "schema.yaml")},
        "epochs": {"one_stage": 1},
        "data": {"train_path": "embedded:train?num=150&seed=3", "batch_size": 30, "unit": "dialogue"},
        "model": {"base_model": tiny_model, "optimizer": {"lr": 0.01}},
        "sampling": {"max_new_tokens": 6, "redraws": None},
        "trainer": {"accelerator": "cpu", "logger": False, "enable_progress_bar": False},
        "privacy": {"accountant": "rdp", "delta": 1e-3},
        **more,
    }


def started(folder: Path, given: dict[str, Any]) -> launch.RunPlan:
    (folder / "mine.yaml").write_text(yaml.safe_dump(given))
    plan = launch.begin(load(folder / "mine.yaml"), folder / "run", load_site(None, {}))
    launch.write(plan, overwrite=True)
    return plan


def run(plan: launch.RunPlan, names: list[str]) -> None:
    for step in plan.steps:
        if step.name in names:
            mark = plan.run / ".done" / step.name
            assert step_here("", mark, ["python", "cli.py", *step.words(plan.run)]) == 0, step.name


@pytest.fixture(autouse=True)
def short_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = Mixture.fit
    monkeypatch.setattr(Mixture, "fit", lambda model, found, num_units, steps=0: fit(model, found, num_units, 10))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta")
def test_from_the_embedded_grammar_to_a_verified_report(
    tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = started(tmp_path, settings(tmp_path, tiny_model))
    run(plan, [step.name for step in plan.steps])
    told = json.loads((tmp_path / "run" / "report.json").read_text())
    metrics = told["metrics"]["attributes"]
    assert 0 <= metrics["attribute_jsd_length"] <= 1 and metrics["attribute_adherence_length"] is not None
    assert told["privacy"]["unit"] == "dialogue" and told["card"]["verified"], told["card"]["reasons"]
    assert "attribute accuracy" in (page := (tmp_path / "run" / "report.html").read_text()) and "Area: calendar" in page
    assert "JSD of attributes" in capsys.readouterr().out


class CutOffError(RuntimeError):
    """What kills a command in a test."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta")
def test_a_step_that_was_killed_goes_on_with_what_it_has_measured(
    tmp_path: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = started(tmp_path, settings(tmp_path, tiny_model))
    run(plan, ["attributes-attributes"])
    ledger, calls, fit = Ledger(tmp_path / "run" / "ledger.jsonl"), [0], Mixture.fit

    def cut_off(self: Mixture, *args: Any, **options: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise CutOffError
        fit(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Mixture, "fit", cut_off)
        with pytest.raises(CutOffError):
            run(plan, ["attributes-marginals"])
    (table,) = [record for record in ledger.mechanisms.values() if record.stage == "marginals"]
    before = list(table.releases)
    assert len(before) > 3 and not (tmp_path / "run" / "attributes/labels.jsonl").exists()
    run(plan, ["attributes-marginals"])
    assert ledger.releases(table.id)[: len(before)] == before and ledger.mechanisms[table.id].done_steps == 1


def test_without_privacy_rows_are_as_they_are_and_their_file_is_private(tmp_path: Path, tiny_model: str) -> None:
    plan = started(tmp_path, settings(tmp_path, tiny_model, epsilon=float("inf"), privacy={}))
    files = {file.path: file.role for step in plan.steps for file in step.writes}
    assert files["attributes/labels.releases.jsonl"] == "private"
    run(plan, ["attributes-attributes", "attributes-marginals"])
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "attributes/labels.releases.jsonl").read_bytes().splitlines()
    ]
    assert lines[0]["noise_multiplier"] is None and sum(line["count"] for line in lines[1:]) == 150
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    out = str(tmp_path / "run" / "more.jsonl")
    words = [
        "--out",
        out,
        "--num-samples",
        "9",
        "--exact",
        "--releases",
        str(tmp_path / "run/attributes/labels.releases.jsonl"),
    ]
    assert (
        cli.main(
            ["step", "attributes", str(tmp_path / "run" / "attributes/attributes"), *words, "--only", "Area: calendar"]
        )
        == 0
    )
    assert Path(out).read_text().count("Area: calendar") == 9


def test_a_model_of_no_attributes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "config.yaml").write_text("model: {init_args: {source: label}}\ndata: {init_args: {}}\n")
    words = ["step", "attributes", str(tmp_path / "labels"), "--out", str(tmp_path / "a.jsonl"), "--num-samples", "3"]
    assert cli.main(words) == 2 and "its columns name no attributes" in capsys.readouterr().err
    assert command.STAGE == "marginals"


def yelp(folder: Path) -> dict[str, Any]:
    """A file like Yelp's, and one that anybody may see."""
    for name, start in (("private", 0), ("public", 500)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label1", "label2"])
            for number in range(start, start + 300):
                kind, stars = ("Bars", "Shopping", "Zoos")[number % 3], number % 5 + 1
                writer.writerow([f"visit {number} was fine", f"Business Category: {kind}", f"Review Stars: {stars}.0"])
    return {"data.train_path": str(folder / "private.csv"), "reference": str(folder / "public.csv")}


def test_the_shipped_example_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (60.0, 180.0, None))
    monkeypatch.setattr("commands.run.preflight.models.check_model", lambda *_: None)
    words = [f"{name}={value}" for name, value in yelp(tmp_path).items()]
    file = str(shipped("yelp-attributes"))
    assert cli.main(["run", file, str(tmp_path / "run"), "--check", "--set", *words, "privacy.accountant=rdp"]) == 0
    told = capsys.readouterr().out
    assert "attributes, 300 utterances" in told
    assert re.search(r"only what \d\d% have shows above the noise of one attribute: raise attributes.share=0.1", told)
    experiment = load(Path(file), yelp(tmp_path))
    (fit,) = [step for step in steps_of(experiment, tmp_path) if step.name == "attributes-attributes"]
    assert (fit.config or {})["privacy"]["histogram_share"] == 0.1


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"attributes": None}, UserError, "no attributes.schema, which the system attributes needs"),
        ({"attributes.share": 1.0}, UserError, "attributes.share is 1.0"),
        ({"attributes.schema": "none.yaml"}, UserError, "attributes.schema is none.yaml"),
        ({"write_parses": True, "public_parser": __file__}, UserError, "has no column 'label1'"),
        ({"data.columns": {"text": "text"}, "attributes.schema": "{own}"}, DataError, "no row has a column 'rating'"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], error: type[Exception], why: str
) -> None:
    monkeypatch.setattr("commands.run.preflight.models.check_model", lambda *_: None)
    monkeypatch.setattr("commands.run.preflight.sources._check_public_parser", lambda *_: None)
    (tmp_path / "own.yaml").write_text("rating: [1, 2]\n")
    changes = {k: str(tmp_path / "own.yaml") if v == "{own}" else v for k, v in changes.items()}
    with pytest.raises(error, match=why):
        experiment = load(shipped("yelp-attributes"), yelp(tmp_path) | changes)
        check_sources(experiment)
        read_sources(work_of(experiment))
