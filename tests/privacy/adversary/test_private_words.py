"""Words of private units: what no list has, what one unit chose and counts without noise stay in the process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from run_folders import end_step, sample

import cli
from commands.privacy import words as words_command
from commands.report.asked import Sample
from commands.report.unexpected import read_unexpected
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import File
from doppel.privacy import release
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import DPPlan, PrivacyArguments
from tests.killed import Killed, kill_at

#: In no list of words; and in the list, but said by one unit, and by fewer than show.
OUTSIDE, ONE, FEW, MANY = "zyzzyva", "xylophone", "dentist", "taxi"
UNITS = 1000
STAGE = "one_stage/one_stage"


def plan(noise: float | None) -> DPPlan:
    return PrivacyArguments(8.0, accountant="rdp", words_noise_multiplier=noise).plan(UNITS, 100, [1], "utterance")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose one-stage model is trained, with room for words in its budget."""
    run = tmp_path / "run"
    texts = [f"{OUTSIDE} song"] * 400 + [f"the {MANY} song"] * 590 + [f"the {FEW} song"] * 9 + [f"the {ONE} song"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"utterance": text}) + "\n" for text in texts))
    known = f'{{"utterance": "play {FEW} or {ONE}"}}\n' * 5  # as often as noise makes them, which has no seed
    (tmp_path / "public.jsonl").write_text('{"utterance": "play a song"}\n{"utterance": "the song"}\n' * 400 + known)
    (tmp_path / "words.txt").write_text(f"{ONE}\n{FEW}\n{MANY}\nplay\nsong\nthe\n")
    spec = plan(5.0)
    ledger = Ledger(run / "ledger.jsonl")
    name = ledger.open(scope="one_stage", stage="fit", spec=spec, planned_steps=10, data_fingerprint="f00d")
    for _ in range(10):
        ledger.spend(name)
    (run / "experiment.yaml").write_text(f"name: mine\nsystems: [one_stage]\nreference: {tmp_path}/public.jsonl\n")
    sample(run, "one_stage")
    (run / STAGE).mkdir(parents=True)
    privacy = {"target_epsilon": 8.0, "accountant": "rdp", "scope": "one_stage", "words_noise_multiplier": 5.0}
    data = {"init_args": {"train_path": str(tmp_path / "train.jsonl"), "unit": "utterance"}}
    (run / STAGE / "config.yaml").write_text(yaml.safe_dump({"privacy": privacy, "data": data}))
    return run


def words(run: Path, *more: str) -> int:
    given = ["--reference", str(run.parent / "public.jsonl"), "--vocabulary", str(run.parent / "words.txt")]
    return cli.main(["step", "words", str(run / STAGE), "--out", str(run / "one_stage/words.json"), *given, *more])


