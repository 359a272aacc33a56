"""`evolve`: paid before it is counted, killed anywhere and gone on with, one budget with what is beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant

import cli
from commands.privacy import evolve, vote_releases
from doppel.evolution import budget
from doppel.evolution.generators import answers
from doppel.evolution.votes import NearestNeighbourHistogram, NoisyVotes
from doppel.grammar import generate
from doppel.privacy import ledger as ledger_module
from doppel.privacy.accounting import mu_of
from doppel.privacy.ledger import Ledger
from tests.evolution.openai_server import serve
from tests.evolving import SECRET, call, everything, released, samples, spent, words_alone, write_private, write_rows
from tests.killed import Killed, kill_at

#: So that two runs can be compared: the noise of each round is always the same.
FIXED = {"seed": 5}


@pytest.fixture(autouse=True)
def own_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOPPEL_LEDGER", raising=False)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return write_private(tmp_path)


def mechanism(folder: Path, stage: str = "votes") -> dict[str, Any]:
    lines = map(json.loads, (folder / "ledger.jsonl").read_text().splitlines())
    return [line for line in lines if line["type"] == "mechanism" and line["stage"] == stage][-1]


@pytest.mark.slow
def test_a_generator_is_known_before_anything_is_paid(
    tmp_path: Path, private: Path, capsys: pytest.CaptureFixture
) -> None:
    """One text, also where numbers of labels are paid for first; and texts that are unlike people's are told."""
    (tmp_path / "labels.txt").write_text("calendar\nweather\npeople\n")
    labels = ("--labels", str(tmp_path / "labels.txt"))
    sizes = {"per_label": True, "privacy": {"histogram_noise_multiplier": 3.0}}
    public = tmp_path / "public.txt"
    public.write_text("".join(f"{turn.utterance}\n" for turn in generate(200, 9)))
    web = [f"{i}-bUf_nUlL(creaton_hAsh{i}::pfn_{i}<%$>" for i in range(400)]
    with serve(lambda number, words: "No comment!") as server:
        assert call(tmp_path, private, *labels, generator=server.url, **sizes) == 2
        assert 'texts of the generator are "No comment!"' in capsys.readouterr().err
        assert spent(tmp_path) == spent(tmp_path, "sizes") == 0
    for name, texts in (("web", web), ("people", [turn.utterance for turn in generate(400, 4)])):
        (folder := tmp_path / name).mkdir()
        with serve(lambda number, words, texts=texts: texts[number % 400]) as server:  # type: ignore[misc]
            assert call(folder, private, "--reference", str(public), generator=server.url) == 0
        told = capsys.readouterr().out
        assert ("read unlike what people wrote" in told) == (name == "web")
        assert all("\n- " in words for words in server.asked[:12])  # lines of the reference, as no examples are named
    with serve(lambda number, words: "fine") as server:
        assert call(tmp_path, private, "--reference", str(private), generator=server.url) == 2
        assert "--reference is" in capsys.readouterr().err and server.bodies == []


@pytest.mark.parametrize("hidden", ["text", "utterance", "message"])
def test_a_generator_is_shown_the_column_of_examples_that_was_compared(
    hidden: str, tmp_path: Path, private: Path, capsys: pytest.CaptureFixture
) -> None:
    """Of two columns of texts the one that stands in the private file is not shown, or the file is refused."""
    rows = [json.loads(line) for line in private.read_text().splitlines()]
    texts = [row.pop("utterance") for row in rows]
    private.write_text(
        "".join(json.dumps(row | {"message": text}) + "\n" for row, text in zip(rows, texts, strict=True))
    )
    public = [turn.utterance for turn in generate(len(texts), 9)]
    shown = "text" if hidden == "message" else "message"
    both = [{hidden: text, shown: other} for text, other in zip(texts, public, strict=True)]
    examples = tmp_path / "examples.jsonl"
    examples.write_text("".join(json.dumps(row) + "\n" for row in both))
    data = {"columns": {"text": "message"}}
    with serve(lambda number, words: f"show my events {number}") as server:
        code = call(tmp_path, private, generator=server.url, data=data, examples=str(examples))
    assert (code == 0) == (hidden != "message")
    if hidden == "message":
        assert "evolution.examples is" in capsys.readouterr().err and server.bodies == []
    else:
        assert server.asked and not any(SECRET in words for words in server.asked)
        assert any(text in server.asked[0] for text in public)


def test_examples_without_a_text_are_refused_before_a_budget_is_opened(
    tmp_path: Path, private: Path, capsys: pytest.CaptureFixture
) -> None:
    examples = tmp_path / "examples.csv"
    for content in ("said,label\nshow my events,calendar\n", "utterance,label\nshow my events,calendar\n,calendar\n"):
        examples.write_text(content)
        assert call(tmp_path, private, examples=str(examples)) == 2
        assert "no 'utterance'" in capsys.readouterr().err and not (tmp_path / "ledger.jsonl").exists()


