"""The attacker chooses how a file names and orders people, so that one person moves more than one unit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from private_training import data_module, fit, privacy
from run_folders import go_on, mark

import cli
from callbacks.differential_privacy import PrivateTrainingError
from commands.run.experiment.experiment import load, shipped
from commands.run.preflight import estimate
from datamodules.guards.selection import Selection
from datamodules.reading.columns import Columns
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.units import folded_name, unit_name
from datamodules.unit_data_module import UnitDataModule
from doppel.errors import DataError, UserError
from lightning_modules.causal_lm import UtteranceLM

NFC, NFD = "zoé@example.com", "zoe\u0301@example.com"


def write(path: Path, records: list[dict[str, object]]) -> str:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


def dialogue(name: object, *texts: str) -> dict[str, object]:
    turns = [{"user_utterance": {"original_text": text}, "lispress": "(A)"} for text in texts]
    return {"dialogue_id": name, "turns": turns}


def test_a_line_more_at_the_front_changes_no_other_line_of_a_kept_share(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [{"utterance": f"find {i % 40}", "unit": f"u{i % 7}"} for i in range(400)]
    selection = Selection(keep_share=0.4)

    def kept(name: str, records: list[dict[str, object]]) -> Counter[str]:
        path = write(tmp_path / name, records)
        return Counter(turn.utterance for turn in selection.apply(read_examples(path, "utterance"), path, "utterance"))

    with_it, without = kept("with.jsonl", [{"utterance": "find 3"}, *lines]), kept("without.jsonl", lines)
    assert 100 < without.total() < 220
    assert (with_it - without).total() + (without - with_it).total() <= 1


def test_equal_lines_are_kept_by_coins_of_their_own() -> None:
    lines = [Example("yes", None, str(number)) for number in range(400)]
    assert 140 < len(Selection(keep_share=0.5).apply(lines, "yes.jsonl", "utterance")) < 260


def test_the_first_units_alone_are_no_private_training(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    with pytest.raises(PrivateTrainingError, match="limit_train_units.*keep_share"):
        fit(
            tmp_path, UtteranceLM(base_model=tiny_model), data_module(corpus, limit_train_units=40), [privacy(tmp_path)]
        )
    assert not (tmp_path / "ledger.jsonl").exists()


def test_two_dialogues_of_one_id_are_refused_by_their_lines_and_not_by_their_name(tmp_path: Path) -> None:
    path = write(
        tmp_path / "two.jsonl", [dialogue("ana@x.org", "hi"), dialogue("b", "no"), dialogue("ana@x.org", "yo")]
    )
    with pytest.raises(DataError, match=r"two.jsonl:3: the dialogue_id of line 1 again") as refused:
        read_examples(path, "dialogue")
    assert "ana" not in str(refused.value)


def test_turns_of_dialogues_of_one_id_are_utterances_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "two.jsonl", [dialogue("a", "hi", "you"), dialogue("a", "no", "you")])
    assert len({turn.unit for turn in read_examples(path, "utterance")}) == 4


@pytest.mark.parametrize("unit", ["dialogue", "user"])
def test_two_spellings_of_a_name_are_one_person(tmp_path: Path, unit: str) -> None:
    names: list[object] = [NFC, NFD, f" {NFC}\n", 7, "7"]
    path = write(tmp_path / "own.jsonl", [{"utterance": "hi", "unit": name} for name in names])
    assert [turn.unit for turn in read_examples(path, unit)] == [NFC] * 3 + ["7"] * 2  # type: ignore[arg-type]


def test_two_spellings_of_a_name_are_one_person_in_rows_of_ones_own() -> None:
    rows = [{"user": name, "text": "hi"} for name in (NFC, NFD, "b", "c")]
    assert UnitDataModule(rows, "user", list, batch_size=2).num_units == 3


@pytest.mark.parametrize("name", ["", "  ", ["a"], {"mail": "a"}, True, 1.5])
def test_a_name_that_names_nobody_is_refused_by_its_line(tmp_path: Path, name: object) -> None:
    path = write(tmp_path / "own.jsonl", [{"utterance": "hi", "unit": "a"}, {"utterance": "hi", "unit": name}])
    with pytest.raises(DataError, match="'unit'") as refused:
        read_examples(path, "user")
    assert refused.value.about == f"{path}:2"


TURN_IDS = st.sampled_from(["1", "1#1", "1#2", "1#2#2", "1#1#1", "0#2", "0", 1, "#", ""])


@given(st.lists(st.tuples(st.sampled_from(["a", "a#2", "a/1"]), st.lists(TURN_IDS, min_size=1)), min_size=1))
@settings(max_examples=100)
@example([("a", ["1", "1", "1#2"])])
@example([("a", ["1", "1#1", "1"])])
@example([("a", ["0#2", "0", "0"])])
def test_turns_are_units_of_their_own_whatever_their_ids(dialogues: list[tuple[str, list[object]]]) -> None:
    with TemporaryDirectory() as folder:
        records = [dialogue(name, *("hi" for _ in ids)) for name, ids in dialogues]
        for record, (_, ids) in zip(records, dialogues, strict=True):
            for turn, index in zip(record["turns"], ids, strict=True):  # type: ignore[call-overload]
                turn["turn_index"] = index
        turns = read_examples(write(Path(folder) / "ids.jsonl", records), "utterance")
    assert len({turn.unit for turn in turns}) == len(turns) == sum(len(ids) for _, ids in dialogues)


def rows_of(path: Path, people: int, column: str, rows: int = 30) -> str:
    return write(path, [{"utterance": f"find {i}", column: f"somebody {i % people}"} for i in range(rows)])


@pytest.mark.parametrize("column", ["unit", "User_ID", "dialogue_id", "author", "client", "Phone-Number", "device id"])
def test_rows_of_one_person_are_no_units_in_silence(tmp_path: Path, column: str) -> None:
    path = rows_of(tmp_path / "own.jsonl", 3, column)
    with pytest.raises(DataError, match="at line 1, and nothing says what is protected") as refused:
        read_examples(path, None)
    assert refused.value.about == f"{path}:4" and "somebody" not in str(refused.value)
    assert "data.unit=user" in str(refused.value) and "data.unit=utterance" in str(refused.value)
    assert ("data.columns.unit=" in str(refused.value)) == (column != "unit")
    assert len({turn.unit for turn in read_examples(path, "utterance")}) == 30
    assert len(read_examples(rows_of(tmp_path / "alone.jsonl", 30, column), None)) == 30


def test_turns_of_one_dialogue_are_no_units_in_silence(tmp_path: Path) -> None:
    path = write(tmp_path / "two.jsonl", [dialogue("ana@x.org", "hi"), dialogue("b", "no", "", "yo")])
    with pytest.raises(DataError, match="data.unit=dialogue") as refused:
        read_examples(path, None)
    assert refused.value.about == f"{path}:2"
    assert len(read_examples(write(tmp_path / "one.jsonl", [dialogue("a", "hi", ""), dialogue("b", "no")]), None)) == 2


@pytest.mark.parametrize("unnamed", [{}, {"dialogue_id": None}])
def test_turns_of_a_dialogue_without_an_id_are_no_units_in_silence(tmp_path: Path, unnamed: dict[str, object]) -> None:
    turns = dialogue("", "no", "yo")["turns"]
    path = write(tmp_path / "one.jsonl", [dialogue("a", "hi"), {**unnamed, "turns": turns}])
    with pytest.raises(DataError, match="data.unit=dialogue") as refused:
        read_examples(path, None)
    assert refused.value.about == f"{path}:2"
    assert [turn.unit for turn in read_examples(path, "utterance")] == ["a/0", "2/0", "2/1"]


def test_a_column_that_is_named_for_something_else_names_nobody(tmp_path: Path) -> None:
    path = rows_of(tmp_path / "own.jsonl", 3, "author")
    assert len(read_examples(path, None, columns=Columns(label="author"))) == 30


def test_a_training_asks_what_is_protected_before_anything_is_spent(
    tmp_path: Path, tiny_model: str, corpus: str
) -> None:
    model = UtteranceLM(base_model=tiny_model)
    with pytest.raises(DataError, match="nothing says what is protected"):
        fit(tmp_path, model, data_module(corpus, unit=None), [privacy(tmp_path)])
    assert not (tmp_path / "ledger.jsonl").exists()
    fit(tmp_path, model, data_module(corpus, unit=None, is_public=True), [], max_steps=1)


def test_a_run_that_was_begun_may_say_what_it_protects_and_change_nothing(tmp_path: Path) -> None:
    begun = load(shipped("own-data-small"), {"data.train_path": "own.csv"})
    said = {
        unit: load(shipped("own-data-small"), {"data.train_path": "own.csv", "data.unit": unit})
        for unit in ("user", "utterance")
    }
    mark(tmp_path, "one_stage-one_stage")
    go_on(tmp_path, begun, said["utterance"])
    with pytest.raises(UserError, match="data.unit"):
        go_on(tmp_path, begun, said["user"])


@pytest.mark.slow
def test_a_run_says_by_whom_rows_are_protected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (60.0, 180.0, None))
    path = rows_of(tmp_path / "own.jsonl", 3, "unit", rows=300)
    own = [str(tmp_path / "run"), "--systems", "one_stage", "--set", f"data.train_path={path}", "data.batch_size=30"]
    own.append("effort=1")
    for mode in ("--check", "--local"):
        assert cli.main(["run", str(shipped("own-data-small")), *own[:1], mode, *own[1:]]) == 2
        assert "nothing says what is protected" in capsys.readouterr().err
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    assert cli.main(["run", str(shipped("own-data-small")), *own[:1], "--check", *own[1:], "data.unit=utterance"]) == 0
    told = capsys.readouterr().out
    assert "says whose a request is (unit)" in told
    assert [line for line in told.splitlines() if "300" in line][0].startswith("hopeless: one_stage, 300 utterances")


#: Names of one person as programs, keyboards and people write them.
SPELLINGS = {
    "case": ("Ana@X.org", "ana@x.org", "ANA@x.org"),
    "a UUID": ("9B2F0C1E-77aa-4c1d-8f00-0242AC120002", "9b2f0c1e-77aa-4c1d-8f00-0242ac120002"),
    "a fraction of zero": ("17", "17.0", "17.00"),
    "leading zeros": ("17", "0017", "017"),
    "full width": ("1234", "１２３４", "١٢٣٤"),
    "no width": ("ana", "a\u200bna", "ana\ufeff", "a\u00adna"),
    "thousands": ("1017", "1,017", "1 017", "1,017.0"),
    "a country": ("+4915123456", "004915123456", "+49 151 234-56", "0049 (151) 23456"),
    "blanks": ("Ana Cruz", "Ana  Cruz", "Ana\u00a0Cruz"),
    "compatible": ("ﬁlip", "filip"),
}


@pytest.mark.parametrize("spellings", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("unit", ["dialogue", "user"])
def test_spellings_of_one_person_are_no_people_in_silence(tmp_path: Path, unit: str, spellings: tuple[str]) -> None:
    rows = [{"utterance": "hi", "unit": name} for name in ("b", *spellings, "c")]
    path = write(tmp_path / "own.jsonl", rows)
    with pytest.raises(DataError, match="'unit' is that of line 2 in another spelling") as asked:
        read_examples(path, unit)  # type: ignore[arg-type]
    assert asked.value.about == f"{path}:3"
    assert not any(name in str(asked.value) for name in spellings if len(name) > 2)
    for rule, number in (("exact", 2 + len(spellings)), ("folded", 3)):
        units = [turn.unit for turn in read_examples(path, unit, unit_names=rule)]  # type: ignore[arg-type]
        assert len(set(units)) == number and len(units) == len(rows)
        for row, name in zip(rows, units, strict=True):  # whatever else is in the file
            alone = read_examples(write(tmp_path / "alone.jsonl", [row]), unit, unit_names=rule)  # type: ignore[arg-type]
            assert alone[0].unit == name
    rows = [{"user": name, "text": "hi"} for name in ("b", *spellings, "c")]
    with pytest.raises(DataError, match="set unit_names=folded") as refused:
        UnitDataModule(rows, "user", list, batch_size=2)
    assert refused.value.about == "row 2"
    assert UnitDataModule(rows, "user", list, batch_size=2, unit_names="folded").num_units == 3
    assert UnitDataModule(rows, "user", list, batch_size=2, unit_names="exact").num_units == 2 + len(spellings)


def test_other_people_are_asked_about_by_nobody(tmp_path: Path) -> None:
    """Names that are numbers in part, decimals, dates, and what a program makes of a turn."""
    names = ["1_00000", "1_0000", "10_00000", "1.5", "15", "1.50", "1,5", "u007", "u7", "00:17", "0:17", "7-00", "700"]
    names += ["2024-01-01", "20240101", "ana", "anna", "ana2", "+", "0", "é", "e", "12,34", "1234", "1.017", "1017"]
    for unit in ("user", "dialogue"):
        path = write(tmp_path / "own.jsonl", [{"utterance": "hi", "unit": name} for name in names])
        assert [turn.unit for turn in read_examples(path, unit)] == names  # type: ignore[arg-type]
    assert len({folded_name(name) for name in names}) == len(names)


@given(
    st.text(), st.sampled_from([str.upper, str.lower, str.title, lambda t: f"0{t}", lambda t: f"{t}.0", lambda t: t])
)
def test_a_folded_name_stays_what_it_is(text: str, change: Callable[[str], str]) -> None:
    for name in (text, change(text)):
        try:
            folded = folded_name(unit_name(name))
        except ValueError:
            continue
        assert folded and folded_name(folded) == folded
    if text.isascii() and text.strip():
        assert folded_name(text.upper()) == folded_name(text)


def test_two_spellings_of_one_are_two_rows_of_one_where_nobody_has_said_what_a_unit_is(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", [{"utterance": "hi", "email": name} for name in ("Ana@x.org", "ana@x.org")])
    with pytest.raises(DataError, match="nothing says what is protected"):
        read_examples(path, None)


def test_dialogues_of_one_id_in_two_spellings_are_asked_about_and_never_one(tmp_path: Path) -> None:
    path = write(tmp_path / "two.jsonl", [dialogue("A-1", "hi"), dialogue("a-1", "yo")])
    with pytest.raises(DataError, match="in another spelling"):
        read_examples(path, "dialogue")
    assert len({turn.unit for turn in read_examples(path, "dialogue", unit_names="exact")}) == 2
    with pytest.raises(DataError, match="the dialogue_id of line 1 again"):
        read_examples(path, "dialogue", unit_names="folded")


@pytest.mark.slow
def test_a_run_asks_which_names_are_one_and_takes_the_answer(
    tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "forecast", lambda *_: (60.0, 180.0, None))
    rows: list[dict[str, object]] = [
        {"utterance": f"find {i}", "unit": f"{'U' if i % 2 else 'u'}{i % 600 // 2}@x.org"} for i in range(600)
    ]
    path = write(tmp_path / "own.jsonl", rows)
    own = [str(tmp_path / "run"), "--check", "--systems", "one_stage", "--set", f"data.train_path={path}", "effort=1"]
    own += ["data.batch_size=30", "data.unit=user"]
    assert cli.main(["run", str(shipped("own-data-small")), *own]) == 2
    told = capsys.readouterr().err
    assert "own.jsonl:2" in told and "data.unit_names=folded" in told and "@x.org" not in told
    for rule, number in (("folded", 300), ("exact", 600)):
        assert cli.main(["run", str(shipped("own-data-small")), *own, f"data.unit_names={rule}"]) == 0
        assert f"{number} users" in capsys.readouterr().out
    assert cli.main(["run", str(shipped("own-data-small")), *own, "data.unit_names=one"]) == 2
    assert "give one of exact, folded" in capsys.readouterr().err
    model = UtteranceLM(base_model=tiny_model)
    with pytest.raises(DataError, match="in another spelling"):
        fit(tmp_path, model, data_module(path, unit="user"), [privacy(tmp_path)])
    assert not (tmp_path / "ledger.jsonl").exists()
    data = data_module(path, unit="user", unit_names="folded")
    fit(tmp_path, model, data, [privacy(tmp_path)], max_steps=1)
    assert data.num_units == 300
    begun = load(shipped("own-data-small"), {"data.train_path": "own.csv", "data.unit": "user"})
    said = {
        rule: load(
            shipped("own-data-small"), {"data.train_path": "own.csv", "data.unit": "user", "data.unit_names": rule}
        )
        for rule in ("exact", "folded")
    }
    mark(tmp_path / "none", "one_stage-one_stage")
    go_on(tmp_path / "none", begun, said["exact"])  # as it was read before
    with pytest.raises(UserError, match="data.unit_names"):
        go_on(tmp_path / "none", begun, said["folded"])


@pytest.mark.parametrize(
    "name",
    [
        "unknown",
        "UNKNOWN_USER",
        "Unknown-User",
        "(blank)",
        "anonymous",
        "guest",
        "-1",
        "00000000-0000-0000-0000-000000000000",
    ]
    + ["0000", "[deleted]", "not_available", -1, "\ufeff", "\u200b\u2060", "gue\u00adst"],
)
def test_a_name_that_stands_for_nobody_is_refused_in_every_form(tmp_path: Path, name: object) -> None:
    rows: list[dict[str, object]] = [{"text": "hi", "unit": "ana"}, {"text": "secret", "unit": name}]
    with pytest.raises(DataError, match=r"a\.jsonl:2: 'unit' .*stands for nobody") as refused:
        read_examples(write(tmp_path / "a.jsonl", rows), "user")
    assert "secret" not in str(refused.value)
    with pytest.raises(DataError, match="stands for nobody"):
        UnitDataModule(rows, unit="user", unit_of="unit", collate=list)
    assert len(read_examples(str(tmp_path / "a.jsonl"), "utterance")) == 2  # where nobody's name counts


@pytest.mark.parametrize("name", ["0", 0, "10", "guesthouse", "Ana Unknown", "1000", "-x", "0x0"])
def test_names_that_people_have_are_read(name: object) -> None:
    assert unit_name(name) == str(name)


def test_a_name_with_far_more_rows_than_others_asks_and_tells_no_number(tmp_path: Path) -> None:
    """At ten times the 99th percentile of the others nobody is asked, with one row more somebody is."""
    others: list[dict[str, object]] = [{"text": f"{i}", "unit": f"u{i % 150}"} for i in range(300)]
    rows = [{"text": f"x{i}", "unit": "0"} for i in range(20)]
    assert len(read_examples(write(tmp_path / "a.jsonl", [*others, *rows]), "user")) == 320
    path = write(tmp_path / "b.jsonl", [*others, *rows, {"text": "one more", "unit": "0"}])
    with pytest.raises(DataError, match=r"one name in 'unit' has more than 10 times .*data\.unit_names=exact") as asked:
        read_examples(path, "user")
    assert not asked.value.about.endswith(":321") and "21" not in str(asked.value).removeprefix(path)
    for rule in ("exact", "folded"):
        assert len(read_examples(path, "user", unit_names=rule)) == 321
    assert len(read_examples(path, "utterance")) == 321
    loaded = [json.loads(line) for line in Path(path).read_text().splitlines()]
    with pytest.raises(DataError, match=r"its units 'user' has more than .*unit_names=exact"):
        UnitDataModule(loaded, unit="user", unit_of="unit", collate=list)


def test_a_long_dialogue_is_nobodys_placeholder(tmp_path: Path) -> None:
    path = write(tmp_path / "long.jsonl", [dialogue("a", "hi"), dialogue("b", *map(str, range(50)))])
    assert len(read_examples(path, "dialogue")) == 51
