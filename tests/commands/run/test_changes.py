"""Settings that change while a run goes on: done where nothing paid or released depends on them, else refused."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from documented_settings import keys, other
from finished_run import draw, step_here
from run_folders import go_on, mark

import cli
from callbacks.sample_metrics import cut_off_warning, none_will_do
from commands.privacy.evolution_settings import Evolution
from commands.privacy.release_settings import Topics, Words
from commands.run import launch
from commands.run.execution.settle import RunPlan
from commands.run.execution.slurm import load_site
from commands.run.experiment.changes import changes
from commands.run.experiment.experiment import load, read_values, save, shipped
from commands.run.experiment.settings import FACTS
from commands.run.steps.recipes import steps_of
from doppel.errors import UserError
from doppel.settings.yaml_files import dump, parse_yaml

NUMBER = 40


@pytest.fixture
def compared(run: Path, finished: Path) -> tuple[Path, Path]:
    """The run with a reference and evaluations that are done, as files; the experiment that it was started with."""
    base = yaml.safe_load((finished.parent / "mine.yaml").read_text())
    base |= {"reference": str(finished.parent / "public.jsonl"), "words": None}
    base["topics"]["texts"] = "samples"
    path = run.parent / "mine.yaml"
    path.write_text(dump(base))
    save(load(path), run / "experiment.yaml")
    plan = goes_on(path, run)
    launch.write(plan, overwrite=True)
    for step in plan.waiting:
        assert step.command == "evaluate", "nothing else of a run depends on such a reference"
        (run / ".done" / step.name).touch()
    assert not goes_on(path, run).waiting
    return path, run


def goes_on(path: Path, run: Path, given: Mapping[str, Any] | None = None) -> RunPlan:
    """What is to be done in a run, under other settings by dotted name."""
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
        plan = goes_on(path, run, {key: value})
    except UserError as error:
        found = re.search(
            r"was started with (\S+?)=.*, now (\S+?)=.* is asked.*: .*restore it \(.*/experiment.yaml \S+ goes on",
            str(error),
            re.DOTALL,
        )
        assert found is not None and found[1] == found[2], error
        assert f"{found[1]}.".startswith(f"{key}.") or f"{key}.".startswith(f"{found[1]}."), error
        return "refused"
    launch.write(plan, overwrite=True)
    assert records(run) == before, "what ran is written down as it ran"
    assert all(step.command == "evaluate" for step in plan.waiting), "nothing else runs anew"
    kept = load(run / "experiment.yaml")
    steps = steps_of(kept, run)
    for step in steps:  # experiment.yaml and the record of each step tell the same
        if step.is_once:
            recorded = (run / "configs" / f"{step.name}.yaml").read_text()
            assert parse_yaml(recorded.replace(str(finished), str(run))) == step.config, step.name
    assert not goes_on(path, run, {key: value}).repeated or plan.waiting, "the same command is done, given again"
    if plan.waiting:
        return "evaluated"
    return "told" if was and changes(told, kept) else "kept"


@pytest.mark.slow
def test_each_of_forty_changes_to_a_finished_run_is_done_or_refused_by_name_with_both_values(
    compared: tuple[Path, Path], finished: Path
) -> None:
    path, run = compared
    valid = []
    for key, kind, default in keys():
        value = other(key, kind, default, run.parent)
        with suppress(UserError, AttributeError):
            load(path, {key: value})
            valid.append((key, value))
    judged = [(key, value) for key, value in valid if "." not in key and FACTS.at(key).binds == "evaluation"]
    others = [pair for pair in valid if pair not in judged]
    drawn = judged + random.Random(57).sample(others, NUMBER - len(judged))
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
    plan = goes_on(path, run, given)
    assert [step.name for step in plan.waiting] == ["two_stage-sample_parse_tree", "two_stage-sample_parse2utterance"]
    launch.write(plan, overwrite=True)
    assert not (run / "two_stage/trees.jsonl").exists()
    for step in plan.waiting:
        assert step_here("", run / ".done" / step.name, ["python", "cli.py", *step.words(run)]) == 0
    sampled = parse_yaml((run / "two_stage/sample_parse_tree/predict.yaml").read_text())
    assert sampled["model"]["init_args"]["sampling"]["max_new_tokens"] == 60
    assert (run / "ledger.jsonl").read_bytes() == ledger and not goes_on(path, run, given).waiting
    assert (run / "one_stage/samples.jsonl").read_bytes() == others and cli.main(["verify", str(run)]) == 0


def test_what_waits_in_a_queue_keeps_its_settings(tmp_path: Path) -> None:
    old = load(shipped("own-data-small"), {"data.train_path": "a.csv"})
    new = replace(old, num_samples=7)
    assert not go_on(tmp_path, old, new)
    with pytest.raises(UserError, match=r"num_samples=1000, now num_samples=7 .*cancel its job first"):
        go_on(tmp_path, old, new, ["one_stage-sample_one_stage"])


@pytest.mark.parametrize(
    ("system", "step"),
    [("one_stage", "sample_one_stage"), ("labels", "sample_labels"), ("two_stage", "sample_parse2utterance")],
)
def test_what_a_message_of_a_stopped_run_advises_is_taken_while_others_have_samples(
    system: str, step: str, run: Path, finished: Path
) -> None:
    """Of a sampling that wrote nothing, or much that was cut off; and of a training that lacks memory."""
    path, samples = finished.parent / "mine.yaml", run / system / "samples.jsonl"
    samples.unlink()
    (run / ".done" / f"{system}-{step}").unlink()
    module: Any = SimpleNamespace(
        text_format=SimpleNamespace(target="utterance"), sampling=SimpleNamespace(max_new_tokens=8), model=None
    )
    metrics = {"synthetic/num_drawn": 40, "synthetic/dropped/cut off": 40, "synthetic/finished": 0.5}
    told = f"{none_will_do(metrics, samples, module)} {cut_off_warning(metrics, module, samples)}"
    advised = re.findall(r"(\w+\.[\w.]+\.(?:max_new_tokens|redraws))(?:=(\w+))?", told)
    assert [value for _, value in advised] == ["", "null", "16"]
    for key, value in [*advised, ("data.max_tokens_per_micro_batch", "128")]:
        waiting = goes_on(path, run, read_values([f"{key}={value or 20}"])).waiting
        assert [other.name for other in waiting] == [f"{system}-{step}"], key


def test_the_commands_of_a_refusal_and_of_the_end_of_a_training_do_what_they_say(
    run: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished.parent / "mine.yaml"
    with pytest.raises(UserError) as error:
        goes_on(path, run, {"num_samples": 20})
    (words,) = re.findall(r"python cli\.py sample (\S+ --num) N", str(error.value))
    assert draw(*map(Path, words.split()[:1]), "--num", "3", "--system", "one_stage") == 0
    assert cli.main(["ledger", str(run)]) == 0 and "one_stage" in capsys.readouterr().out


def test_a_run_that_chose_fluent_samples_goes_on_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may have spent its ε under a version that had them."""
    save(load(shipped("quickstart")), path := tmp_path / "experiment.yaml")
    path.write_text(path.read_text() + "fluent: true\n")
    assert load(path) == replace(load(shipped("quickstart")), name=load(path).name)
    assert "samples are drawn without it" in capsys.readouterr().out
    with pytest.raises(UserError, match="no field 'fluent'"):
        load(path, {"fluent": True})