def test_samples_and_what_they_cost(tmp_path: Path, private: Path, capsys: pytest.CaptureFixture) -> None:
    assert call(tmp_path, private) == 0
    assert len(samples(tmp_path)) == 12 and spent(tmp_path) == 2
    told = json.loads((tmp_path / "evolution/samples.jsonl.evolution.json").read_text())
    assert (told["num_rounds"], told["num_lost_rounds"], told["num_samples"]) == (2, 0, 12)
    record = mechanism(tmp_path)
    assert (record["kind"], record["unit"], record["num_units"], record["sample_rate"]) == (
        "gaussian_votes",
        "user",
        40,
        1,
    )
    sigma = record["noise_multiplier"]
    direct = get_epsilon_gaussian(sigma / 2**0.5, 1e-5)
    accountant = PLDAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(sigma), spent(tmp_path)))
    stated = Ledger(tmp_path / "ledger.jsonl").epsilon("evolution")
    assert stated == pytest.approx(8.0, rel=1e-3) == accountant.get_epsilon(1e-5) and stated <= 8.0
    assert direct == pytest.approx(8.0, rel=1e-4)
    assert "12 samples after 2 rounds (noise of standard deviation" in capsys.readouterr().out
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.rglob("*") if path.name not in ("private.jsonl",))


def test_the_same_command_again_spends_nothing_and_writes_the_same(tmp_path: Path, private: Path) -> None:
    assert call(tmp_path, private) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json*")}
    assert call(tmp_path, private) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json*")} == before and spent(tmp_path) == 2


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
@pytest.mark.parametrize(
    "where",
    [
        lambda patch: kill_at(patch, vote_releases.VoteReleases, "count", 1),
        lambda patch: kill_at(patch, vote_releases.VoteReleases, "count", 1, after=True),
        lambda patch: kill_at(patch, vote_releases.VoteReleases, "count", 2),
        lambda patch: kill_at(patch, ledger_module.Ledger, "spend", 2),
        lambda patch: kill_at(patch, ledger_module.Ledger, "spend", 1, after=True),
        lambda patch: kill_at(patch, ledger_module.Ledger, "spend", 2, after=True),
        lambda patch: kill_at(patch, NearestNeighbourHistogram, "sums", 2, after=True),
        lambda patch: kill_at(patch, NoisyVotes, "draw", 1, after=True),
        lambda patch: kill_at(patch, ledger_module.Ledger, "release", 1),
        lambda patch: kill_at(patch, ledger_module.Ledger, "release", 1, after=True),
        lambda patch: kill_at(patch, evolve, "write_json", 1),
        lambda patch: kill_at(patch, evolve, "whole_file", 1),
    ],
)
def test_killed_anywhere_the_budget_is_the_same_and_no_round_is_drawn_twice(
    tmp_path: Path, where: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """And the population is the same, whether the round was spent or not when the kill came."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir(), cut.mkdir()
    assert call(whole, write_private(whole), privacy=FIXED) == 0
    with pytest.MonkeyPatch.context() as patch:
        where(patch)
        with pytest.raises(Killed):
            call(cut, write_private(cut), privacy=FIXED)
    assert call(cut, cut / "private.jsonl", privacy=FIXED) == 0
    assert spent(cut) == 2 and mechanism(cut)["planned_steps"] == 2
    assert [record["round"] for record in released(cut)] == [1, 2]
    assert samples(cut) == samples(whole)
    assert call(cut, cut / "private.jsonl", privacy=FIXED) == 0 and spent(cut) == 2


def test_a_grammar_that_was_tried_is_another_one_than_that_which_evolves(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It varies a text by what it wrote first, and a start that goes on tries nothing: the two must write alike."""
    rounds, tried, used = evolve.run_rounds, list[object](), list[object]()
    monkeypatch.setattr(evolve, "first_texts", lambda plan, generator, *_: tried.append(generator))
    monkeypatch.setattr(evolve, "run_rounds", lambda plan, own, *more: used.append(own) or rounds(plan, own, *more))
    for _ in range(2):
        assert call(tmp_path, private) == 0
    assert len(tried) == 1 and len(used) == 2 and tried[0] not in used


def test_votes_are_nowhere_before_the_ledger_pays(tmp_path: Path, private: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, ledger_module.Ledger, "spend", 1)
        with pytest.raises(Killed):
            call(tmp_path, private)
    private_lines = private.read_text()
    private.unlink()
    assert "sums" not in everything(tmp_path) and spent(tmp_path) == 0
    private.write_text(private_lines)
    assert call(tmp_path, private) == 0 and spent(tmp_path) == 2 == len(released(tmp_path))


def test_a_line_of_the_ledger_that_a_crash_tore_is_a_lost_round(tmp_path: Path, private: Path) -> None:
    """The step counts, and what it released is gone."""
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, ledger_module.Ledger, "spend", 1, after=True)
        with pytest.raises(Killed):
            call(tmp_path, private)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-90])
    assert call(tmp_path, private) == 0
    told = json.loads((tmp_path / "evolution/samples.jsonl.evolution.json").read_text())
    assert (told["num_rounds"], told["num_lost_rounds"]) == (1, 1) and len(samples(tmp_path)) == 12


