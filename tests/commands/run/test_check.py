"""What is told before anything is spent: files that are missing, N, B, steps and σ, batches that waste ε, time."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from run_folders import go_on, mark, work_of
from source_modules import ROOT

import cli
from commands.lightning import given_models
from commands.run import launch
from commands.run.closing import next_commands
from commands.run.execution.execute import run_step
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load, save, shipped
from commands.run.preflight import estimate
from commands.run.preflight.sources import check_files, read_sources
from commands.run.preflight.training_plan import FEW_STEPS, LARGE_RATE, Readiness, readiness, trainings_of
from commands.run.steps.recipes import steps_of
from commands.run_folder import places
from commands.run_folder.ownership import has_begun
from commands.run_folder.systems import BASE_MODEL, system
from datamodules.training_rows import TrainingRows
from doppel.errors import UserError
from doppel.grammar import generate
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import plan

OWN = str(shipped("own-data-small"))


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rows of each of 50 users, with trees; the last row has five hundred words."""
    rows = [{"utterance": t.utterance, "parse": t.parse, "unit": f"u{i % 50}"} for i, t in enumerate(generate(150, 1))]
    rows[-1]["utterance"] = "word " * 500
    path = tmp_path_factory.mktemp("check") / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(users: Path, **changes: Any) -> dict[str, Any]:
    given = {"data.train_path": str(users), "data.unit": "user", "privacy.accountant": "rdp", "privacy.bands": 1}
    return {**given, "effort": 1, **changes}


def called(users: Path, run: Path, *mode: str, **changes: Any) -> int:
    words = [f"{name}={json.dumps(value)}" for name, value in settings(users, **changes).items()]
    return cli.main(["run", OWN, str(run), *mode, "--set", *words])


@pytest.mark.parametrize("mode", ["--check", "--dry-run"])
@pytest.mark.parametrize("name", ["data.train_path", "reference", "data.val_path"])
def test_a_file_that_does_not_exist_is_an_error(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, name: str
) -> None:
    assert called(users, tmp_path / "run", mode, **{name: "nowhere.csv"}) == 2
    told = capsys.readouterr()
    assert name in told.err and "nowhere.csv" in told.err and "ready" not in told.out


