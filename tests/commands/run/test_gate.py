"""One gate: nothing is paid before every step's configuration and files have been read, in every way to start a run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from lightning.pytorch import Trainer
from run_folders import work_of

import cli
from commands.lightning.given_models import check_model
from commands.privacy.evolution_settings import Evolution
from commands.privacy.release_settings import Attributes, Resampling, Topics, Words
from commands.run import launch
from commands.run import run as run_in_python
from commands.run.execution import forks
from commands.run.experiment.experiment import load, shipped
from commands.run.experiment.settings import FACTS, Adaptation, Experiment
from commands.run.preflight import preflight
from commands.run.preflight.sources import inputs_of, read_sources
from commands.run.steps.recipes import steps_of
from commands.run_folder.systems import BASE_MODEL
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.redaction import Redaction
from doppel.decoding.sampling import SamplingArguments
from doppel.errors import UserError
from doppel.models.adapters import LoraArguments
from doppel.privacy.spec import PrivacyArguments
from lightning_modules.causal_lm import CausalLM

USUAL = {"data.train_path": "embedded:train?num=200&seed=1", "reference": "embedded:test?num=60&seed=2"}
USUAL |= {"data.val_path": None, "data.val_is_public": False, "num_samples": 100, "systems": ["one_stage", "two_stage"]}
#: What the fields below a place belong to.
PLACES: dict[str, Any] = {
    "": Experiment,
    "data": DialogueDataModule,
    "model": CausalLM,
    "model.lora": LoraArguments,
    "sampling": SamplingArguments,
    "privacy": PrivacyArguments,
    "trainer": Trainer,
    "stages.parse2utterance.data": DialogueDataModule,
    "stages.parse2utterance.model": CausalLM,
    "stages.parse2utterance.sampling": SamplingArguments,
    "words": Words,
    "redact": Redaction,
    "resampling": Resampling,
    "topics": Topics,
    "evolution": Evolution,
    "attributes": Attributes,
    "adaptation": Adaptation,
}
#: What an experiment says beside the fields of a place, so that they count.
BESIDE: dict[str, dict[str, Any]] = {
    "compared_with": {"reference": None},  # else the reference is what samples are compared with
    "redact": {"redact.patterns": ["email"]},
    "resampling": {"resampling.of": "votes", "resampling.encoder": BASE_MODEL, "resampling.clusters": 2},
    "topics": {"systems": ["topics"], "topics.encoder": BASE_MODEL},
    "evolution": {"systems": ["evolution"], "evolution.encoder": BASE_MODEL, "evolution.generator": "grammar"},
    "attributes": {"systems": ["attributes"], "attributes.schema": "SCHEMA"},
    "adaptation": {"adaptation.train": USUAL["data.train_path"], "adaptation.missing": "Find*", "reference": None},
}
#: Sections of an experiment, whose keys stand under places of their own; and what the run writes by itself.
NO_FIELDS = {*PLACES, "stages", "variants", "at_epsilon", "environment", "parser_digest", "commit"}
#: Numbers that may be negative: seeds, and those of Lightning, where -1 means all or without end.
MAY_BE_NEGATIVE = ("sampling_seed", "shuffle_trees", "sampling.seed", "privacy.seed")
#: Files that nothing of these runs reads, and one that is written.
NOT_READ = ("public_parser", "labels", "privacy.ledger_path")


def wrong_settings() -> Iterator[tuple[str, Any]]:
    """Every documented field, with each value of a type or a range that it cannot have, or a file that is not there."""
    for place, kind in PLACES.items():
        hints = get_type_hints(kind if dataclasses.is_dataclass(kind) else kind.__init__)
        for name in inspect.signature(kind).parameters:
            if place or name not in NO_FIELDS:
                full = f"{place}.{name}".strip(".")
                yield from ((full, value) for value in wrong_values(full, hints[name]))
    for stage in ("one_stage", "parse_tree", "parse2utterance"):
        yield from ((f"epochs.{stage}", value) for value in ("many", 0, 1.5))


def wrong_values(name: str, hint: Any) -> Iterator[Any]:
    """Values that a field cannot have; none for a text, which may say anything, nor for what holds several."""
    kinds = [hint, *get_args(hint)]
    if any(kind is Any or get_origin(kind) in (dict, list, tuple) for kind in kinds):
        return
    if str in kinds:
        yield from ["/nowhere/at/all"] if FACTS.below(name).path and name not in NOT_READ else []
    elif any(issubclass(kind, int | float) for kind in kinds if inspect.isclass(kind)):
        yield "many" if bool not in kinds else [1, 2]
        yield from [] if name.startswith("trainer.") or name.endswith(MAY_BE_NEGATIVE) else [-1]
    elif bool in kinds or any(get_origin(kind) is Literal for kind in kinds):
        yield "no_such_word"


class Started(Exception):
    """The first step would run now."""


@pytest.fixture(autouse=True)
def _no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*_: object, **__: object) -> int:
        raise Started

    monkeypatch.setattr(launch, "run_here", step)


def start(folder: Path, changes: dict[str, Any], **options: Any) -> int:
    """Run the quickstart with settings, up to its first step."""
    words = [f"{name}={json.dumps(value)}" for name, value in (USUAL | changes).items()]
    return launch.run(shipped("quickstart"), folder, set=words, **({"local": True} | options))


@pytest.mark.parametrize("number", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_no_wrong_value_of_a_documented_field_is_met_after_the_first_line_of_a_ledger(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that is always the same; each is refused by name, in a run that would start without it."""
    monkeypatch.setattr(launch, "can_fork", lambda _: False)  # what trains is imported here already
    monkeypatch.setattr("commands.lightning.given_models.find_spec", lambda package: package)  # minilm need not be here
    (schema := tmp_path / "schema.yaml").write_text("length: {made: words, bins: [5, 8]}\n")
    more = {
        place: {k: str(schema) if v == "SCHEMA" else v for k, v in given.items()} for place, given in BESIDE.items()
    }
    settings = random.Random(number).sample(sorted(wrong_settings(), key=str), number)
    for place in more if number > 8 else ():
        with pytest.raises(Started):
            start(tmp_path / f"right {place}", more[place])
    for i, (name, value) in enumerate(settings):
        folder = tmp_path / str(i)
        with pytest.raises(UserError) as refusal:
            start(folder, more.get(name.split(".")[0], {}) | {name: value})
        assert not folder.exists(), f"{name}={value}"
        place, _, word = name.rpartition(".")
        words = (
            ("epochs",) if place == "epochs" else ("train_path", "private file") if word == "train_path" else (word,)
        )
        told = str(refusal.value).replace("-", "_")
        assert any(word in told for word in words), (name, value, told)