@pytest.mark.slow
def test_a_killed_process_asks_no_question_twice(tmp_path: Path, private: Path) -> None:
    """A real kill of a real process, while a real server answers."""
    process: list[subprocess.Popen[bytes]] = []

    def answer(number: int, words: str) -> str:
        if number == 17:
            process[0].send_signal(signal.SIGKILL)
        return f"answer {number}: create a meeting"

    with serve(answer) as server:
        limits = {"concurrency": 1}
        words = [str(tmp_path), str(private), server.url, json.dumps(limits)]
        start = [sys.executable, "-c", KILLED, *words]
        environment = {**os.environ, "PYTHONPATH": os.getcwd()}
        process.append(subprocess.Popen(start, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        assert process[0].wait(timeout=120) == -signal.SIGKILL
        kept = len((tmp_path / "evolution" / "answers.jsonl").read_text().splitlines())
        assert kept == 17
        assert call(tmp_path, private, generator=server.url, limits=limits) == 0
        told = json.loads((tmp_path / "evolution/samples.jsonl.evolution.json").read_text())
        again = [words for words in server.asked[18:] if words in server.asked[:17]]
        assert len(server.asked) == told["num_answers"] + 1, "but for the one that the kill cut off"
        assert not {json.loads(body)["seed"] for body in server.bodies[18:]} & {
            json.loads(body)["seed"] for body in server.bodies[:17]
        }, again
        num = len(server.asked)
        assert call(tmp_path, private, generator=server.url, limits=limits) == 0 and len(server.asked) == num


KILLED = """
import json, sys
from pathlib import Path
from tests.evolving import call
folder, private, url, limits = sys.argv[1:]
call(Path(folder), Path(private), generator=url, limits=json.loads(limits))
"""


def test_a_longer_schedule_than_was_calibrated_is_refused_before_anything_is_drawn(
    tmp_path: Path, private: Path, capsys: pytest.CaptureFixture
) -> None:
    assert call(tmp_path, private) == 0
    votes = (tmp_path / "ledger.jsonl").read_bytes()
    for rounds in (5, 1):
        assert call(tmp_path, private, rounds=rounds) == 2
        assert "planned_steps = 2, now" in capsys.readouterr().err
    assert call(tmp_path, private, privacy={"target_epsilon": 9.0}) == 2
    assert "target_epsilon = 8.0, now 9.0" in capsys.readouterr().err
    assert spent(tmp_path) == 2 and (tmp_path / "ledger.jsonl").read_bytes() == votes


def test_sigma_comes_from_the_ledger_where_a_step_is_on_file(tmp_path: Path, private: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, vote_releases.VoteReleases, "count", 1, after=True)
        with pytest.raises(Killed):
            call(tmp_path, private)
    sigma = mechanism(tmp_path)["noise_multiplier"]
    with pytest.MonkeyPatch.context() as patch:  # a later version that calibrates otherwise
        patch.setattr(budget, "calibrate", lambda *args: sigma / 2)
        assert call(tmp_path, private) == 0
    assert [record["noise_multiplier"] for record in released(tmp_path)] == [sigma, sigma] and spent(tmp_path) == 2


def test_votes_and_sizes_of_labels_are_one_budget(tmp_path: Path, private: Path) -> None:
    (tmp_path / "labels.txt").write_text("calendar\nweather\npeople\n")
    more = ("--labels", str(tmp_path / "labels.txt"))
    room = {"histogram_noise_multiplier": 4.0}
    assert call(tmp_path, private, *more, privacy=room, per_label=True) == 0
    assert (spent(tmp_path), spent(tmp_path, "histogram")) == (2, 1)
    sigma = mechanism(tmp_path)["noise_multiplier"]
    accountant = PLDAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(sigma), 2)).compose(GaussianDpEvent(4.0))
    assert accountant.get_epsilon(1e-5) == pytest.approx(8.0, rel=2e-3)
    assert get_epsilon_gaussian((2 / sigma**2 + 1 / 16) ** -0.5, 1e-5) == pytest.approx(8.0, rel=2e-3)
    assert Ledger(tmp_path / "ledger.jsonl").epsilon("evolution") <= 8.0
    lines = [json.loads(line) for line in (tmp_path / "evolution/samples.jsonl").read_bytes().splitlines()]
    assert {line["label"] for line in lines} <= {"calendar", "weather", "people"}
    assert call(tmp_path, private, *more, privacy=room, per_label=True) == 0 and spent(tmp_path, "histogram") == 1