def test_a_label_that_leaves_no_room_for_text_is_known_before(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text(f"short\n{'and then we go on ' * 60}\n")
    (public := tmp_path / "public.txt").write_text("where is my parcel\n")
    changes = {"systems": ["labels"], "labels": str(labels), "reference": str(public), "candidates": 1}
    assert called(users, tmp_path / "run", "--check", **changes) == 2
    assert "labels.txt: the label 'and then we go on" in (told := capsys.readouterr().err) and "no room" in told
    begun = "commands.run.preflight.preflight.read_sources"  # what is paid goes on as it is
    monkeypatch.setattr(begun, lambda plan: read_sources(replace(plan, is_anew=False)))
    called(users, tmp_path / "run", "--check", **changes)
    assert "no room" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("system_name", "listed", "more", "told"),
    [
        (
            "labels",
            "home\ncar\n",
            {"label_words": {"home": "a house", "cars": "a vehicle"}},
            "'cars', which no label is (did you mean 'car'?)",
        ),
        ("labels", "home\ncar\n", {"label_words": {"home": "a house", "car": "a vehicle"}}, ""),
        ("labels", "1\n2\n", {}, "has a label of this list"),
        ("labels", "home\ncar\n", {"data.columns.label": ["label", "stars"]}, 'such as "Category: Food | Stars: 5"'),
        ("labels", "Label: home | Stars: 1\n", {"data.columns.label": ["label", "stars"]}, ""),
        ("attributes", "label: [home, car]\n", {"label_words": {"boat": "a ship"}}, "'boat', which no label is"),
    ],
)
def test_labels_and_words_that_fit_nothing_are_known_before(
    system_name: str,
    listed: str,
    more: dict[str, Any],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would cost all of ε: what is read of the private rows is whether one has a label of the list."""
    rows = [{"text": f"claim number {n}", "label": "home" if n % 2 else "boat", "stars": "1"} for n in range(60)]
    private, public, labels = (tmp_path / name for name in ("private.jsonl", "public.txt", "labels.yaml"))
    private.write_text("".join(json.dumps(row) + "\n" for row in rows))
    public.write_text("where is my parcel\n")
    labels.write_text(listed)
    given = {"attributes.schema" if system_name == "attributes" else "labels": str(labels), **more}
    given |= {"systems": [system_name], "reference": str(public), "data.unit": "utterance"}
    given["candidates"] = 8 if "label_words" in more else 1
    monkeypatch.setattr(given_models, "find_spec", lambda package: object())
    assert (called(private, tmp_path / "run", "--check", **given) != 0) is bool(told)
    error = capsys.readouterr().err
    assert told in error and "None" not in error


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("labels", {"systems": ["labels"]}),
        ("topics.texts", {"systems": ["topics"]}),
        ("attributes.schema", {"systems": ["attributes"]}),
        ("evolution.examples", {"systems": ["evolution"]}),
        ("evolution.rows", {"systems": ["evolution"]}),
        ("redact.words", {}),
        ("redact.safe", {"redact.level": 0.1, "redact.sensitive": __file__}),
        ("data.test_path", {}),
        ("adaptation.test", {"adaptation.train": __file__, "adaptation.missing": "Find"}),
    ],
)
def test_every_file_of_the_table_has_to_be_there(users: Path, name: str, changes: dict[str, Any]) -> None:
    experiment = load(shipped("own-data-small"), settings(users, **changes, **{name: "/nowhere/file.csv"}))
    with pytest.raises(UserError, match=f"{name} is /nowhere/file.csv, which does not exist"):
        check_files(work_of(experiment))


def test_what_is_checked_is_what_is_trained_whatever_folder_it_is_called_from(
    users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namesake in the checkout, where steps run, is another file; the checkout's own models are found."""
    place = tmp_path / "checkout"
    for folder in (place, tmp_path / "mine"):
        (folder / "models" / "base").mkdir(parents=True)
        for name in ("mine.jsonl", "public.jsonl", "words.csv"):
            (folder / name).write_bytes(users.read_bytes())
    (tmp_path / "home.jsonl").write_bytes(users.read_bytes())
    (place / "only_here.csv").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(places, "PLACE", place)
    monkeypatch.chdir(tmp_path / "mine")
    changes = {"data.train_path": "mine.jsonl", "reference": "~/home.jsonl", "sampling.grammar": ["only_here.csv"]}
    experiment = load(shipped("own-data-small"), {**changes, "redact": {"words": "words.csv"}, "overlays": ["hf:none"]})
    mine = {"train_path": str(tmp_path / "mine" / "mine.jsonl")}
    assert experiment.data["train_path"] == mine["train_path"]
    assert experiment.reference == str(tmp_path / "home.jsonl")
    assert experiment.redact is not None and experiment.redact.words == str(tmp_path / "mine" / "words.csv")
    assert experiment.sampling["grammar"] == [str(place / "only_here.csv")]
    steps = steps_of(replace(experiment, overlays=[]), tmp_path / "run")
    fits = [step.config["data"]["init_args"] for step in steps if step.kind == "fit" and step.config is not None]
    assert fits and all(data["train_path"] == mine["train_path"] for data in fits)
    monkeypatch.chdir(tmp_path)  # whoever goes on with it may stand elsewhere
    save(experiment, tmp_path / "experiment.yaml")
    assert load(tmp_path / "experiment.yaml") == replace(experiment, name="own-data-small")


def test_sampling_may_change_until_a_system_has_samples_and_logging_always(tmp_path: Path) -> None:
    given = {"data.train_path": "a.csv", "data.unit": "user"}
    begun = load(shipped("own-data-small"), given)
    more = {"sampling.max_new_tokens": 40, "num_samples": 7, "trainer.logger": False}
    other, logs = (load(shipped("own-data-small"), {**given, **own}) for own in (more, {"trainer.logger": False}))
    mark(tmp_path, "two_stage-parse_tree", "one_stage-one_stage")
    go_on(tmp_path, begun, other)
    (tmp_path / "one_stage").mkdir()
    (tmp_path / "one_stage/samples.jsonl").touch()
    go_on(tmp_path, begun, load(shipped("own-data-small"), {**given, "stages.parse_tree.sampling.max_new_tokens": 400}))
    (tmp_path / "two_stage").mkdir()
    (tmp_path / "two_stage/samples.jsonl").touch()
    go_on(tmp_path, begun, logs)
    with pytest.raises(UserError, match="python cli.py sample"):
        go_on(tmp_path, begun, other)
    with pytest.raises(UserError, match=r"data\.(unit|batch_size)"):
        go_on(tmp_path, begun, load(shipped("own-data-small"), {"data.train_path": "a.csv", "data.batch_size": 9}))


def test_a_training_that_failed_twice_alike_is_not_paid_a_third_time(tmp_path: Path) -> None:
    config, ledger, mark = tmp_path / "fit.yaml", tmp_path / "ledger.jsonl", tmp_path / ".done" / "fit"
    config.write_text("a: 1\n")
    (tmp_path / "fit").mkdir()
    program = "import sys; p = sys.argv[1] and open(sys.argv[1], 'a').write('spent\\n'); sys.exit(1)"
    words = ["--run_dir", str(tmp_path / "fit"), "--config", str(config)]

    def start(paid: Path | str = ledger) -> int:
        return run_step("fit", mark, [sys.executable, "-c", program, str(paid), *words])

    assert [start(""), start(""), start(""), start(), start()] == [1] * 5  # what costs nothing may be tried again
    with pytest.raises(UserError, match=r"failed twice.*delete .*\.failed"):
        start()
    assert ledger.read_text() == "spent\n" * 2
    config.write_text("a: 2\n")
    assert start() == 1 and ledger.read_text() == "spent\n" * 3
    assert start() == 1
    (tmp_path / "fit" / "checkpoints").mkdir()
    (tmp_path / "fit" / "checkpoints" / "last.ckpt").touch()  # it came further
    assert start() == 1 and ledger.read_text() == "spent\n" * 5
    assert not has_begun(tmp_path / "other") and not any((tmp_path).glob(".done/*"))


@pytest.mark.parametrize("name", ["../../../x", "a/b", "", ".", "a\nb"])
def test_a_system_cannot_leave_the_run_folder(name: str) -> None:
    with pytest.raises(UserError, match="a system is called"):
        load(shipped("own-data-small"), {"systems": [name], "variants": {name: {}}})


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_a_run_that_is_hopeless_is_called_so_by_check_and_plan_alike_and_asks_before_it_spends(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (1.0, 3.0, None))
    base = str(Path(__file__).parents[3] / "models" / "base")
    changes = {"systems": ["one_stage"], "epochs.one_stage": 3, "model.base_model": base}
    assert called(users, tmp_path / "run", "--check", **changes) == 0
    told = capsys.readouterr().out
    call = ["--num-units", "50", "--epochs", "3", "--target-epsilon", "8", "--base", base, "--accountant", "rdp"]
    assert cli.main(["plan", *call]) == 0
    verdict, then = capsys.readouterr().out.strip().splitlines()[-2:]
    assert "--check" in then and told.endswith("next: the same command without --check\n")
    assert verdict.startswith("The noise is hopeless") and verdict in told
    assert "hopeless: one_stage" in told and "ready" not in told
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert called(users, tmp_path / "run", "--local", **changes) == 2
    assert "Spend ε on one_stage" in (said := capsys.readouterr()).out and "nothing was spent" in said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("num_units", "base", "is_told"), [(4_999, BASE_MODEL, True), (5_000, BASE_MODEL, False), (4_999, "other", False)]
)
def test_with_few_units_a_larger_base_is_named(num_units: int, base: str, is_told: bool) -> None:
    """Where readers found its samples better, by the sheet in benchmarks/results."""
    spec = plan(num_units, 100, [1.0], 3.0)
    note = Readiness("topics", "user", num_units, 100, 60, spec, base=base).note
    assert (note is not None) == is_told
    folder = ROOT / "benchmarks" / "results"
    sheets = pd.concat([pd.read_csv(folder / f"{name}.csv") for name in ("usable-sheet", "usable-sheets-again")])
    sheets["writer"] = sheets["writer"].str.removesuffix(", N = 3,043")  # the first sheet is all of so many
    yes = (sheets[["reader_1", "reader_2"]] == "yes").groupby([sheets["sheet"].fillna(1), sheets["writer"]]).sum()
    found = yes.stack().groupby("writer").agg(["min", "max"])
    if note is not None:
        larger, own = found.loc["one_stage, SmolLM2-135M, top_p .9"], found.loc["one_stage, shipped base"]
        assert f"{larger['min']} to {larger['max']} of SmolLM2-135M were" in note
        assert f"{own['min']} to {own['max']} of this base" in note


