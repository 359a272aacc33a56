"""Attacks on an evolution: its votes on disk, its private texts at a generator, its files after the step."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from source_modules import ROOT, imported, modules

import cli
from doppel.evolution.votes import NearestNeighbourHistogram
from doppel.privacy.card import not_private_card, write_card
from doppel.privacy.ledger import Ledger
from tests.evolution.openai_server import serve
from tests.evolving import (
    SECRET,
    call,
    embed,
    everything,
    make_run,
    released,
    samples,
    spent,
    write_private,
    write_rows,
)


@pytest.fixture(autouse=True)
def own_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOPPEL_LEDGER", raising=False)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return write_private(tmp_path)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """The sums without noise, as only this process sees them."""
    found: list[dict[str, float]] = []
    known = NearestNeighbourHistogram.sums

    def sums(*args: Any, **options: Any) -> dict[str, float]:
        found.append(known(*args, **options))
        return found[-1]

    monkeypatch.setattr(NearestNeighbourHistogram, "sums", sums)
    return found


def test_no_clean_vote_is_on_disk_nor_printed(
    tmp_path: Path, private: Path, clean: list[dict[str, float]], capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "labels.txt").write_text("calendar\nweather\npeople\n")
    more = ("--labels", str(tmp_path / "labels.txt"))
    assert call(tmp_path, private, *more, per_label=True, privacy={"histogram_noise_multiplier": 3.0}) == 0
    assert len(clean) == 2
    records = released(tmp_path)
    for record, sums in zip([r for r in records if "round" in r], clean, strict=True):
        gaps = np.array(record["sums"]) - np.array(list(sums.values()))
        assert (gaps != 0).all() and 0.5 < gaps.std() / record["noise_multiplier"] < 1.5
    counts = {
        label: line.count(f'"label": "{label}"') for line in [private.read_text()] for label in ("calendar", "weather")
    }
    sizes = dict(zip(records[0]["labels"], records[0]["sums"], strict=True))
    assert all(abs(sizes[label] - count / 2) > 1e-6 for label, count in counts.items())
    private.unlink()
    numbers = re.findall(r"-?\d+\.\d+", everything(tmp_path) + capsys.readouterr().out)
    exact = {value for sums in clean for value in sums.values() if value % 0.5}
    assert not exact & {float(number) for number in numbers}


def test_the_noise_is_not_that_of_the_public_seed(tmp_path: Path) -> None:
    """The same seed, data and generator: another noise each time."""
    found = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        assert call(folder, write_private(folder), "--seed", "7") == 0
        found.append(released(folder)[0]["sums"])
    assert not set(found[0]) & set(found[1])


def test_a_fixed_seed_of_the_noise_is_told_to_every_reader(tmp_path: Path, private: Path) -> None:
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        assert call(tmp_path, private, privacy={"seed": 3}) == 0
    assert "whoever reads it can subtract the noise" in (tmp_path / "ledger.jsonl").read_text()


def test_no_private_text_reaches_a_generator_a_cache_or_an_error(
    tmp_path: Path, private: Path, capsys: pytest.CaptureFixture
) -> None:
    """A server that keeps all that it is sent, at first one that fails and is then gone on with."""

    def answer(number: int, words: str) -> str | int:
        return 500 if number in (3, 20) else "torn" if number == 5 else f"set a meeting about {number}"

    (tmp_path / "labels.txt").write_text("calendar\nweather\n")
    rows = write_rows(tmp_path, private)
    more = ("--labels", str(tmp_path / "labels.txt"))
    given: dict[str, Any] = {"rows": str(rows), "per_label": True, "privacy": {"histogram_noise_multiplier": 3.0}}
    with serve(answer) as server:
        assert call(tmp_path, private, *more, generator=server.url, limits={"max_calls": 21}, **given) == 2
        assert call(tmp_path, private, *more, generator=server.url, limits={"retries": 9}, **given) == 0
    sent = b"\n".join(server.bodies).decode()
    assert len(server.bodies) > 40 and "stars: 2" in sent and "calendar" in sent
    told = capsys.readouterr()
    private.unlink()
    for text in (sent, everything(tmp_path), told.out, told.err):
        assert SECRET not in text
    assert not any(name in json.dumps(server.headers) for name in (SECRET, "private.jsonl"))


def test_rows_that_the_scope_has_not_paid_for_are_refused(
    tmp_path: Path, private: Path, capsys: pytest.CaptureFixture
) -> None:
    """A private table as rows would be sent word by word."""
    (tmp_path / "table.csv").write_text(f"stars,text\n1,{SECRET}\n2,{SECRET}\n")
    with serve(lambda number, words: "fine") as server:
        other = tmp_path / "other"
        other.mkdir()
        elsewhere = write_rows(other, private, "--seed", "9")
        rows = write_rows(tmp_path, private)
        rows.with_name("edited.csv").write_text(rows.read_text().replace("1", SECRET))
        rows.with_name("edited.csv.card.json").write_bytes(rows.with_name("rows.csv.card.json").read_bytes())
        for path in (tmp_path / "table.csv", elsewhere, rows.with_name("edited.csv")):
            assert call(tmp_path, private, generator=server.url, rows=str(path)) == 2
            told = capsys.readouterr().err
            assert "no ε of this run covers others" in told and SECRET not in told
        assert server.bodies == [] and spent(tmp_path) == 0


def test_examples_that_the_private_file_says_too_are_refused(
    tmp_path: Path, private: Path, capsys: pytest.CaptureFixture
) -> None:
    """Those that people gave are shown, and are taken out of the private file."""
    lines = [json.loads(line) for line in private.read_bytes().splitlines()]
    donated = tmp_path / "donated.csv"
    donated.write_text("text,stars\n" + "".join(f'"{line["utterance"]}!",{line["stars"]}\n' for line in lines[:12]))
    with serve(lambda number, words: f"answer {number}") as server:
        assert call(tmp_path, private, generator=server.url, examples=str(donated)) == 2
        told = capsys.readouterr().err
        assert "evolution.examples is" in told and SECRET not in told and server.bodies == [] and spent(tmp_path) == 0
        donated.write_text("text,stars\nplay some jazz music for me please,2\nremind me of the garden at noon,1\n")
        assert call(tmp_path, private, generator=server.url, examples=str(donated)) == 0
        assert all("\n- play some jazz music" in words for words in server.asked[:12])
        donated.write_text("stars\n2\n")
        assert call(tmp_path, private, generator=server.url, examples=str(donated)) == 2
        assert "donated.csv" in capsys.readouterr().err


def test_a_generator_that_learnt_from_people_without_privacy_is_refused(
    tmp_path: Path, private: Path, tiny_model: str, capsys: pytest.CaptureFixture
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    wording = {"random": "", "vary": "{begin}"}
    write_card(model, not_private_card(None, []))
    assert call(tmp_path, private, generator=str(model), wording=wording, max_new_tokens=4) == 2
    assert "no ε would cover what it writes" in capsys.readouterr().err and spent(tmp_path) == 0
    write_card(model, not_private_card(True, []))
    call(tmp_path, private, generator=str(model), wording=wording, max_new_tokens=4)  # refused for its poor texts alone
    assert "no ε would cover" not in capsys.readouterr().err


def test_private_texts_are_embedded_independently(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch, rounding could let one unit change another's embedding."""
    seen: dict[bool, set[bool]] = {True: set(), False: set()}

    def watched(texts: Sequence[str], encoder: str = "", independent: bool = False, keep: object = None) -> np.ndarray:
        seen[any(SECRET in text for text in texts)].add(independent)
        return embed(texts, encoder, independent, keep)

    monkeypatch.setattr("tests.evolving.embed", watched)
    assert call(tmp_path, private) == 0
    assert seen == {True: {True}, False: {False}}