DPADAM = {"class_path": "doppel.privacy.optimizer.DPAdam", "init_args": {"lr": 0.003}}
LATER = [
    ({"epochs.parse2utterance": 1.5}, r"epochs\.parse2utterance is 1\.5: give a whole number"),
    ({"stages.parse2utterance.model.optimizer.lr": -1}, "parse2utterance would fail, .*Invalid learning rate"),
    ({"stages.parse2utterance.data.limit_train_units": 5}, "parse2utterance would fail, .*limit_train_units"),
    ({"next_token_epochs": -1}, "evaluate would fail, .*next-token-epochs: -1 is below 0"),
    ({"featurizer": "/nowhere/gpt2-larg"}, "featurizer of .* is /nowhere/gpt2-larg, which does not exist"),
    ({"num_samples": 0}, "num_samples is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"data.batch_size": 0}, "batch_size is 0"),
    (
        {
            "stages.parse2utterance.model.optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 1.0}},
            "model.optimizer": DPADAM,
            "privacy.bands": "auto",
        },
        "parse2utterance would fail, .*SGD loses what privacy.bands gains",
    ),
]


@pytest.mark.parametrize(
    ("mode", "changes", "told"),
    [("check", *LATER[0]), *(("local", *later) for later in LATER)],
    ids=["check", *(next(iter(changes)) for changes, _ in LATER)],
)
def test_a_setting_of_a_later_step_is_refused_before_the_first_one(
    mode: str, changes: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "can_fork", lambda _: False)
    with pytest.raises(UserError, match=told):
        start(tmp_path / "run", changes, **{"local": False, mode: True})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_bands_with_the_optimiser_that_knows_its_noise_pass_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "can_fork", lambda _: False)
    with pytest.raises(Started):
        start(tmp_path / "run", {"privacy.bands": 4, "model.optimizer": DPADAM, "data.batch_size": 20})