@pytest.mark.filterwarnings("ignore:delta")
def test_a_check_ends_with_what_each_system_will_do(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (170.0, 510.0, None))
    assert called(users, tmp_path / "run", "--check", "--local", **{"epochs.one_stage": 2}) == 0
    *_, one, often, two, other, _ = capsys.readouterr().out.splitlines()
    sigma = plan(50, 2, 2, 8.0, accountant="rdp").noise_multiplier
    assert one.startswith("hopeless: one_stage, 50 users, B 2, 50 steps, σ ")
    assert one.endswith(
        "3 to 9 minutes of training on this machine (by public rows, as much again for each further row a user has)"
    )
    assert float(one.split("σ ")[1].split(",")[0]) == pytest.approx(sigma, abs=5e-4)
    assert two.startswith("hopeless: two_stage, 50 users, B 2, 75 steps, σ ")
    told = "   a checkpoint is kept every 2 steps at least: a crash costs at most so many of the {}, which stay paid"
    assert [often, other] == [told.format(50), told.format(75)], "of stages of 25 and of 50 steps"
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:delta")
def test_a_ledger_that_cannot_be_written_to_is_told_before_a_step_needs_it(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (1.0, 3.0, None))
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "ledger.jsonl", tmp_path):  # below a file, and a folder
        more = {"systems": ["one_stage"], "privacy.ledger_path": str(path)}
        assert called(users, tmp_path / "run", "--check", **more) == 2
        told = capsys.readouterr().err
        assert f"{path}: the ledger cannot be written to" in told and "privacy.ledger_path" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta")
