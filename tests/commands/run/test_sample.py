"""``python cli.py sample``: more samples of a finished run, which spend nothing and are covered with the rest."""

from __future__ import annotations

import json
import os
import re
import shutil
from itertools import pairwise
from pathlib import Path
from unittest import mock

import finished_run
import numpy as np
import pytest
from finished_run import draw, step_here
from page_content import read_html
from readers import reader

import cli
from commands.run import oversampling, sample
from commands.run.execution import execute
from commands.run.experiment.experiment import load
from commands.run.steps.context import Wanted
from commands.run.steps.recipes import draw as more_steps
from commands.run.steps.recipes import seed_of
from commands.run_folder.manifest import Manifest
from commands.run_folder.systems import system
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import plan
from doppel.text.topics import Codebook

pytestmark = pytest.mark.filterwarnings("ignore")


def texts(path: Path) -> list[str]:
    return [json.loads(line)["utterance"] for line in path.read_bytes().splitlines()]


def card(run: Path) -> dict[str, dict[str, float]]:
    told = json.loads((run / "privacy_card.json").read_text())
    assert told["verified"], told["reasons"]
    return {name: budget["epsilon_by_accountant"] for name, budget in told["budgets"].items()}


@pytest.mark.parametrize("name", ["one_stage", "labels", "topics", "two_stage"])
def test_more_samples_spend_nothing_are_others_and_are_covered(run: Path, name: str) -> None:
    before, ledger = card(run), {path: path.read_bytes() for path in run.glob("ledger.jsonl*")}
    released = {path: path.read_bytes() for path in run.rglob("*.jsonl")}
    numbers = (2, 3) if name == "one_stage" else (2,)
    for number in numbers:
        assert draw(run, "--system", name, "--num", "9") == 0
        assert len(texts(run / name / "draws" / str(number) / "samples.jsonl")) == 9
    assert card(run) == before
    assert {path: path.read_bytes() for path in run.glob("ledger.jsonl*")} == ledger
    assert {path: path.read_bytes() for path in released} == released, "nothing is overwritten"
    files = [f"{name}/draws/{number}/samples.jsonl" for number in numbers]
    drawn = [texts(run / file) for file in (f"{name}/samples.jsonl", *files)]
    assert all(first[:9] != second[:9] for first, second in pairwise(drawn)), "no file repeats another"
    told = json.loads((run / "privacy_card.json").read_text())
    assert set(files) <= {covered["file"] for covered in told["covered"]}
    assert f"{12 + 9 * len(numbers)} samples" in read_html(run / "report.html").words


@pytest.mark.parametrize("name", ["one_stage/mine.jsonl", "one_stage/draws/3/samples.jsonl"])
def test_a_file_laid_there_by_hand_is_not_covered(run: Path, name: str) -> None:
    assert draw(run, "--system", "one_stage", "--num", "4") == 0
    (run / name).parent.mkdir(exist_ok=True)
    shutil.copy(run / "one_stage/draws/2/samples.jsonl", run / name)
    assert cli.main(["verify", str(run)]) == 0
    told = json.loads((run / "privacy_card.json").read_text())
    assert name in told["not_covered"] and name not in {covered["file"] for covered in told["covered"]}


def test_rows_put_into_more_samples_prevent_it_and_are_not_shown(run: Path) -> None:
    assert draw(run, "--system", "one_stage", "--num", "4") == 0
    with (run / "one_stage/draws/2/samples.jsonl").open("a") as file:
        file.write('{"utterance": "lunch with Ana at her mother\'s"}\n')
    assert cli.main(["verify", str(run)]) == 1
    assert cli.main(["report", str(run)]) == 0
    assert "her mother" not in read_html(run / "report.html").words