def test_the_words_of_many_leave_the_process_and_nothing_else(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert words(run) == 0
    content = json.loads((run / "one_stage/words.json").read_text())
    assert [word["word"] for word in content["words"]] == [MANY]
    (word,) = content["words"]
    assert abs(word["share"] - 0.59) < 2.5 * (word["high"] - word["share"]), "five deviations: the noise has no seed"
    (line,) = Ledger(run / "ledger.jsonl").releases("one_stage/words")
    assert line.content == content
    told = capfd.readouterr()
    written = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    for secret in (OUTSIDE, ONE, FEW):
        assert secret.encode() not in written and secret not in told.out + told.err


def test_each_count_has_its_own_noise(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, known = [], release.add_noise
    monkeypatch.setattr(
        release, "add_noise", lambda sums, sigma, seed: (exact.append((sums, sigma)), known(sums, sigma, seed))[1]
    )
    assert words(run) == 0
    ((sums, sigma),) = exact
    assert sigma == 5.0 and set(sums) == {"the", "song", "play", ONE, FEW, MANY} and sums[ONE] > 0  # each is noised
    share = json.loads((run / "one_stage/words.json").read_text())["words"][0]["share"]
    assert share != pytest.approx(sums[MANY] * 2**0.5 / UNITS, abs=1e-9)


@pytest.mark.parametrize(
    ("of", "name", "after", "is_paid"),
    [(Ledger, "spend", False, False), (Ledger, "spend", True, True), (words_command, "write_json", False, True)],
)
def test_killed_anywhere_words_are_drawn_and_paid_for_once(
    run: Path, of: object, name: str, after: bool, is_paid: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, of, name, 1, after=after)
        with pytest.raises(Killed):
            words(run)
    assert MANY.encode() not in b"".join(path.read_bytes() for path in run.rglob("*.json"))
    before = (run / "ledger.jsonl").read_bytes()
    assert (MANY.encode() in before) == is_paid
    assert words(run) == 0
    assert ((run / "ledger.jsonl").read_bytes() == before) == is_paid
    (line,) = Ledger(run / "ledger.jsonl").releases("one_stage/words")
    assert line.content == json.loads((run / "one_stage/words.json").read_text())


@pytest.mark.parametrize("left", [60, 200, 100_000])
def test_words_whose_line_a_crash_tore_are_left_out_and_the_card_says_so(
    run: Path, left: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has to find ``words=null``; noise is never drawn again, for a part of the numbers may stand there."""
    assert words(run) == 0
    (run / "one_stage/words.json").unlink()
    *lines, last = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join([*lines, last[: min(left, len(last) - 40)]]))
    for _ in range(2):
        assert words(run) == 0 and not (run / "one_stage/words.json").exists()
    assert "warning: the release of one_stage, words, was charged, and a crash tore" in capsys.readouterr().out
    ledger = Ledger(run / "ledger.jsonl")
    assert ledger.mechanisms["one_stage/words"].done_steps == 1 and not ledger.releases("one_stage/words")
    assert cli.main(["verify", str(run)]) == 0
    (caveat,) = json.loads((run / "privacy_card.json").read_text())["budgets"]["one_stage"]["caveats"]
    assert "a crash tore its line" in caveat


def test_a_reference_that_says_what_the_private_file_does_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words(run, "--reference", str(run.parent / "train.jsonl")) == 2
    assert "which is to be public" in capsys.readouterr().err
    assert not Ledger(run / "ledger.jsonl").releases("one_stage/words")


def test_a_stage_that_left_no_room_releases_none(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / STAGE / "config.yaml"
    path.write_text(path.read_text().replace("words_noise_multiplier: 5.0", "histogram_noise_multiplier: 5.0"))
    assert words(run) == 2 and "set privacy.words_noise_multiplier" in capsys.readouterr().err


def test_verify_recomputes_epsilon_with_the_words_by_two_accountants(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words(run) == 0
    made = File("one_stage/words.json", "metrics", "one_stage", "one_stage")
    paid = ["one_stage/words"]
    end_step(run, "one_stage-words", ["words"], [made], [], str(run.parent / "train.jsonl"), paid)
    assert cli.main(["verify", str(run)]) == 0, capsys.readouterr().out
    own = json.loads((run / "privacy_card.json").read_text())["budgets"]["one_stage"]
    assert [m["mechanism"] for m in own["mechanisms"]][1:] == ["gaussian words"]
    alone = plan(None).noise_multiplier
    assert own["mechanisms"][0]["noise_multiplier"] > alone
    assert set(own["epsilon_by_accountant"]) == {"rdp", "pld"} and 7.9 < own["epsilon"] <= 8.0
    (run / "ledger.jsonl").write_bytes(b"".join((run / "ledger.jsonl").read_bytes().splitlines(True)[:-1]))
    assert cli.main(["verify", str(run)]) == 0
    assert "one_stage/words.json" in json.loads((run / "privacy_card.json").read_text())["not_covered"]


def test_the_page_shows_words_that_the_ledger_covers_and_as_they_were_made(run: Path) -> None:
    assert words(run) == 0
    made = File("one_stage/words.json", "metrics", "one_stage", "one_stage")
    end_step(run, "one_stage-words", ["words"], [made], [], str(run.parent / "train.jsonl"), ["one_stage/words"])
    flights = [f"a one {MANY} flight to city {i}" for i in range(3)]
    samples = [Sample(text) for text in ("play", f"no {MANY}", *flights)]
    found = read_unexpected(RunFolder(run), "one_stage", samples)
    assert found is not None and sorted(found["findings"][0]["samples"]) == flights, "those say best what it is about"
    assert [word["word"] for word in found["findings"][0]["words"]] == [MANY]
    path = run / "one_stage/words.json"
    path.write_text(path.read_text().replace(MANY, OUTSIDE))
    assert read_unexpected(RunFolder(run), "one_stage", []) is None
