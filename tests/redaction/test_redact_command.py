"""`redact` and `attack`: every form of table, rows of the ranker held out, nothing told as private that is not."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

import cli
from datamodules.reading.examples import read_examples
from doppel.redaction.mask import MASK

PLACES = {"sensitive": "doctor", "safe": "table"}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Two tables of 200 rows whose texts all differ, as CSV and as JSON lines."""
    for name, place in PLACES.items():
        draw = random.Random(name)
        rows = [
            {
                "text": f"book  a {place} for Ana{n}, {draw.choice(['please', 'thanks'])} mail ana{n}@x.org",
                "stars": n % 5,
                "parse": f'(Book "{place}" (Name "Ana{n}"))',
            }
            for n in range(200)
        ]
        rows.insert(3, {"text": "", "stars": 1, "parse": None})
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def redact(folder: Path, form: str, *more: str, out: str = "out") -> int:
    files = [word for name in PLACES for word in (f"--{name}", str(folder / f"{name}.{form}"))]
    return cli.main(["redact", *files, "--out", str(folder / out), *more])


def told(folder: Path, out: str = "out") -> dict[str, Any]:
    return json.loads((folder / out / "redaction.json").read_text())


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_rows_keep_their_other_columns_and_can_be_read_by_run(tables: Path, form: str) -> None:
    assert redact(tables, form, "--level", "0.1", "--patterns", "email") == 0
    for name, place in PLACES.items():
        counts = told(tables)[name]
        turns = read_examples(str(tables / "out" / f"{name}.{form}"), "utterance")
        assert len(turns) == counts["rows"] and counts["rows"] + counts["held_out"] == 200
        assert 20 <= counts["held_out"] <= 60  # a share of .2
        for turn in turns:
            assert turn.utterance.startswith(f"book a {MASK} for Ana") and turn.utterance.endswith(f"mail {MASK}")
            assert turn.parse is not None and f'(Book "{MASK}" (Name "Ana' in turn.parse and place not in turn.parse
    path = tables / "out" / f"sensitive.{form}"
    assert path.stat().st_mode & 0o077 == 0
    first = next(csv.DictReader(path.open())) if form == "csv" else json.loads(path.read_text().splitlines()[0])
    assert list(first) == ["text", "stars", "parse"] and str(first["stars"]) in "01234"


def test_the_rows_that_the_ranker_learns_from_are_not_written(tables: Path) -> None:
    assert redact(tables, "jsonl", "--level", "0.01") == 0
    written = {json.loads(line)["parse"] for line in (tables / "out" / "safe.jsonl").read_bytes().splitlines()}
    assert len(written) == told(tables)["safe"]["rows"] < 200
    assert redact(tables, "jsonl", "--level", "0.01", out="again") == 0
    for name in PLACES:
        assert (tables / "out" / f"{name}.jsonl").read_text() == (tables / "again" / f"{name}.jsonl").read_text()


def test_nothing_is_overwritten(tables: Path, capsys: pytest.CaptureFixture) -> None:
    """Neither an earlier result, nor the table itself, which may lie in the folder under that name."""
    assert redact(tables, "csv", "--level", "0", "--patterns", "email") == 0
    before = {path: path.read_bytes() for path in tables.rglob("*.csv")}
    for out in ("out", "."):
        assert redact(tables, "csv", "--level", "0", "--patterns", "number", out=out) == 2
        assert "would be overwritten: give another --out" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tables.rglob("*.csv")} == before


