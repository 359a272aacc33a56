"""Settings that change while a run goes on: done where nothing paid or released depends on them, else refused."""

from __future__ import annotations

import inspect
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from finished_run import stage_here
from run_folders import go_on, mark

import cli
from commands.privacy.evolution_settings import Evolution
from commands.run import launch
from commands.run.changes import changes
from commands.run.experiment import load, save, shipped
from commands.run.recipes import steps_of
from commands.run.settings import FACTS, Topics, Words
from commands.run.slurm import load_site
from commands.run.work import Work
from commands.runs.yaml_files import dump, parse_yaml
from docs.reference import SECTIONS
from doppel.errors import UserError

NUMBER = 40
#: Of a mapping or of a class: another value than what the finished run has.
OTHERS: dict[str, Any] = {
    "systems": ["labels", "one_stage"],
    "overlays": ["configs/overlays/lora.yaml"],
    "topics.texts": "samples",
    "resampling.of": "votes",
    "columns": {"text": "utterance"},
    "lora": {"rank": 4, "alpha": 8.0},
    "optimizer": {"lr": 0.5},
    "supported": ["Music"],
    "names": {"Find": "look for"},
    "accountant": "pld",
    "label_words": {"talk": "to say"},
}


def documented() -> Iterator[tuple[str, Any, Any]]:
    """Every key of the reference, by dotted name, with its annotation and its default."""
    for title, kind in SECTIONS.items():
        above = "" if title == "Experiment" else f"{title}."
        for name, parameter in inspect.signature(kind).parameters.items() if title != "SLURM site" else ():
            if not (above == "" and FACTS.at(name).keys):  # whose keys have a section of their own
                yield f"{above}{name}", str(parameter.annotation), parameter.default


def other(key: str, kind: str, default: Any, folder: Path) -> Any:
    """Another value of a type."""
    if (given := OTHERS.get(key, OTHERS.get(key.rpartition(".")[2]))) is not None:
        return given
    if "Literal" in kind or "Accountant" in kind:
        words = [word for word in re.findall(r"'(\w+)'", kind) if word != default]
        return words[-1] if words else "other"
    if kind.startswith("dict"):
        return {"one_stage": 7}
    if "bool" in kind:
        return not default
    if "float" in kind or "int" in kind:
        return 7 if default in (None, inspect.Parameter.empty) or default != default else default + 1
    if FACTS.below(key).path:
        (folder / "other.txt").write_text("other\n")
        return str(folder / "other.txt")
    return "other"


@pytest.fixture
def compared(run: Path, finished: Path) -> tuple[Path, Path]:
    """The run with a reference and evaluations that are done, as files; the experiment that it was started with."""
    base = yaml.safe_load((finished.parent / "mine.yaml").read_text())
    base |= {"reference": str(finished.parent / "public.jsonl"), "words": None}
    base["topics"]["texts"] = "samples"
    path = run.parent / "mine.yaml"
    path.write_text(dump(base))
    save(load(path), run / "experiment.yaml")
    work = goes_on(path, run)
    launch.write(work, overwrite=True)
    for step in work.waiting:
        assert step.command == "evaluate", "nothing else of a run depends on such a reference"
        (run / ".done" / step.name).touch()
    assert not goes_on(path, run).waiting
    return path, run


def goes_on(path: Path, run: Path, given: Mapping[str, Any] | None = None) -> Work:
    """What is to be done in a run, under other settings by dotted name."""
    with mock.patch.object(launch, "check_sources"):  # which asks for a sentence encoder
        return launch.begin(load(path, given), run, load_site(None, {}))


def records(run: Path) -> dict[str, bytes]:
    """What says what ran, but for evaluations."""
    files = [*(run / "configs").iterdir(), *(run / ".done").iterdir(), run / "manifest.json", run / "ledger.jsonl"]
    return {str(file): file.read_bytes() for file in files if "evaluate" not in file.name}


def outcome(path: Path, run: Path, finished: Path, key: str, value: Any) -> str:
    """What comes of one change to the finished run, which has to be one of those that a user can live with."""
    before, told = records(run), load(run / "experiment.yaml")
    was = changes(told, load(path, {key: value}))
    try:
        work = goes_on(path, run, {key: value})
    except UserError as error:
        found = re.search(r"was started with (\S+?)=.*, now (\S+?)=.* is asked.*: .*restore it", str(error), re.DOTALL)
        assert found is not None and found[1] == found[2], error
        assert f"{found[1]}.".startswith(f"{key}.") or f"{key}.".startswith(f"{found[1]}."), error
        return "refused"
    launch.write(work, overwrite=True)
    assert records(run) == before, "what ran is written down as it ran"
    assert all(step.command == "evaluate" for step in work.waiting), "nothing else runs anew"
    kept = load(run / "experiment.yaml")
    steps = steps_of(kept, run)
    for step in steps:  # experiment.yaml and the record of each step tell the same
        if step.is_once:
            recorded = (run / "configs" / f"{step.name}.yaml").read_text()
            assert parse_yaml(recorded.replace(str(finished), str(run))) == step.config, step.name
    assert not goes_on(path, run, {key: value}).repeated or work.waiting, "the same command is done, given again"
    if work.waiting:
        return "evaluated"
    return "told" if was and changes(told, kept) else "kept"