def test_what_all_systems_and_all_runs_on_the_same_data_come_to_is_told_and_limited_before_it_is_paid(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (1.0, 3.0, None))
    run = tmp_path / "run"
    assert called(users, run, "--check") == 0
    alone = re.search(r"together, one_stage, two_stage come to ε = ([\d.]+) at δ", capsys.readouterr().out)
    assert alone is not None and float(alone[1]) > 8
    limits = {"systems": ["one_stage"], "privacy.total_epsilon": 8.5}
    assert called(users, run, "--check", **limits) == 0 and "together" not in capsys.readouterr().out
    for mode in ("--check", "--local"):
        assert called(users, run, mode, **{"privacy.total_epsilon": 8.5}) == 2
        told = capsys.readouterr()
        assert "past privacy.total_epsilon = 8.5" in told.err and "ready" not in told.out
    assert not run.exists()

    data = TrainingRows.from_config({"train_path": str(users), "unit": "user"}).fingerprint
    ledger, spec = Ledger(tmp_path / "earlier" / "ledger.jsonl"), plan(50, 2, 1, 8.0, accountant="rdp", unit="user")
    ledger.spend(ledger.open(scope="s", stage="fit", spec=spec, planned_steps=25, data_fingerprint=data))
    assert called(users, run, "--check", systems=["one_stage"]) == 0
    told = capsys.readouterr().out
    both = re.search(r"together, one_stage and 1 other run on these data come to ε = ([\d.]+) at δ", told)
    assert both is not None and float(both[1]) > 8.5
    assert called(users, run, "--check", **limits) == 2
    assert "With 1 other run on these data: " in (told := capsys.readouterr().err) and "earlier/s" in told
    before = load(shipped("own-data-small"), {"data.train_path": "a.csv", "data.unit": "user"})
    go_on(run, before, replace(before, privacy={**before.privacy, "total_epsilon": 12.0}))


def test_what_voids_the_guarantee_and_what_is_protected_by_itself_is_told(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (1.0, 3.0, None))
    one = {"systems": ["one_stage"]}
    assert called(users, tmp_path / "run", "--check", **one, **{"data.sampling_seed": 3, "privacy.seed": 4}) == 0
    told = capsys.readouterr().out
    assert all(f"{name}, and whoever reads it" in told for name in ("data.sampling_seed is 3", "privacy.seed is 4"))
    rows = tmp_path / "rows.csv"
    rows.write_text("message,requester_id\n" + "".join(f"show event {n},{n // 3}\n" for n in range(90)))
    given = {"data.columns": {"text": "message"}, **one}
    for unit, is_told in ((None, True), ("utterance", False)):
        assert called(rows, tmp_path / "run", "--check", **given, **{"data.unit": unit}) == 0
        assert ("each row is protected by itself; if a column says whose" in capsys.readouterr().out) == is_told
    texts = tmp_path / "rows.txt"
    texts.write_text("".join(f"show event {n}\n" for n in range(90)))
    assert called(texts, tmp_path / "run", "--check", **one, **{"data.unit": None}) == 0
    assert "each row is protected by itself" not in capsys.readouterr().out, "a text has no columns"