def test_prompts_and_candidates_are_made_in_one_place() -> None:
    """Of a plan, released rows, and answers: nowhere where a private text is at hand."""
    makers = set()
    for path in [*ROOT.glob("doppel/**/*.py"), *ROOT.glob("commands/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
            makers |= {str(path.relative_to(ROOT))} if name in ("Candidate", "Prompt") else set()
    assert makers == {"doppel/evolution/evolve.py"}
    reached = [name for name in modules() if name.startswith("doppel.evolution")]
    assert len(reached) > 10 and not any(
        other.startswith("datamodules") for name in reached for other in imported(name)
    )


def test_room_for_another_release_is_not_spent_on_more_rounds(tmp_path: Path, private: Path) -> None:
    """A budget that holds back something for rows of attributes would afford a third round: it is not taken."""
    room = {"histogram_noise_multiplier": 0.8}
    for _ in range(2):
        assert call(tmp_path, private, privacy=room) == 0 and spent(tmp_path) == 2
        assert Ledger(tmp_path / "ledger.jsonl").remaining("evolution/votes") > 0


def test_a_neighbouring_file_is_another_file_to_the_ledger(
    tmp_path: Path, private: Path, capsys: pytest.CaptureFixture
) -> None:
    """Votes of two files under one payment would tell them apart."""
    assert call(tmp_path, private) == 0
    private.write_text("".join(private.read_text().splitlines(keepends=True)[:-2]))
    assert call(tmp_path, private) == 2 and "was opened for other private data" in capsys.readouterr().err


def test_the_noise_is_added_in_one_place_by_the_projects_own_mechanism() -> None:
    source = (ROOT / "commands" / "privacy" / "vote_releases.py").read_text(encoding="utf-8")
    assert source.count("histogram.sums(") == 1 and source.count(".draw(sums") == 1
    for path in (ROOT / "doppel" / "evolution").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "normal(" not in text and "gauss(" not in text, path


@pytest.fixture
def run(tmp_path: Path, own_site: None) -> Path:
    return make_run(tmp_path)


def unverified(run: Path, capsys: pytest.CaptureFixture) -> str:
    """What ``verify`` prints, from its verdict on; empty where it verifies."""
    capsys.readouterr()
    status = cli.main(["verify", str(run)])
    told = capsys.readouterr().out
    assert (status == 0) == ("NOT VERIFIED" not in told)
    return "" if status == 0 else told.partition("NOT VERIFIED")[2]


def test_a_run_is_verified_and_says_what_nobody_has_checked(run: Path, capsys: pytest.CaptureFixture) -> None:
    assert unverified(run, capsys) == ""
    card = json.loads((run / "privacy_card.json").read_text())
    assert card["budgets"]["evolution"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert "(grammar)" in " ".join(card["not_checked"]) and len(samples(run)) == 12
    assert "that the sentence encoder (minilm) is public" in card["not_checked"]
    assert SECRET not in everything(run)
    assert cli.main(["sample", str(run)]) == 2 and "more samples need more votes" in capsys.readouterr().err
    assert spent(run) == 2


def test_samples_that_were_changed_are_not_verified(run: Path, capsys: pytest.CaptureFixture) -> None:
    """Also where the manifest was made to fit: the ledger has released others."""
    path = "evolution/samples.jsonl"
    lines = [json.loads(line) for line in (run / path).read_bytes().splitlines()]
    lines[0]["utterance"] = f"a private text {SECRET}"
    (run / path).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert path in unverified(run, capsys)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["files"][path]["sha256"] = hashlib.sha256((run / path).read_bytes()).hexdigest()
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert path in unverified(run, capsys)
