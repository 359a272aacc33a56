"""Public files that a run was started with are gone, or others in their place, once it has paid."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from known_plans import known_plan
from readers import reader
from run_folders import mark

from commands.run import launch
from commands.run.execution.settle import RunPlan
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load
from commands.run_folder.inputs import INPUTS
from commands.run_folder.manifest import VERSION, Manifest
from commands.run_folder.manifest_writer import enter, refuse_other_data
from commands.run_folder.run_folder import RunFolder
from datamodules.reading.files import file_digest
from doppel.errors import UserError
from doppel.privacy.fingerprint import keyed_fingerprint
from doppel.privacy.ledger import Ledger
from tests.slurm.launches import write_experiment

TRAINED = "one_stage-one_stage"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Public files of an experiment, in a folder that may go."""
    (tmp_path / "public").mkdir()
    texts = {"reference": "hello there\nwhat is up\n", "names": "Weather: the weather\n", "supported": "Weather\n"}
    names = {"reference": "valid.txt", "names": "names.yaml", "supported": "functions.txt"}
    found = {field: tmp_path / "public" / name for field, name in names.items()}
    for field, path in found.items():
        path.write_text(texts[field])
    return found


def begin(tmp_path: Path, files: dict[str, Path], **changes: object) -> RunPlan:
    """A run of one system, as a command finds it."""
    (tmp_path / "private.txt").write_text("my secret\n" * 9)
    fields = {"data": {"train_path": str(tmp_path / "private.txt"), "unit": "utterance"}, "systems": ["one_stage"]}
    own = write_experiment(
        tmp_path / "own.yaml", base="own-data-small", **fields, **{k: str(v) for k, v in files.items()}
    )
    return launch.begin(load(own, changes), tmp_path / "run", load_site(None, {}))


def pay(plan: RunPlan) -> None:
    """Write a run down, with its training done."""
    launch.write(plan, overwrite=True)
    (plan.run / ".done").mkdir(exist_ok=True)
    (plan.run / ".done" / TRAINED).write_text("1\n")


def evaluation(plan: RunPlan) -> tuple[str, ...]:
    (step,) = [step for step in plan.steps if step.command == "evaluate"]
    return step.reads


