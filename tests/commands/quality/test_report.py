"""`report`: what was spent, and what that protects, beside the metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from run_folders import sample

import cli
from commands.pipeline.run_record import RunRecord
from commands.quality.report import build_report
from commands.quality.report_text import render
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import PrivacySpec, plan

SPEC = plan(2000, 100, 1, 6.0, delta=1e-5, accountant="rdp", unit="dialogue", max_rows_per_unit=4)


def pipeline(folder: Path, specs: dict[str, PrivacySpec], is_sampled: bool = True) -> Path:
    """A run folder with a ledger, the metrics of each system and, if wanted, how it was sampled."""
    (folder / "evaluation").mkdir()
    for system, spec in specs.items():
        ledger = Ledger(folder / "ledger.jsonl")
        name = ledger.open_mechanism(scope=system, stage="fit", spec=spec, planned_steps=20, data_fingerprint="f00d")
        for _ in range(5):
            ledger.spend(name)
        (folder / "evaluation" / f"{system}.json").write_text(json.dumps({"mauve": 0.5}))
        if is_sampled:
            sample(folder, system)
    return folder


def test_the_report_says_what_epsilon_protects(tmp_path: Path) -> None:
    report = build_report(RunRecord(pipeline(tmp_path, {"two_stage": SPEC})))
    words = "one dialogue (all its turns, however many; each step uses at most 4 of them, chosen uniformly)"
    assert report["privacy"]["protects"] == words
    assert report["privacy"]["epsilon"] == report["privacy"]["systems"]["two_stage"]["epsilon"] < 6
    assert f"under adding or removing {words}" in render(report, tmp_path / "synthetic.jsonl", [])


def test_systems_with_unlike_units_are_explained_one_by_one(tmp_path: Path) -> None:
    specs = {"one_stage": replace(SPEC, unit="user", max_rows_per_unit=7), "two_stage": SPEC}
    report = build_report(RunRecord(pipeline(tmp_path, specs)))
    assert report["privacy"]["epsilon_if_all_systems_are_released"] is None
    text = render(report, tmp_path / "synthetic.jsonl", [])
    assert "one_stage: adding or removing one user" in text and "at most 7 of them" in text
    assert "two_stage: adding or removing one dialogue" in text and "at most 4 of them" in text


def test_a_folder_without_ledger_or_metrics_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no ledger.jsonl"):
        build_report(RunRecord(tmp_path))
    Ledger(tmp_path / "ledger.jsonl").open_mechanism(
        scope="two_stage", stage="fit", spec=SPEC, planned_steps=1, data_fingerprint="f00d"
    )
    with pytest.raises(UserError, match="has no metrics"):
        build_report(RunRecord(tmp_path))


def test_a_stage_that_was_marked_by_hand_has_no_time_and_stops_nothing(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, {"two_stage": SPEC})
    assert build_report(RunRecord(folder))["timings"] == {}
    (folder / ".done").mkdir()
    (folder / ".done" / "parse_tree").touch()
    (folder / ".done" / "parse2utterance").write_text("31\n")
    assert build_report(RunRecord(folder))["timings"] == {"parse2utterance": 31}


def test_the_report_says_how_each_system_was_sampled(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, {"one_stage": SPEC, "two_stage": SPEC}, is_sampled=False)
    outputs = ("trees", "synthetic", "synthetic_one_stage")
    for beams, output in enumerate(outputs, start=1):
        sampling = {"num_beams": beams, "seed": 7, "max_rows": 64}
        writer = {"init_args": {"output_path": f"/elsewhere/{output}.jsonl"}}
        config = {
            "trainer": {"callbacks": [{"class_path": "Progress"}, writer]},
            "model": {"init_args": {"sampling": sampling}},
        }
        (folder / f"sample_{output}").mkdir()
        (folder / f"sample_{output}" / "predict.yaml").write_text(yaml.safe_dump(config))
    assert build_report(RunRecord(folder))["sampling"] == {
        "one_stage": {"synthetic_one_stage.jsonl": {"num_beams": 3}},
        "two_stage": {"trees.jsonl": {"num_beams": 1}, "synthetic.jsonl": {"num_beams": 2}},
    }


def test_what_is_missing_is_named_and_the_report_ends_in_a_few_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pipeline(tmp_path, {"one_stage": SPEC, "two_stage": SPEC})
    (folder / "experiment.yaml").write_text("name: mine\nsystems: [one_stage, two_stage, shuffled]\nnum_samples: 3\n")
    (folder / "evaluation" / "one_stage.json").write_text('{"mauve": ')
    (folder / "synthetic.jsonl").write_text('{"utterance": "yes"}\n{"utterance": "book lunch with Ana"}\n')
    assert cli.main(["report", str(folder)]) == 0
    report = json.loads((folder / "report.json").read_text())
    assert list(report["metrics"]) == ["two_stage"]
    assert "is no JSON" in report["left_out"]["one_stage"] and "half-done" in report["left_out"]["shuffled"]
    out = capsys.readouterr().out
    assert "left out: shuffled: half-done" in out and "  book lunch with Ana\n" in out and "  yes\n" not in out
    assert out.startswith("mine, seed 1: ") and "3 samples a system" in out and str(folder / "synthetic.jsonl") in out
    assert "dialogue" in out and str(folder / "report.html") in out and len(out.splitlines()) < 20
    (folder / "evaluation" / "two_stage.json").unlink()
    assert cli.main(["report", str(folder)]) == 2
    assert "has no metrics: evaluation/one_stage.json is no JSON" in capsys.readouterr().err