def test_each_of_forty_changes_to_a_finished_run_is_done_or_refused_by_name_with_both_values(
    compared: tuple[Path, Path], finished: Path
) -> None:
    path, run = compared
    valid = []
    for key, kind, default in documented():
        value = other(key, kind, default, run.parent)
        with suppress(UserError, AttributeError):
            load(path, {key: value})
            valid.append((key, value))
    drawn = random.Random(57).sample(valid, NUMBER)
    found = {}
    for key, value in drawn:
        backup = run.with_name("backup")
        shutil.copytree(run, backup, symlinks=True)
        found[key] = outcome(path, run, finished, key, value)
        shutil.rmtree(run)
        backup.rename(run)
    assert set(found.values()) == {"refused", "evaluated", "told", "kept"}


def test_a_finished_run_stays_what_ran_whatever_overlay_it_is_given(
    compared: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """An overlay of adapters: the models have none, and a record that said so would be believed."""
    path, run = compared
    with pytest.raises(UserError, match=r"overlays=\[\], now overlays=\['\S+lora.yaml'\] is asked"):
        goes_on(path, run, {"overlays": ["configs/overlays/lora.yaml"]})
    (machine := run.parent / "machine.yaml").write_text("trainer: {precision: 64-true}\n")
    launch.write(goes_on(path, run, {"overlays": [str(machine)]}), overwrite=True)  # of another kind of node
    assert "overlays=[] stays, as it ran" in capsys.readouterr().out
    assert load(run / "experiment.yaml").overlays == []


def test_values_are_compared_not_their_text(tmp_path: Path) -> None:
    """One name with a dot, null for missing, a section without keys for none."""
    (path := tmp_path / "mine.yaml").write_text(
        dump(
            {
                "systems": ["v1.0", "topics"],
                "data": {"train_path": "a.csv"},
                "reference": "b.txt",
                "epochs": dict.fromkeys(("one_stage", "parse_tree", "parse2utterance"), 1),
                "variants": {"v1.0": {"privacy": {"max_grad_norm": 1.0}}},
            }
        )
    )
    old = load(path)
    mark(tmp_path, "v1.0-parse_tree", "topics-one_stage")

    def refused(**given: Any) -> str:
        with pytest.raises(UserError) as error:
            go_on(tmp_path, old, replace(old, **given))
        return re.findall(r"was started with (.*?), now (.*?) is asked", str(error.value))[0][1]

    name = "variants.v1.0.privacy.max_grad_norm"
    assert refused(variants={"v1.0": {"privacy": {"max_grad_norm": 99.0}}}) == f"{name}=99"
    assert refused(words=None) == "words=null" and refused(model={"slots": None}) == "model.slots=null"
    assert refused(topics=Topics(noise_multiplier=3.0)) == "topics.noise_multiplier=3"
    assert refused(seed=0) == "seed=0" and refused(data={**old.data, "truncate": True}) == "data.truncate=true"
    assert refused(seed=2, supported=["Music"], epochs={**old.epochs, "labels": 9.0}) == "seed=2"
    for equal in (
        {"words": Words(), "topics": Topics(), "evolution": Evolution(), "epsilon": 8},
        {"variants": {"v1.0": {"privacy": {"max_grad_norm": 1, "accountant": "pld"}, "data": {}}}},
        {"variants": {**old.variants, "v1": {"privacy": {"max_grad_norm": 99.0}}}},  # a system that was not begun
        {"data": {**old.data, "unit": "utterance", "unit_names": None}},
    ):
        assert not go_on(tmp_path, old, replace(old, **equal))


def test_trees_that_were_cut_off_are_drawn_again_though_another_system_has_samples(run: Path, finished: Path) -> None:
    """The message of a sampling without samples says so: a larger stages.parse_tree.sampling.max_new_tokens."""
    path = finished.parent / "mine.yaml"
    for name in ("sample_parse2utterance", "words", "evaluate"):
        (run / ".done" / f"two_stage-{name}").unlink(missing_ok=True)
    (run / "two_stage/samples.jsonl").unlink()
    (run / "synthetic.jsonl").unlink()  # a link, of which the copy of the run has made a file
    ledger, others = (run / "ledger.jsonl").read_bytes(), (run / "one_stage/samples.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"one_stage-sample_one_stage has begun with it: for more samples"):
        goes_on(path, run, {"sampling.max_new_tokens": 16})
    given = {"stages.parse_tree.sampling.max_new_tokens": 60, "num_samples": 12}
    work = goes_on(path, run, given)
    assert [step.name for step in work.waiting] == ["two_stage-sample_parse_tree", "two_stage-sample_parse2utterance"]
    launch.write(work, overwrite=True)
    assert not (run / "two_stage/trees.jsonl").exists()
    for step in work.waiting:
        assert stage_here("", run / ".done" / step.name, ["python", "cli.py", *step.words(run)]) == 0
    sampled = parse_yaml((run / "two_stage/sample_parse_tree/predict.yaml").read_text())
    assert sampled["model"]["init_args"]["sampling"]["max_new_tokens"] == 60
    assert (run / "ledger.jsonl").read_bytes() == ledger and not goes_on(path, run, given).waiting
    assert (run / "one_stage/samples.jsonl").read_bytes() == others and cli.main(["verify", str(run)]) == 0


def test_what_waits_in_a_queue_keeps_its_settings(tmp_path: Path) -> None:
    old = load(shipped("own-data"), {"data.train_path": "a.csv"})
    new = replace(old, num_samples=7)
    assert not go_on(tmp_path, old, new)
    with pytest.raises(UserError, match=r"num_samples=1000, now num_samples=7 .*cancel its job first"):
        go_on(tmp_path, old, new, ["one_stage-sample_one_stage"])
