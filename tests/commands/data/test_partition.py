"""`partition`: the public part lacks the function, the parts share no turn, and a seed says who is where."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli import main
from commands.data.partition import By, split
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from doppel.errors import DataError
from doppel.lispress import uses_function

TREES = ["(Yield (Weather))", "(Yield (EventOnDate (Today)))", "(EventOnDateTime (Today))", "(Yield (Find))", "(Ok)"]


def corpus(num: int, turns_per_dialogue: int = 3) -> list[Example]:
    """Turns that differ from each other, with every tree in turn."""
    return [Example(f"say {i}", TREES[i % len(TREES)], f"dialogue-{i // turns_per_dialogue}") for i in range(num)]


@settings(max_examples=60)
@given(
    num=st.integers(30, 200),
    public_share=st.floats(0.1, 0.6),
    test_share=st.floats(0.1, 0.3),
    seed=st.integers(0, 10**6),
    by=st.sampled_from(["turn", "dialogue"]),
    missing=st.sampled_from(["Weather", "EventOnDate", "EventOnDate*"]),
)
def test_parts_are_disjoint_and_complete_and_public_lacks_the_function(
    num: int, public_share: float, test_share: float, seed: int, by: By, missing: str
) -> None:
    train = corpus(num)
    try:
        parts = split(train, None, missing=missing, public_share=public_share, test_share=test_share, seed=seed, by=by)
    except DataError as error:  # a small share can hold nothing but the function
        assert "would be empty" in str(error)
        return
    everything = Counter([*parts.public, *parts.private, *parts.test, *parts.dropped])
    assert everything == Counter(train)
    assert not any(uses_function(turn.parse, missing) for turn in parts.public)
    assert all(uses_function(turn.parse, missing) for turn in parts.dropped)
    assert Counter(parts.full) == Counter([*parts.public, *parts.private, *parts.dropped])
    if by == "turn":
        assert len(parts.public) + len(parts.dropped) == max(1, round(public_share * num))
        assert len(parts.test) == round(test_share * num)
    else:
        units = [{turn.unit for turn in part} for part in (parts.private, parts.test, parts.public + parts.dropped)]
        assert sum(map(len, units)) == len(set.union(*units))


@pytest.mark.parametrize("by", ["turn", "dialogue"])
def test_a_seed_gives_one_split_and_another_seed_another(by: By) -> None:
    train, test = corpus(200), corpus(50)
    splits = [
        split(train, test, missing="Weather", public_share=0.3, test_share=0.5, seed=seed, by=by) for seed in (1, 1, 2)
    ]
    assert splits[0] == splits[1]
    assert splits[0].private != splits[2].private and splits[0].test != splits[2].test


def test_the_split_does_not_look_at_utterances_and_a_larger_share_holds_a_smaller_one() -> None:
    train, test = corpus(200), corpus(50)
    renamed = [Example(turn.utterance[::-1], turn.parse, turn.unit) for turn in train]
    first = split(train, test, missing="Weather", public_share=0.1)
    assert [t.utterance[::-1] for t in split(renamed, test, missing="Weather").private] == [
        t.utterance for t in first.private
    ]
    larger = split(train, test, missing="Weather", public_share=0.4)
    assert set(first.public) < set(larger.public) and set(larger.private) < set(first.private)
    assert first.test == test == larger.test


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_the_command_writes_private_turns_without_trees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = tmp_path / "train.jsonl"
    train.write_text(
        "".join(json.dumps({"utterance": t.utterance, "parse": t.parse, "unit": t.unit}) + "\n" for t in corpus(120))
    )
    call = ["step", "partition", "--train", str(train), "--missing", "EventOnDate*", "--public-share", "0.25"]
    assert main([*call, "--out", str(tmp_path / "out")]) == 0
    private = lines(tmp_path / "out" / "private.jsonl")
    gold = lines(tmp_path / "out" / "private_gold.jsonl")
    assert all(line.keys() == {"utterance", "unit"} for line in private)
    assert [(g["utterance"], g["unit"]) for g in gold] == [(p["utterance"], p["unit"]) for p in private]
    assert {line["unit"] for line in private} <= {turn.unit for turn in corpus(120)}  # dialogues keep their names
    summary = json.loads((tmp_path / "out" / "partition.json").read_text())
    counted = ("public", "dropped", "private", "test")
    assert sum(summary[f"num_{name}"] for name in counted) == summary["num_train"] == 120
    assert (summary["seed"], summary["by"], summary["missing_function"]) == (1, "turn", "EventOnDate*")
    assert not [key for key in summary if key.startswith("private/")]
    assert main([*call, "--out", str(tmp_path / "told"), "--private-diagnostics"]) == 0
    assert "private/num_with_function (NOT PRIVATE)" in capsys.readouterr().out
    told = json.loads((tmp_path / "told" / "partition.json").read_text())
    assert told["private/num_with_function"] == sum(uses_function(g["parse"], "EventOnDate*") for g in gold)
    for name in ("public", "private", "private_gold", "test", "full"):
        path = tmp_path / "out" / f"{name}.jsonl"
        assert path.read_bytes() == (tmp_path / "told" / f"{name}.jsonl").read_bytes()
        assert path.stat().st_mode & 0o077 == 0
        read_examples(str(path), "dialogue")


def test_requests_that_repeat_themselves_are_not_cut_into_a_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The score of a parser would be refused for it, after the parser was trained."""
    words = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett"]
    said = [f"please {a} the {b} and then {c}" for a in words for b in words for c in words[:4]]
    train = tmp_path / "train.jsonl"
    rows = [{"utterance": text, "parse": TREES[i % len(TREES)], "unit": f"u{i}"} for i, text in enumerate(said)]
    call = ["step", "partition", "--train", str(train), "--missing", "EventOnDate*", "--out", str(tmp_path / "out")]
    train.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows]))
    assert main(call) == 2
    assert "repeats itself" in capsys.readouterr().err and not list((tmp_path / "out").iterdir())
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(call) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--missing", "Wether"], "calls 'Wether': give a function's name, or its beginning and a star\n"),
        (["--missing", "Event*Date"], "pattern"),
        (["--missing", "Weather", "--public-share", "1.2"], "--public-share: 1.2 is not between 0 and 1"),
        (["--missing", "Weather", "--public-share", "0.6", "--test-share", "0.5"], "add up"),
        (["--missing", "*"], "pattern"),
    ],
)
def test_what_cannot_be_split_is_explained(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps({"utterance": t.utterance, "parse": t.parse}) + "\n" for t in corpus(60)))
    assert main(["step", "partition", "--train", str(train), "--out", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_turns_without_trees_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tree"):
        split([Example("hello", None, str(i)) for i in range(40)], None, missing="Weather")


def test_shares_of_smcalflow_are_the_papers(data_folder: Path) -> None:
    """Mireshghallah et al., 2023, section 5.4: 3.2 % of turns have WeatherQueryApi, 10.8 % EventOnDate*."""
    path = data_folder / "smcalflow" / "train.dataflow_dialogues.jsonl.zip"
    turns = read_examples(str(path), "utterance")
    for missing, share in (("WeatherQueryApi", 0.033), ("EventOnDate*", 0.107)):
        parts = split(turns, None, missing=missing)
        assert len(parts.private) == pytest.approx(0.8 * len(turns), rel=0.01)
        with_function = sum(uses_function(turn.parse, missing) for turn in parts.private)
        assert with_function / len(parts.private) == pytest.approx(share, rel=0.1)