@pytest.mark.slow
def test_python_a_grid_and_a_submission_go_through_the_same_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every point of a grid is asked, here and as an array; nothing is submitted of what is refused."""
    monkeypatch.setattr(launch, "can_fork", lambda _: False)
    for name, text in (("sbatch", f"echo $@ >> {tmp_path}/submitted; echo 1"), ("squeue", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    wrong = {"stages.parse2utterance.model.optimizer.lr": -1}
    with pytest.raises(UserError, match="parse2utterance would fail"):
        run_in_python(shipped("quickstart"), tmp_path / "run", **(USUAL | wrong))
    with pytest.raises(UserError, match="parse2utterance would fail"):
        start(tmp_path / "run", wrong, local=False, submit=True)
    (own := tmp_path / "own.csv").write_text("utterance\nwake me up\nset an alarm\n")
    users = {"data.unit": "user", "data.train_path": str(own), "reference": str(own), "systems": ["one_stage"]}
    for mode in ("local", "submit", "check"):
        capsys.readouterr()
        assert start(tmp_path / "runs", users, grid=["seed=1,2"], **{"local": False, mode: True}) == 1
        told = capsys.readouterr().out
        assert told.count("no 'unit', which says whose line this is") == 2
    assert start(tmp_path / "runs", {}, local=False, submit=True, grid=["data.batch_size=0,40"]) == 1
    assert "batch_size is 0" in (told := capsys.readouterr().out) and "batch_size=40: public_trees: task 1_0" in told
    lines = [line for line in (tmp_path / "submitted").read_text().splitlines() if "--test-only" not in line]
    assert lines and all(" --array=0%" in line for line in lines) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("status", "num_started"), [(130, 1), (143, 1), (75, 1), (1, 2)])
def test_a_grid_ends_where_somebody_ends_a_run_and_goes_on_after_a_failed_one(
    status: int, num_started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []
    monkeypatch.setattr(launch, "preflight", lambda *_: None)  # of what the others test
    monkeypatch.setattr(launch, "run_here", lambda run, *_: started.append(run) or status)
    assert start(tmp_path, {"systems": ["one_stage"]}, grid=["seed=1,2"]) == status
    assert len(started) == num_started
    assert ("seed=2: not started" in capsys.readouterr().out) == (num_started == 1)


def test_the_gate_of_a_run_here_asks_where_its_steps_find_their_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that PyTorch is imported once for all steps, and the first process of a run needs it not."""
    asked = []

    def answer(function: Any, *arguments: Any) -> Any:
        asked.append((function.__name__, getattr(arguments[0][0], "name", None)))
        return function(*arguments)

    monkeypatch.setattr(launch, "answer", answer)
    with pytest.raises(Started):
        start(tmp_path / "run", {"systems": ["one_stage"]})
    assert asked == [("first_refusal", "one_stage-one_stage"), ("first_unsound", str(BASE_MODEL))]
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_an_answer_comes_from_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "MODULES", ("colorsys",))
    monkeypatch.setenv("SAID", "here")
    forks.forkserver._forkserver._stop()  # type: ignore[attr-defined]  # one of an earlier test has other modules
    try:
        assert forks.answer(os.getpid) != os.getpid()
        assert forks.answer(os.getenv, "SAID") == "here"
        with pytest.raises(UserError, match="has ended"):
            forks.answer(os._exit, 3)
    finally:
        forks.forkserver._forkserver._stop()  # type: ignore[attr-defined]


def test_a_stage_s_own_file_is_what_is_read_counted_and_protected(tmp_path: Path) -> None:
    """That of ``stages.one_stage.data``, by the training and by what counts words and votes of it."""
    (own := tmp_path / "own.csv").write_text("utterance\nwake me up\nset an alarm\nplay jazz\n")
    (other := tmp_path / "other.csv").write_text("utterance\nbook a table\ncall mum\n")
    given = {"data.train_path": str(own), "stages.one_stage.data.train_path": str(other), "systems": ["one_stage"]}
    given |= {"reference": "embedded:test?num=60", "resampling": {"of": "votes", "encoder": BASE_MODEL}}
    experiment = load(shipped("own-data-small"), given)
    read = {step.command: step.protected for step in steps_of(experiment, tmp_path / "run") if step.protected}
    assert read == dict.fromkeys(("fit", "resample", "words"), (str(other),))
    (train,) = (file for file in inputs_of(work_of(experiment)) if file.kind == "train")
    assert (train.field, train.path) == ("data.train_path of one_stage-one_stage", str(other))
    assert read_sources(work_of(replace_reference(experiment, str(own)))).num_units == {str(other): 2}
    other.write_text("no\x00 table")
    with pytest.raises(UserError, match="other.csv"):
        read_sources(work_of(experiment))


def replace_reference(experiment: Experiment, path: str) -> Experiment:
    return dataclasses.replace(experiment, reference=path, data={**experiment.data, "train_path": None})


def test_a_model_is_a_folder_that_holds_one_or_a_name_that_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_model("encoder", BASE_MODEL)
    for name, why in ((str(tmp_path), "without config.json"), ("./gpt2", "not exist"), ("gpt2-larg", "the hub")):
        with pytest.raises(UserError, match=f"encoder is {name}, which .*{why}"):
            check_model("encoder", name)


def test_a_dry_run_opens_no_file_and_builds_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "read_sources", None)
    assert start(tmp_path / "run", {}, local=False, dry_run=True) == 0
    with pytest.raises(UserError, match="next-token-epochs"):
        start(tmp_path / "run", {"next_token_epochs": -1}, local=False, dry_run=True)
    assert cli.main(["run", str(shipped("quickstart")), str(tmp_path / "run"), "--dry-run", "--no-check"]) == 2


@pytest.mark.parametrize("system", ["one_stage", "two_stage", "topics", "evolution"])
def test_an_experiment_that_names_no_private_file_is_an_error_of_one_line(
    system: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(shipped("own-data-small")), str(tmp_path / "run"), "--check", "--systems", system]) == 2
    assert "names no data.train_path" in capsys.readouterr().err and not (tmp_path / "run").exists()