def test_a_reference_that_is_gone_or_changed_is_asked_for_and_the_copy_goes_on(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    reference = files["reference"]
    pay(begin(tmp_path, files))
    copy = tmp_path / "run" / INPUTS / "reference" / "valid.txt"
    assert copy.read_text() == reference.read_text() and copy.stat().st_mode & 0o777 == 0o600
    whole = reference.read_text()
    for text in (None, "other words\n"):
        reference.unlink() if text is None else reference.write_text(text)
        with pytest.raises(UserError, match=f"reference is {reference}, which .* --set reference={copy}, the copy"):
            begin(tmp_path, files)
    plan = begin(tmp_path, files, reference=str(copy))  # as the message advises
    assert f"{INPUTS}/reference/valid.txt" in evaluation(plan) and str(reference) not in evaluation(plan)
    launch.write(plan, overwrite=False)  # also of a run whose jobs keep their configurations
    config = (tmp_path / "run" / "configs" / "one_stage-evaluate.yaml").read_text()
    assert str(copy) in config and copy.read_text() == whole
    reference.write_text(whole)  # it is there again: a file of that content is the same value
    assert str(reference) in evaluation(begin(tmp_path, files))
    moved = reference.rename(tmp_path / "moved.txt")
    assert str(moved) in evaluation(begin(tmp_path, {**files, "reference": moved}))
    moved.write_text("other words\n")
    mark(tmp_path / "run", "one_stage-words")  # which were counted against the reference
    with pytest.raises(UserError, match=r"was started with reference=.*now reference="):
        begin(tmp_path, {**files, "reference": moved})


def test_a_start_that_failed_binds_nobody_to_its_copies(tmp_path: Path, files: dict[str, Path]) -> None:
    launch.write(begin(tmp_path, files), overwrite=True)
    files["reference"].write_text("other words\n")
    pay(begin(tmp_path, files))
    assert (tmp_path / "run" / INPUTS / "reference" / "valid.txt").read_text() == "other words\n"
    assert begin(tmp_path, files).waiting


def test_what_no_step_reads_any_more_is_not_asked_for(tmp_path: Path, files: dict[str, Path]) -> None:
    plan = begin(tmp_path, files)
    pay(plan)
    for step in plan.steps:
        (plan.run / ".done" / step.name).write_text("1\n")
    files["reference"].unlink()
    assert not begin(tmp_path, files).waiting


def test_a_page_reads_the_copies_of_what_is_gone_and_the_newest_of_what_is_there(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    pay(begin(tmp_path, files))
    files["names"].write_text("Weather: rain\n")
    launch.write(begin(tmp_path, files), overwrite=True)
    for field in ("names", "supported"):
        files[field].unlink()
    begin(tmp_path, files)
    told = RunFolder(tmp_path / "run").experiment
    assert Path(told["names"]).read_text() == "Weather: rain\n"
    assert Path(told["supported"]).read_text() == "Weather\n" and told["reference"] == str(files["reference"])


def test_the_manifest_knows_a_copy_as_an_input_and_sees_when_it_has_changed(
    tmp_path: Path, files: dict[str, Path]
) -> None:
    plan = begin(tmp_path, files)
    pay(plan)
    run, copy = plan.run, plan.run / INPUTS / "reference" / "valid.txt"
    files["reference"].unlink()
    launch.write(begin(tmp_path, files, reference=str(copy)), overwrite=True)
    (run / "one_stage").mkdir()
    (run / "one_stage" / "evaluation.json").write_text("{}")
    enter(run, "one_stage-evaluate")
    place = f"{INPUTS}/reference/valid.txt"
    manifest = Manifest.read(run)
    entry = manifest.files["one_stage/evaluation.json"]
    assert entry.inputs[place] is not None and not entry.reads_private and place not in manifest.files
    assert not manifest.stale_inputs(entry.path)
    copy.write_text("other words\n")
    (why,) = Manifest.read(run).stale_inputs(entry.path)
    assert place in why and "is another file now" in why
    assert reader(place) == "who holds the run"


@pytest.mark.parametrize("change", ["a row more", "a row changed"])
def test_a_private_file_that_has_changed_is_charged_for_nothing_more(
    tmp_path: Path, files: dict[str, Path], change: str
) -> None:
    """An export that is written anew every night, while the run was stopped between two charges."""
    plan = begin(tmp_path, files)
    pay(plan)
    run, private = plan.run, tmp_path / "private.txt"
    ledger = Ledger(run / "ledger.jsonl")
    least = known_plan("stages of 20 and 80 steps")
    names = {"scope": "one_stage", "stage": "one_stage", "planned_steps": 20}
    ledger.spend(ledger.open(**names, spec=least, data_fingerprint="f00d"))
    checkpoint = run / "one_stage" / "one_stage" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("weights")
    enter(run, TRAINED)
    site, experiment = load_site(None, {}), load(run / "experiment.yaml", {})
    rows = private.read_text()
    private.write_text(rows + "one more\n" if change == "a row more" else rows.replace("secret", "secrets", 1))
    with pytest.raises(UserError, match=f"{private} has changed since {TRAINED} .* one_stage-words would be charged"):
        launch.begin(experiment, run, site)
    for step in plan.steps:  # nothing is left to charge
        if step.mechanisms:
            (run / ".done" / step.name).write_text("1\n")
    launch.begin(experiment, run, site)
    (run / ".done" / "one_stage-words").unlink()
    private.write_text(rows)
    assert [step.name for step in launch.begin(experiment, run, site).waiting if step.mechanisms] == ["one_stage-words"]


def test_rows_that_a_step_has_written_anew_are_charged_for_as_long_as_the_file_has_them(tmp_path: Path) -> None:
    """People who were taken out of the file would be trained on all the same."""
    private = tmp_path / "private.csv"
    private.write_text("utterance\nring me\nfeed the cat\n")
    (tmp_path / "data").mkdir()
    digest = keyed_fingerprint(file_digest(private).hex())
    common = {"role": "private", "system": None, "budget": None, "command": ["step"], "sha256": "keyed:0"}
    common |= {"reads_private": True, "mechanisms": []}
    made = {
        "data/private.jsonl": common | {"step": "partition", "inputs": {str(private): f"keyed:{digest}"}},
        "data/parsed.jsonl": common | {"step": "parse", "inputs": {"data/private.jsonl": "keyed:1"}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps({"version": VERSION, "files": made}))
    for path in made:
        (tmp_path / path).write_text("{}\n")
    waiting: Any = [SimpleNamespace(name="fit", protected=["data/parsed.jsonl"], mechanisms=["a/b"])]
    refuse_other_data(tmp_path, waiting)
    private.write_text("utterance\nring me\n")
    with pytest.raises(UserError, match=f"{private} has changed since partition of this run wrote data/private.jsonl"):
        refuse_other_data(tmp_path, waiting)
    waiting[0].mechanisms = []
    refuse_other_data(tmp_path, waiting)
    waiting[0].mechanisms = ["a/b"]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    least = known_plan("stages of 20 and 80 steps")
    ledger.spend(ledger.open(scope="a", stage="c", spec=least, planned_steps=20, data_fingerprint="f00d"))
    refuse_other_data(tmp_path, waiting)  # what has been paid for them goes on