def test_a_run_that_read_other_columns_of_the_file_counts(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (1.0, 3.0, None))
    earlier = {"train_path": str(users), "unit": "user", "columns": {"label": "kind"}, "keep_share": 0.5}
    rows, spec = TrainingRows.from_config(earlier), plan(50, 2, 1, 8.0, accountant="rdp", unit="user")
    ledger = Ledger(tmp_path / "earlier" / "ledger.jsonl")
    terms = {"spec": spec, "planned_steps": 25, "data_fingerprint": rows.fingerprint, "data_file": rows.data_file}
    ledger.spend(ledger.open(scope="s", stage="fit", **terms))  # type: ignore[arg-type]
    limits = {"systems": ["one_stage"], "privacy.total_epsilon": 8.5}
    assert called(users, tmp_path / "run", "--check", **limits) == 2
    assert "With 1 other run on these data: " in capsys.readouterr().err


def test_a_batch_that_wastes_the_budget_is_told_and_the_usual_one_is_not(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (1.0, 3.0, None))
    assert called(users, tmp_path / "run", "--check", **{"data.batch_size": 40, "systems": ["one_stage"]}) == 0
    rate, few, noise, ready = (
        line for line in capsys.readouterr().out.splitlines() if "one_stage" in line and "note:" not in line
    )
    assert "data.batch_size" in rate and "4 steps" in few and "hopeless" in noise and "B 40, 4 steps" in ready
    assert called(users, tmp_path / "run", "--check", systems=["one_stage"]) == 0
    assert "data.batch_size" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("batch_size", "steps", "number"),
    [(25, 100, 0), (26, 100, 1), (20, FEW_STEPS, 0), (20, FEW_STEPS - 1, 1), (90, 2, 2)],
)
def test_what_counts_as_a_waste(batch_size: int, steps: int, number: int) -> None:
    assert LARGE_RATE == 0.25
    assert len(Readiness("one_stage", "user", 100, batch_size, steps).warnings) == number


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta")
@pytest.mark.parametrize("batch_size", [None, 5])
def test_effort_multiplies_the_batch_at_the_same_number_of_steps(
    users: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int | None,
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (1.0, 3.0, None))
    changes = {"systems": ["two_stage"], "data.batch_size": batch_size}
    usual, more = (
        readiness(experiment, system("two_stage"), steps_of(experiment, tmp_path), {str(users): 50}, plans=True)
        for experiment in (
            load(shipped("own-data-small"), settings(users, **changes, effort=effort)) for effort in (1, 4)
        )
    )
    assert usual is not None and more is not None and usual.noise is not None and more.noise is not None
    assert (more.steps, more.batch_size) == (usual.steps, 4 * usual.batch_size) and more.noise < usual.noise
    assert called(users, tmp_path / "run", "--check", **changes, effort=4) == 0
    assert "effort=1 takes 1/4 of the time" in capsys.readouterr().out
    assert called(users, tmp_path / "run", "--check", **{**changes, "data.batch_size": 20}, effort=4) == 2
    assert (
        "data.batch_size=20 times effort=4 takes 80 units a step, but two_stage has 50: give data.batch_size=12"
        in capsys.readouterr().err
    )
    with pytest.raises(UserError, match="effort is 21: give 1 to 20"):
        load(shipped("own-data-small"), {"effort": 21})


@pytest.mark.parametrize("truncate", [False, True])
def test_a_row_that_is_too_long_is_named_and_none_is_counted(
    users: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, truncate: bool
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (1.0, 3.0, None))
    (public := tmp_path / "public.txt").write_text("word " * 2000)  # is told of likewise
    more = {"data.truncate": truncate, "systems": ["one_stage"], "reference": str(public)}
    assert called(users, tmp_path / "run", "--check", **more) == 0
    note, other = (line for line in capsys.readouterr().out.splitlines() if "max_length" in line)
    assert ("data.truncate=true" in other) is not truncate
    assert f"{users}:150 is longer" in note and "rows)" not in note
    assert ("teach nothing" in note) is not truncate


