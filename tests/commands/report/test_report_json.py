"""`page` of one run: what was spent, and what that protects, beside the metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from known_plans import known_plan
from run_folders import end_step, evaluate, sample

import cli
from commands.report.report_json import SPLIT_FIELDS, _adaptation, build_report
from commands.report.report_text import render
from commands.report.write import write_page
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import File
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import DPPlan

SPEC = known_plan("one epoch", unit="dialogue", max_rows_per_unit=4)


def pipeline(folder: Path, specs: dict[str, DPPlan], is_sampled: bool = True) -> Path:
    """A run folder with a ledger, the metrics of each system and, if wanted, how it was sampled."""
    for system, spec in specs.items():
        ledger = Ledger(folder / "ledger.jsonl")
        name = ledger.open(scope=system, stage="fit", spec=spec, planned_steps=20, data_fingerprint="f00d")
        for _ in range(5):
            ledger.spend(name)
        if is_sampled:
            sample(folder, system)
        evaluate(folder, system, {"mauve_own_base": 0.5})
    return folder


def test_the_report_says_what_epsilon_protects(tmp_path: Path) -> None:
    report = build_report(RunFolder(pipeline(tmp_path, {"two_stage": SPEC})))
    words = "one dialogue (all its requests, however many; each step uses at most 4 of them, chosen uniformly)"
    assert report["privacy"]["protects"] == words
    assert report["privacy"]["epsilon"] == report["privacy"]["systems"]["two_stage"]["epsilon"] < 6
    assert f"under adding or removing {words}" in render(report, RunFolder(tmp_path))
    (tmp_path / "ledger.jsonl").write_bytes(b"")
    with pytest.raises(UserError, match=r"ledger\.jsonl: it holds nothing of this run"):
        build_report(RunFolder(tmp_path))


def test_systems_with_unlike_units_are_explained_one_by_one(tmp_path: Path) -> None:
    specs = {
        "one_stage": replace(SPEC, budget=replace(SPEC.budget, unit="user"), max_rows_per_unit=7),
        "two_stage": SPEC,
    }
    report = build_report(RunFolder(pipeline(tmp_path, specs)))
    assert report["privacy"]["epsilon_if_all_systems_are_released"] is None
    text = render(report, RunFolder(tmp_path))
    assert "one_stage: adding or removing one user" in text and "at most 7 of them" in text
    assert "two_stage: adding or removing one dialogue" in text and "at most 4 of them" in text


def test_a_folder_without_ledger_or_metrics_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ledger\.jsonl"):
        build_report(RunFolder(tmp_path))
    Ledger(tmp_path / "ledger.jsonl").open(
        scope="two_stage", stage="fit", spec=SPEC, planned_steps=1, data_fingerprint="f00d"
    )
    with pytest.raises(UserError, match="metrics"):
        build_report(RunFolder(tmp_path))


def test_a_run_without_a_reference_has_a_report_and_a_card_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    ledger = Ledger(run / "ledger.jsonl")
    mechanism = ledger.open(scope="two_stage", stage="fit", spec=SPEC, planned_steps=5, data_fingerprint="f00d")
    for _ in range(5):
        ledger.spend(mechanism)
    sample(run, "two_stage")
    (run / "experiment.yaml").write_text("name: mine\nsystems: [two_stage]\n")
    assert cli.main(["report", str(run)]) == 0
    told, report = capsys.readouterr().out, json.loads((run / "report.json").read_text())
    assert report["privacy"]["systems"]["two_stage"]["epsilon"] == pytest.approx(ledger.epsilon("two_stage"))
    assert report["card"]["verified"] and "card: VERIFIED" in told and "NOT PRIVATE" not in told
    assert report["metrics"] == {"two_stage": {}} and (run / "report.html").is_file()


def test_a_stage_that_was_marked_by_hand_has_no_time_and_stops_nothing(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, {"two_stage": SPEC})
    assert build_report(RunFolder(folder))["timings"] == {}
    (folder / ".done").mkdir()
    (folder / ".done" / "parse_tree").touch()
    (folder / ".done" / "parse2utterance").write_text("31\n")
    assert build_report(RunFolder(folder))["timings"] == {"parse2utterance": 31}


def test_report_and_page_name_no_folder_and_no_time_of_a_private_step(tmp_path: Path) -> None:
    (tmp_path / "of-hers").mkdir()
    run = pipeline(tmp_path / "of-hers" / "run", {"two_stage": SPEC})
    told = {"name": "mine", "systems": ["two_stage"], "reference": str(tmp_path / "of-hers" / "public.jsonl")}
    told |= {"data": {"train_path": str(tmp_path / "of-hers" / "private.jsonl")}}
    (run / "experiment.yaml").write_text(yaml.safe_dump(told))
    (tmp_path / "of-hers" / "private.jsonl").touch()
    files = [File("fit/checkpoints/last.ckpt", "checkpoint", "two_stage", "two_stage")]
    (run / "fit" / "checkpoints").mkdir(parents=True)
    (run / "fit" / "checkpoints" / "last.ckpt").touch()
    end_step(run, "fit", ["fit", "--run_dir", "fit"], files, [], str(tmp_path / "of-hers" / "private.jsonl"))
    (run / ".done").mkdir(exist_ok=True)
    for name, seconds in (("fit", 31), ("sample", 7)):
        (run / ".done" / name).write_text(f"{seconds}\n")
    content = build_report(RunFolder(run))
    assert content["timings"] == {"sample": 7}
    assert content["data"]["train"] == "private.jsonl" and content["data"]["reference"] == "public.jsonl"
    write_page(RunFolder(run), content)
    shown = json.dumps(content) + (run / "report.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in shown and "of-hers" not in shown


def test_the_report_says_how_each_system_was_sampled(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, {"one_stage": SPEC, "two_stage": SPEC, "topics": SPEC}, is_sampled=False)
    (folder / "experiment.yaml").write_text("topics: {num_topics: 3}\ncandidates: 4\n")
    outputs = {
        "two_stage/trees.jsonl": ("two_stage", "prompts", ()),
        "two_stage/samples.jsonl": ("two_stage", "release", ("two_stage/trees.jsonl",)),
        "one_stage/samples.jsonl": ("one_stage", "release", ()),
        "topics/pool.jsonl": ("topics", "pool", ()),
    }
    for beams, (output, (system, role, reads)) in enumerate(outputs.items(), start=1):
        config: dict[str, Any] = {"model": {"init_args": {"sampling": {"num_beams": beams, "seed": 7, "max_rows": 64}}}}
        if beams == 1:  # as a run writes it, in a folder of its own
            config["model"]["init_args"]["sampling"]["grammar"] = [str(folder / "public_trees.jsonl")]
        (folder / f"sample_{beams}").mkdir()
        (folder / f"sample_{beams}" / "predict.yaml").write_text(yaml.safe_dump(config))
        (folder / output).parent.mkdir(exist_ok=True)
        (folder / output).write_text("{}\n")
        (folder / f"{output}.metrics.json").write_text(json.dumps({"synthetic/num_drawn": beams, "weights": "f00d"}))
        files = [File(output, role, system, system), File(f"{output}.metrics.json", "metrics", system, system)]
        end_step(folder, f"sample_{beams}", ["predict", "--run_dir", f"{folder}/sample_{beams}"], files, reads)
    (folder / "topics/samples.jsonl").write_text("{}\n")
    (folder / "topics/samples.jsonl.resampling.json").write_text('{"num_drawn": 1}')
    files = [File("topics/samples.jsonl", "release", "topics", "topics")]
    files.append(File("topics/samples.jsonl.resampling.json", "metrics", "topics", "topics"))
    end_step(folder, "topics-resample", ["resample"], files, ["topics/pool.jsonl"])
    for system in ("one_stage", "two_stage", "topics"):
        evaluate(folder, system, {"mauve_own_base": 0.5})
    report = build_report(RunFolder(folder))
    assert report["sampling"] == {
        "one_stage": {"one_stage/samples.jsonl": {"num_beams": 3}},
        "two_stage": {
            "two_stage/trees.jsonl": {"num_beams": 1, "grammar": ["public_trees.jsonl"]},
            "two_stage/samples.jsonl": {"num_beams": 2},
        },
        "topics": {"topics/samples.jsonl": {"num_beams": 4, "topics": {"num_topics": 3}}},
    }
    assert report["draws"]["topics"] == {"topics/samples.jsonl": {"num_drawn": 4}}
    assert report["resampling"] == {"topics": {"num_drawn": 1}}


def test_numbers_of_other_samples_than_those_that_are_there_are_left_out(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, {"one_stage": SPEC, "two_stage": SPEC})
    (folder / "two_stage/samples.jsonl").write_text('{"utterance": "no"}\n')
    end_step(
        folder, "sample_two_stage", ["predict"], [File("two_stage/samples.jsonl", "release", "two_stage", "two_stage")]
    )
    report = build_report(RunFolder(folder))
    assert list(report["metrics"]) == ["one_stage"] and "two_stage/samples.jsonl" in report["left_out"]["two_stage"]
    evaluate(folder, "two_stage", {"mauve_own_base": 0.7})
    (folder / "one_stage" / "evaluation.json").write_text('{"mauve_own_base": 0.99}')
    report = build_report(RunFolder(folder))
    assert list(report["metrics"]) == ["two_stage"] and "one_stage/evaluation.json" in report["left_out"]["one_stage"]


def test_seed_0_is_told_as_it_is(tmp_path: Path) -> None:
    folder = pipeline(tmp_path, {"one_stage": SPEC})
    (folder / "experiment.yaml").write_text("name: mine\nsystems: [one_stage]\nseed: 0\n")
    assert build_report(RunFolder(folder))["seed"] == 0


def test_what_is_missing_is_named_and_the_report_ends_in_a_few_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pipeline(tmp_path, {"one_stage": SPEC, "two_stage": SPEC})
    (folder / "experiment.yaml").write_text("name: mine\nsystems: [one_stage, two_stage, shuffled]\nnum_samples: 3\n")
    (folder / "one_stage" / "evaluation.json").write_text('{"mauve_own_base": ')
    sample(folder, "two_stage", lines=b'{"utterance": "yes"}\n{"utterance": "book lunch with Ana"}\n')
    evaluate(folder, "two_stage", {"mauve_own_base": 0.5})
    assert cli.main(["report", str(folder)]) == 0
    report = json.loads((folder / "report.json").read_text())
    assert list(report["metrics"]) == ["two_stage"]
    assert report["left_out"].keys() == {"one_stage", "shuffled"} and "JSON" in report["left_out"]["one_stage"]
    out = capsys.readouterr().out
    assert "left out: shuffled: " in out and "  book lunch with Ana\n" in out and "  yes\n" not in out
    assert (
        out.startswith("mine, seed 1: ")
        and "3 samples a system" in out
        and str(folder / "two_stage/samples.jsonl") in out
    )
    assert "dialogue" in out and str(folder / "report.html") in out and len(out.splitlines()) < 20
    (folder / "two_stage" / "evaluation.json").unlink()
    assert cli.main(["report", str(folder)]) == 0
    assert "one_stage/evaluation.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("step", "is_private", "is_told"),
    [("full-parser", True, True), ("none-parser", True, False), ("full-parser", False, False)],
)
def test_a_report_says_that_no_epsilon_covers_what_a_private_annotator_taught(
    step: str, is_private: bool, is_told: bool, tmp_path: Path
) -> None:
    def find(role: str, **_: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(step=step)] if role == "checkpoint" else []

    numbers = ("public_share", "by", "num_public", "num_private", "num_test", "num_test_with_function")
    split = dict.fromkeys((*SPLIT_FIELDS, *numbers), 1) | {"train": "private.jsonl"}
    record: Any = SimpleNamespace(
        split=lambda: split,
        manifest=SimpleNamespace(find=find),
        experiment={"systems": []},
        is_private=is_private,
        reference=None,
        folder=tmp_path,
    )
    assert ("no ε covers" in _adaptation(record, {"reference": None}).get("parsers_note", "")) == is_told