def test_an_interrupted_draw_goes_on_and_other_words_begin_another(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def interrupted(kind: str, mark: Path, *rest: object) -> int:
        ran.append(mark.name)
        return 130 if len(ran) == 2 else step_here(kind, mark, *rest)  # type: ignore[arg-type]

    words = ["sample", str(run), "--num", "5"]
    with mock.patch.object(execute, "run_step", interrupted), mock.patch.dict(os.environ):
        assert cli.main(words) == 130
        assert "was interrupted" in capsys.readouterr().err
        trees = (run / "two_stage/draws/2/trees.jsonl").read_bytes()
        assert not (run / "two_stage/draws/2/samples.jsonl").exists()
        assert cli.main([*words[:-1], "6"]) == 0
        assert len(texts(run / "two_stage/draws/3/samples.jsonl")) == 6
        assert cli.main(words) == 0
    assert "two_stage/draws/2 was begun: going on" in capsys.readouterr().out
    assert (run / "two_stage/draws/2/trees.jsonl").read_bytes() == trees
    assert len(texts(run / "two_stage/draws/2/samples.jsonl")) == 5 and card(run)


def test_samples_for_a_label_are_examples_that_no_share_counts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert draw(run, "--label", "weathr") == 2
    assert "did you mean 'weather'" in capsys.readouterr().err and not (run / "labels/draws").exists()
    assert draw(run, "--label", "weather", "--num", "7") == 0
    lines = [json.loads(line) for line in (run / "labels/draws/2/samples.jsonl").read_bytes().splitlines()]
    assert [line["label"] for line in lines] == ["weather"] * 7
    assert Manifest.read(run).files["labels/draws/2/samples.jsonl"].role == "examples" and card(run)
    page = read_html(run / "report.html").words
    assert "7 samples" in page and "12 samples" in page and "19 samples" not in page


def test_samples_of_a_topic_are_those_that_the_released_codebook_calls_so(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    released = [json.loads(line)["label"] for line in (run / "topics/samples.jsonl").read_bytes().splitlines()]
    ledger = (run / "ledger.jsonl").read_bytes()
    assert draw(run, "--topic", released[0], "--num", "6") == 0
    assert re.search(r"── about \d+ (s|min) of sampling, at the pace of the run's own samples", capsys.readouterr().out)
    lines = [json.loads(line) for line in (run / "topics/draws/2/samples.jsonl").read_bytes().splitlines()]
    assert lines and {line["label"] for line in lines} == {released[0]}
    assert (run / "ledger.jsonl").read_bytes() == ledger and card(run)
    assert draw(run, "--topic", "no such topic") == 2


@pytest.mark.slow
@pytest.mark.parametrize("found", [0, 1], ids=["none", "one a draw"])
def test_a_draw_is_repeated_a_few_times_and_how_many_it_found_is_told(
    run: Path, found: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = Codebook.load(run / "topics/one_stage/codebook.jsonl")
    near, other = topic.centers[[0, 1]]
    monkeypatch.setattr(
        finished_run, "embed", lambda texts, *_, **__: np.stack([near] * found + [other] * (len(texts) - found))
    )
    assert draw(run, "--topic", topic.names[0], "--num", "6") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "were asked for" in line]
    assert line.strip().startswith(f"{4 * found} of 6 ")
    draws = sorted((run / "topics/draws").iterdir())
    assert [len(texts(path / "samples.jsonl")) for path in draws] == [found] * 4 and card(run)


def test_words_that_no_sample_says_are_drawn_for_once_and_that_is_told_before(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert draw(run, "--system", "one_stage", "--words", "rental,car", "--num", "1") == 0
    told = capsys.readouterr().out
    assert "0 of the run's 12 samples say rental and car" in told and "12 in all at most" in told
    assert " 0 of 1 that were asked for" in told
    assert len([*(run / "one_stage/draws").iterdir()]) == 1 and card(run)
    assert "rental" not in read_html(run / "report.html").words


@pytest.mark.parametrize(("num_saying", "num"), [(1, 40), (50, 40), (500, 40), (1, 5000), (0, 40), (0, 3000)])
def test_draws_for_words_stop_at_ten_texts_for_each_sample_of_the_run(
    tmp_path: Path, num_saying: int, num: int
) -> None:
    lines = ["my esim"] * num_saying + ["hello"] * (1000 - num_saying)
    (tmp_path / "samples.jsonl").write_text("".join(f"{json.dumps({'utterance': line})}\n" for line in lines))
    rare = oversampling.for_words(tmp_path / "samples.jsonl", ["esim"], num)
    assert (rare.found, rare.num_samples) == (num_saying, 1000) and rare.oversample >= 1 <= rare.most_draws
    most = num * rare.oversample * rare.most_draws
    assert most <= (10_000 if num_saying else max(num, 1040))
    assert num_saying == 0 or num == 5000 or num * rare.oversample * min(4, rare.most_draws) >= min(9_000, num)


@pytest.mark.parametrize(
    ("name", "wanted", "draw", "times"),
    [
        ("one_stage", Wanted(24), 2.0, 24.0),
        ("two_stage", Wanted(24), 2.0 + 8.0, 24.0),  # trees too
        ("two_stage", Wanted(6, trees=Path("trees.jsonl")), 2.0, 6.0),
        ("topics", Wanted(6, topic="any", oversample=10), 0.8, 6.0 * 10 / 2),  # the run wrote two texts for one
    ],
    ids=["more", "with trees", "for trees", "of a topic"],
)
def test_the_time_is_told_by_the_pace_of_the_run(
    run: Path, name: str, wanted: Wanted, draw: float, times: float
) -> None:
    own = system(name)
    for path in run.glob("*/*.metrics.json"):
        told = json.loads(path.read_text())
        is_topics = path.parent.name == "topics"
        number, pace = (24, 30.0) if is_topics else (12, 1.5 if path.name.startswith("trees") else 6.0)
        told |= {"synthetic/num_samples": number, "synthetic/samples_per_second": pace}
        path.write_text(json.dumps(told))
    found = sample._seconds(load(run / "experiment.yaml"), run, own, wanted)
    assert found == pytest.approx(draw * times / len(texts(run / name / "samples.jsonl")))


def test_each_tree_of_the_run_gets_an_utterance(run: Path) -> None:
    assert draw(run, "--trees", str(run / "two_stage/trees.jsonl")) == 0
    lines = [json.loads(line) for line in (run / "two_stage/draws/2/samples.jsonl").read_bytes().splitlines()]
    given = [json.loads(line)["parse"] for line in (run / "two_stage/trees.jsonl").read_bytes().splitlines()]
    assert [line["parse"] for line in lines] == given and card(run)


def test_private_trees_are_refused_and_public_ones_are_taken_by_name(
    run: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = finished.parent / "private.jsonl"
    for words in ([], ["--public"]):
        assert draw(run, "--trees", str(private), *words) == 2
        assert str(private) in capsys.readouterr().err
    public = tmp_path / "mine.jsonl"
    public.write_text('{"parse": "(Yield (Today))"}\n{"parse": "(Yield (Tomorrow))"}\n')
    assert draw(run, "--trees", str(public)) == 2
    assert "add --public" in capsys.readouterr().err and not (run / "two_stage/draws").exists()
    other = Path(shutil.copytree(run, tmp_path / "other"))
    assert draw(run, "--trees", str(other / "two_stage/trees.jsonl")) == 2
    assert "another run has released them" in capsys.readouterr().err
    assert draw(run, "--trees", str(public), "--public") == 0 and card(run)
    told = json.loads((run / "privacy_card.json").read_text())
    assert any("mine.jsonl" in text for text in told["not_checked"]), "that no private text is in it"
    public.write_text('{"parse": "(Yield"}\n')
    assert draw(run, "--trees", str(public), "--public") == 2
    assert f"{public}:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "shares"), [("labels", "labels/labels.histogram.json"), ("topics", "topics/one_stage/marginals.json")]
)
def test_shares_are_never_released_again(run: Path, name: str, shares: str) -> None:
    ledger = (run / "ledger.jsonl").read_bytes()
    (run / shares).unlink()
    assert draw(run, "--system", name, "--num", "4") == 2
    assert (run / "ledger.jsonl").read_bytes() == ledger and not (run / shares).exists()


def test_no_step_of_a_later_draw_trains_or_reads_private_text(finished: Path) -> None:
    experiment = load(finished / "experiment.yaml")
    private = str(finished.parent / "private.jsonl")
    for name in experiment.systems:
        for step in more_steps(experiment, finished, system(name), 2, Wanted(5)):
            assert step.kind != "fit" and not step.protected and private not in str((step.reads, step.config))
            for file in step.writes:
                assert reader(file.path) == ("anybody" if file.role == "more" else "who holds the run"), file


def test_seeds_follow_from_what_is_public_and_differ(finished: Path, run: Path) -> None:
    experiment = load(finished / "experiment.yaml")
    seeds = {seed_of(experiment, system(name), draw) for name in ("one_stage", "two_stage") for draw in range(2, 9)}
    assert len(seeds) == 14 and seed_of(experiment, system("one_stage"), 2) == seed_of(
        load(run / "experiment.yaml"), system("one_stage"), 2
    )


def test_a_seed_that_would_repeat_texts_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert draw(run, "--system", "one_stage", "--num", "4", "--seed", "5") == 0
    for seed in ("0", "5"):
        assert draw(run, "--system", "one_stage", "--num", "4", "--seed", seed) == 2
        assert f"--seed {seed} has drawn" in capsys.readouterr().err


def test_what_cannot_be_sampled_says_what_to_give(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        ([str(run), "--system", "one_stge"], "did you mean one_stage"),
        ([str(run), "--system", "one_stage", "--label", "talk"], "--label is for"),
        ([str(run), "--label", "talk", "--topic", "x"], "exclude one another"),
        ([str(run / "one_stage")], f"give {run}"),
        ([str(run / "one_stage/one_stage")], f"give {run}"),
        ([str(run.parent)], f"such as {run}"),
        ([str(run / "nothing")], "there is no folder"),
    ):
        assert cli.main(["sample", *words]) == 2
        assert said in capsys.readouterr().err
    (run / "experiment.yaml").unlink()
    assert cli.main(["sample", str(run)]) == 2
    told = capsys.readouterr().err
    assert "python cli.py predict --config" in told and f"{run}-samples/" in told
    assert not list(run.glob("*/draws"))


def test_a_run_of_the_former_layout_is_read_and_not_gone_on_with(
    run: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "version": 2}))
    assert cli.main(["verify", str(run)]) == 0 and card(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for words in (["sample", str(run)], ["run", str(finished.parent / "mine.yaml"), str(run), "--local"]):
        capsys.readouterr()
        assert cli.main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "former version" in line and "another RUN_DIR" in line
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("gone", ["ledger.jsonl", "a line of it", "manifest.json"])
def test_a_run_whose_record_is_gone_is_refused_and_not_trained_anew(
    run: Path, finished: Path, gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = run / "ledger.jsonl"
    if gone == "a line of it":
        other = Ledger(run / "other.jsonl")
        spec = plan(60, 6, 1, 8.0, delta=1e-3, accountant="rdp")
        other.open(scope="one_stage", stage="one_stage", spec=spec, planned_steps=10, data_fingerprint="f00d")
        other.path.replace(ledger)
    else:
        (run / gone).unlink()
    place = run / ("manifest.json" if gone == "manifest.json" else "ledger.jsonl")
    commands = [["run", str(finished.parent / "mine.yaml"), str(run), "--local"]]
    if gone == "manifest.json":
        commands.append(["sample", str(run)])
    else:
        shutil.rmtree(run / "two_stage" / "parse_tree" / "checkpoints")
        commands.append(["fit", "--config", str(run / "configs/two_stage-parse_tree.yaml"), "--run_dir"])
        commands[-1].append(str(run / "two_stage" / "parse_tree"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for words in commands:
        capsys.readouterr()
        assert cli.main(words) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert str(place) in line and "restore" in line and "another RUN_DIR" in line and "former" not in line
    assert {path: path.read_bytes() for path in before} == before and not (run / "two_stage/draws").exists()


def test_synthetic_leads_to_the_samples_of_the_main_system_and_a_changed_copy_is_noticed(
    finished: Path, run: Path
) -> None:
    assert (finished / "synthetic.jsonl").readlink() == Path("two_stage/samples.jsonl")
    copied = run / "synthetic.jsonl"
    assert not copied.is_symlink(), "as many programs copy folders"
    assert cli.main(["verify", str(run)]) == 0
    lines = copied.read_bytes()
    copied.write_bytes(lines + lines[: lines.index(b"\n") + 1])
    assert cli.main(["verify", str(run)]) == 1