@pytest.mark.filterwarnings("ignore:delta")
@pytest.mark.parametrize(
    ("system_name", "changes", "told"),
    [
        (
            "topics",
            {},
            r"nothing shows .*=10; topics.noise_multiplier=2 shows what 22.5% ask for, for 1\.\d% more noise",
        ),
        (
            "topics",
            {"epsilon": 1.0},
            r"nothing shows above the noise of the shares, topics.noise_multiplier=10$",
        ),
        ("topics", {"topics.num_topics": 4}, r"only what 55% ask for"),
        ("topics", {"topics.noise_multiplier": 0.4}, None),
        ("labels", {}, r"only what 39% ask for .*; stages.labels.privacy.histogram_noise_multiplier=2 shows"),
        ("one_stage", {}, None),
    ],
    ids=["few users", "no ε for it", "topics", "less noise", "labels", "no shares"],
)
def test_shares_that_will_drown_in_their_noise_are_told_with_the_noise_to_give(
    users: Path, tmp_path: Path, system_name: str, changes: dict[str, Any], told: str | None
) -> None:
    (tmp_path / "labels.txt").write_text("# all\na\nb\n")
    changes = {"systems": [system_name], "labels": str(tmp_path / "labels.txt"), "epochs.one_stage": 3, **changes}
    changes |= {"reference": "embedded:test?num=50", "topics.encoder": str(tmp_path)}
    experiment = load(shipped("own-data-small"), settings(users, **changes))
    steps = steps_of(experiment, tmp_path)
    ready = readiness(experiment, system(system_name), steps, {str(users): 50}, plans=False)
    assert ready is not None and (ready.below_noise is None) is (told is None)
    if told is not None:
        assert (
            re.match(f"{system_name}: of 50 users, {told}", str(ready.below_noise))
            and ready.below_noise in ready.warnings
        )


@pytest.mark.filterwarnings("ignore:delta")
@pytest.mark.parametrize("name", ["one_stage", "two_stage"])
def test_votes_that_will_drown_are_told_with_the_clusters_to_give(users: Path, tmp_path: Path, name: str) -> None:
    given = settings(users, systems=[name], **{"resampling.of": "votes", "reference": "embedded:test?num=50"})
    for changes, told in (({}, "give resampling.clusters=5, or a smaller"), ({"resampling.clusters": 5}, None)):
        experiment = load(shipped("own-data-small"), {**given, **changes})
        ready = readiness(experiment, system(name), steps_of(experiment, tmp_path), {str(users): 50}, plans=False)
        assert ready is not None and (ready.below_noise is None) is (told is None)
        if told is not None:
            assert f"{name}: votes are below the noise: 0.5 a cluster" in str(ready.below_noise) and told in str(
                ready.below_noise
            )


@pytest.mark.parametrize("name", ["one_stage", "topics", "labels", "two_stage"])
def test_what_comes_next_names_the_last_model_of_every_kind_of_system(users: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "labels.txt").write_text("a\nb\n")
    given = settings(users, systems=[name], labels=str(tmp_path / "labels.txt"), reference="embedded:test?num=50")
    run = tmp_path / "run"
    plan = launch.begin(load(shipped("own-data-small"), given), run, load_site(None, {}))
    model = {"two_stage": "two_stage/parse2utterance", "labels": "labels/labels"}.get(name, f"{name}/one_stage")
    assert [words[0] for words in next_commands(plan)] == ["verify", "sample", "export"]
    assert next_commands(plan)[-1][1:] == [str(run / model), str(tmp_path / "run-released" / model)]


def test_topics_of_the_reference_are_shown_before_epsilon_is_spent(
    users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (public := tmp_path / "public.txt").write_text("wake me up\nset an alarm\n" * 30 + "order a pizza\n" * 30)
    axes = np.eye(2, dtype=np.float32)
    monkeypatch.setattr(estimate, "embed", lambda texts, _: axes[[int("pizza" in text) for text in texts]])
    changes = {"systems": ["topics"], "reference": str(public), "topics.num_topics": 2}
    plan = launch.RunPlan(
        load(shipped("own-data-small"), settings(users, **changes)),
        tmp_path / "run",
        [],
        True,
        frozenset(),
        {},
    )
    estimate.tell_ready(plan, {}, True)
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "topics of " in line)
    assert re.search("alarm|wake", told) and "pizza" in told and "such samples, which are not written yet" in told