def test_sizes_of_labels_get_the_share_of_the_budget_that_is_asked_for(tmp_path: Path, private: Path) -> None:
    (tmp_path / "labels.txt").write_text("calendar\nweather\npeople\n")
    more = ("--labels", str(tmp_path / "labels.txt"))
    assert call(tmp_path, private, *more, privacy={"histogram_share": 0.25}, per_label=True) == 0
    mu, votes, sizes = mu_of(8.0, 1e-5), mechanism(tmp_path), mechanism(tmp_path, "histogram")
    assert sizes["noise_multiplier"] == pytest.approx(1 / (0.25**0.5 * mu))
    assert votes["noise_multiplier"] == pytest.approx((2 / 0.75) ** 0.5 / mu, rel=1e-3)
    accountant = PLDAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(votes["noise_multiplier"]), 2))
    accountant.compose(GaussianDpEvent(sizes["noise_multiplier"]))
    assert accountant.get_epsilon(1e-5) == pytest.approx(8.0, rel=2e-3)
    assert Ledger(tmp_path / "ledger.jsonl").epsilon("evolution") <= 8.0


def test_rows_of_attributes_and_votes_are_one_budget(tmp_path: Path, private: Path) -> None:
    rows = write_rows(tmp_path, private)
    assert call(tmp_path, private, rows=str(rows)) == 0
    sigma, beside = mechanism(tmp_path)["noise_multiplier"], 1 / mu_of(2, 1e-5)
    assert spent(tmp_path) == 2 and sigma == pytest.approx(
        (2 / (mu_of(8, 1e-5) ** 2 - mu_of(2, 1e-5) ** 2)) ** 0.5, rel=1e-3
    )
    events = SelfComposedDpEvent(GaussianDpEvent(sigma), 2), GaussianDpEvent(beside)
    accountant = PLDAccountant().compose(events[0]).compose(events[1])
    assert accountant.get_epsilon(1e-5) == pytest.approx(8.0, rel=2e-3)
    assert Ledger(tmp_path / "ledger.jsonl").epsilon("evolution") <= 8.0


def test_a_scope_that_cannot_pay_draws_nothing(tmp_path: Path, private: Path, capsys: pytest.CaptureFixture) -> None:
    assert call(tmp_path, private, "--num-samples", "5") == 0
    other = tmp_path / "other"
    other.mkdir()
    assert call(other, private, privacy={"ledger_path": str(tmp_path / "ledger.jsonl")}) == 0
    assert "evolution" in json.dumps(Ledger(tmp_path / "ledger.jsonl").summary()["everything"]), "both count together"
    assert call(tmp_path, private, privacy={"histogram_noise_multiplier": 0.2}) == 2
    assert "beside" in capsys.readouterr().err


def test_without_privacy_nothing_of_the_votes_is_written(tmp_path: Path, private: Path) -> None:
    words = [
        "--out",
        str(tmp_path / "s.jsonl"),
        "--num-samples",
        "5",
        "--data",
        json.dumps({"train_path": str(private), "unit": "user"}),
    ]
    with words_alone():
        assert (
            cli.main(["step", "evolve", str(tmp_path / "evolution"), *words, "--settings", '{"generator": "grammar"}'])
            == 0
        )
    assert not (tmp_path / "evolution" / "votes.jsonl").exists() and not (tmp_path / "ledger.jsonl").exists()
    assert SECRET not in everything(tmp_path / "evolution")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"data": {"limit_train_units": 5}}, "limit_train_units"),
        ({"rounds": 0}, "evolution.rounds is 0"),
        ({"clusters": 3, "per_label": True}, "without per_label"),
        ({"generator": "no/such/folder"}, "evolution.generator"),
        ({"rows": "no/such/rows.csv"}, "no/such/rows.csv: they are not rows"),
    ],
)
def test_a_start_that_fails_spends_nothing(
    tmp_path: Path, private: Path, given: dict[str, Any], why: str, capsys: pytest.CaptureFixture
) -> None:
    assert call(tmp_path, private, **given) == 2
    told = capsys.readouterr().err
    assert why in told and SECRET not in told and spent(tmp_path) == 0


def test_another_generator_does_not_go_on_with_votes_for_other_texts(
    tmp_path: Path, private: Path, capsys: pytest.CaptureFixture
) -> None:
    assert call(tmp_path, private) == 0
    assert call(tmp_path, private, variations=3) == 2
    assert "votes of round 1 for other candidates" in capsys.readouterr().err and spent(tmp_path) == 2
    assert answers.Answers(tmp_path / "evolution" / "answers.jsonl", "x").spent["calls"] == 0