def test_at_level_one_all_rows_say_the_same_and_the_attack_is_at_chance(
    tables: Path, capsys: pytest.CaptureFixture
) -> None:
    assert redact(tables, "csv", "--level", "1", "--patterns", "email", "--pseudonyms") == 0
    files = [word for name in PLACES for word in (f"--{name}", str(tables / "out" / f"{name}.csv"))]
    assert {turn.utterance for path in files[1::2] for turn in read_examples(path, "utterance")} == {MASK}
    capsys.readouterr()
    assert cli.main(["attack", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attack"]["accuracy"] == 0.5
    files = [word for name in PLACES for word in (f"--{name}", str(tables / f"{name}.csv"))]
    assert cli.main(["attack", *files]) == 0
    assert "accuracy 1.000" in capsys.readouterr().out


def test_lines_of_json_that_are_called_a_table_are_told_or_written(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The content of a file decides how it is read, not its name."""
    whole, short, more = {"text": "hello Ana1", "a": 1}, {"text": "hello Ana2"}, {"text": "hello Ana3", "b": 2}
    (tables / "sensitive.csv").write_text("".join(json.dumps(row) + "\n" for row in (whole, short)))
    (tables / "names.txt").write_text("Ana1\n")
    rules = ["--level", "0", "--words", str(tables / "names.txt")]
    assert redact(tables, "csv", *rules) == 0
    written = list(csv.DictReader((tables / "out" / "sensitive.csv").open()))
    assert written == [{"text": f"hello {MASK}", "a": "1"}, {"text": "hello Ana2", "a": ""}]
    (tables / "sensitive.csv").write_text("".join(json.dumps(row) + "\n" for row in (short, more)))
    assert redact(tables, "csv", *rules, out="other") == 2
    assert "a row has columns that the first one lacks" in capsys.readouterr().err


def test_without_a_level_nothing_is_learnt_and_all_rows_are_written(tables: Path) -> None:
    words = tables / "names.txt"
    words.write_text("".join(f"Ana{n}\tperson\n" for n in range(200)))
    assert redact(tables, "jsonl", "--level", "0", "--words", str(words), "--pseudonyms") == 0
    rows = {name: (tables / "out" / f"{name}.jsonl").read_text().splitlines() for name in PLACES}
    assert {len(lines) for lines in rows.values()} == {200}
    assert "ana7" not in "".join(rows["safe"]).lower()  # nor in the address, whose part it is
    texts = {name: [json.loads(line)["text"] for line in lines] for name, lines in rows.items()}
    names = {name: [text.split(" for ")[1].split(",")[0] for text in own] for name, own in texts.items()}
    assert names["safe"] == names["sensitive"] and len(set(names["safe"])) > 100
    assert json.loads(rows["safe"][0])["parse"] == f'(Book "table" (Name "{names["safe"][0]}"))'


def test_dialogues_keep_nothing_else_that_may_repeat_the_words(tmp_path: Path) -> None:
    for name, place in PLACES.items():
        said = {"original_text": f"book a {place}", "tokens": ["book", place]}
        turn = {"turn_index": 0, "lispress": f'(Book "{place}")', "fully_typed_lispress": f'("{place}")'}
        turn |= {
            "user_utterance": said,
            "agent_utterance": {"original_text": place},
            "tags": {"domain": "x", "was": place},
        }
        lines = [json.dumps({"dialogue_id": f"d{n}", "note": place, "turns": [turn]}) for n in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    words = tmp_path / "words.txt"
    words.write_text("doctor\ntable\n")
    assert redact(tmp_path, "jsonl", "--level", "0", "--words", str(words)) == 0
    text = (tmp_path / "out" / "sensitive.jsonl").read_text()
    assert "doctor" not in text and text.count("dialogue_id") == 3
    turns = read_examples(str(tmp_path / "out" / "sensitive.jsonl"), "dialogue")
    assert [(turn.utterance, turn.parse, turn.unit, turn.label) for turn in turns][:1] == [
        (f"book a {MASK}", f'(Book "{MASK}")', "d0", "x")
    ]


def test_no_epsilon_is_told_and_nothing_is_called_private(tables: Path, capsys: pytest.CaptureFixture) -> None:
    assert redact(tables, "csv", "--level", "0.3") == 0
    output = capsys.readouterr().out + (tables / "out" / "redaction.json").read_text()
    assert "no privacy guarantee" in output and "no ε belongs" in output
    assert not any(word in output.lower() for word in ("epsilon", "ε =", "delta"))
    assert not list((tables / "out").glob("ledger*"))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--level", "0"], "nothing would be hidden"),
        (["--level", "2"], "give a share of the words"),
        (["--level", "0.5", "--held-out", "1"], "--held-out is 1"),
        (["--level", "0.5", "--held-out", "1e-9"], "0 sensitive and 0 safe rows are held out"),
        (["--level", "0", "--patterns", "iban"], "no pattern 'iban'"),
        (["--level", "0.5", "--columns.text", "said"], "no 'said'"),
        (["--level", "0.5", "--columns.messages", "messages"], "messages of a conversation would stay as they are"),
        (["--level", "0.5", "--pseudonyms", "--guess.model", "models/base"], "leave out --pseudonyms"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(
    tables: Path, more: list[str], why: str, capsys: pytest.CaptureFixture
) -> None:
    assert redact(tables, "csv", *more) == 2
    assert why in capsys.readouterr().err
    assert not (tables / "out" / "redaction.json").exists()


def test_replay_is_counted_by_string(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "samples.jsonl").write_text('{"utterance": "call Ana Lim"}\n{"utterance": "call ana lim"}\n')
    (tmp_path / "strings.txt").write_text("Ana Lim\tperson\nBo\nBo\n")
    words = ["attack", "--samples", str(tmp_path / "samples.jsonl"), "--strings", str(tmp_path / "strings.txt")]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == "Ana Lim: in 1 samples, 2 in any case\nBo: in 0 samples, 0 in any case\n"
    for wrong, why in ((words[:3], "belong together"), (["attack"], "nothing to attack")):
        assert cli.main(wrong) == 2
        assert why in capsys.readouterr().err


def test_masks_are_guessed_by_a_public_model(tables: Path, tiny_model: str) -> None:
    more = ["--level", "0.3", "--guess.model", tiny_model, "--guess.rows", "3"]
    assert redact(tables, "csv", *more) == 0
    found = told(tables)["reconstruction"]
    assert found["rows"] == 3 and found["num_masks"] >= 3 and 0 <= found["top_1"] <= found["top_10"] <= 1