def test_units_are_counted_as_the_training_selects_them(users: Path, tmp_path: Path) -> None:
    experiment = load(shipped("own-data-small"), settings(users, **{"data.keep_share": 0.5}))
    steps = steps_of(experiment, tmp_path)
    found = readiness(experiment, system("one_stage"), steps, {str(users): 50}, plans=False)
    assert found is not None and 10 < found.num_units < 40


@pytest.mark.parametrize(("system_name", "stages"), [("one_stage", 1), ("labels", 1), ("two_stage", 2)])
def test_the_range_of_a_training_grows_with_its_weights_tokens_and_units(
    users: Path, tmp_path: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch, system_name: str, stages: int
) -> None:
    """By public rows alone: the private file is not there to be opened, and a label that no public row has is none."""
    monkeypatch.setattr(estimate, "_rate", lambda *_: 1e9)
    labels = {"systems": ["labels"], "labels": __file__} if system_name == "labels" else {}

    def seconds(num_units: int, **changes: Any) -> tuple[float, float, int]:
        """The range, and how many weights are trained."""
        given = settings(tmp_path / "private.jsonl", **{"model.base_model": tiny_model, **labels, **changes})
        experiment = load(shipped("own-data-small"), given)
        trainings = trainings_of(system(system_name), steps_of(experiment, tmp_path))
        assert len(trainings) == stages
        *both, held = estimate.forecast(num_units, trainings, experiment)
        assert held is not None and held.peak > held.resident > 0
        return *both, held.num_trained

    short = {"reference": str(tmp_path / "short.txt")} if system_name == "one_stage" else {}
    (tmp_path / "short.txt").write_text("one\ntwo\n")
    least, most, num_trained = seconds(100, reference=str(users))
    assert 0 < least < most and num_trained > 0
    assert seconds(300, reference=str(users))[:2] == pytest.approx((3 * least, 3 * most))
    twice = {f"epochs.{name}": 6 if stages == 1 else 2 for name in ("one_stage", "parse_tree")}
    assert seconds(100, reference=str(users), **twice)[1] > most
    adapted = seconds(100, reference=str(users), **{"model.lora": {"rank": 1, "alpha": 2.0}})
    assert adapted[2] < num_trained and 0.6 * most < adapted[1] < most
    if short:
        assert seconds(100, **short)[1] < most


def test_operations_a_second_are_those_of_the_product() -> None:
    """They are floating-point operations and not products or rows: millions of times as many, on a busy machine too."""
    assert all(estimate._rate(torch.randn(rows, 64), "32-true") > 1e7 for rows in (256, 4096))


@pytest.mark.parametrize(
    ("least", "most", "told"),
    [
        (5, 50, "a minute at most"),
        (50, 130, "1 to 3 minutes"),
        (480, 1200, "8 to 20 minutes"),
        (5e3, 9e3, "1 to 3 hours"),
    ],
)
def test_a_range_is_told_in_minutes_or_hours(least: float, most: float, told: str) -> None:
    assert estimate._range(least, most) == told


def test_a_check_may_say_where_the_run_is_to_be(
    users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where there is SLURM: the same command with one word more or less."""
    seen: list[bool] = []
    monkeypatch.setattr(launch, "preflight", lambda plan, mode, is_here, call: seen.append(is_here) or {})
    monkeypatch.setattr(launch.shutil, "which", lambda name: f"/usr/bin/{name}")
    for mode in (["--check"], ["--check", "--local"], ["--check", "--submit"]):
        assert called(users, tmp_path / "run", *mode) == 0
    assert seen == [False, True, False]
    assert called(users, tmp_path / "run", "--check", "--dry-run") == 2
    assert "exclude one another" in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_the_time_is_said_to_be_of_this_machine_where_jobs_run_on_others() -> None:
    from commands.run.preflight import estimate

    assert estimate._machine(is_here=True) == "this machine"
    told = estimate._machine(is_here=False)
    assert re.fullmatch(r"this machine, \S+ with .+, and not on the nodes of the jobs", told)
