"""Tables, text and folders of every form become the same turns, and what cannot be read is named by its line."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from table_files import FORMS, TEXT_FORMS, write_table

from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.check import check
from datamodules.reading.attribute_codes import control_code, labels_of
from datamodules.reading.columns import Columns, ReferenceColumns, reference_columns
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest
from datamodules.reading.units import unit_name
from datamodules.text_format import TextFormat
from doppel.errors import DataError
from doppel.privacy.spec import plan

SECRET = "zebra"
OWN = Columns(text="review", label=["category", "review_stars"], unit="user id", parse="tree")
ROWS = [
    {
        "review": 'say "hi", then\nleave; or\tstay',
        "category": "Food",
        "review_stars": 5.0,
        "user id": "ana",
        "tree": "(A)",
    },
    {"review": "no news", "category": "Bars", "review_stars": 1.0, "user id": "zoé", "tree": '(Find "a, b")'},
    {"review": " two spaces ", "category": "Bars", "review_stars": 2.5, "user id": "zoe\u0301", "tree": "(B (C))"},
]


@pytest.mark.parametrize("form", FORMS)
def test_the_columns_that_are_named_are_read(tmp_path: Path, form: str) -> None:
    path = write_table(tmp_path / form, form, ROWS)
    first, second, third = read_examples(path, "user", columns=OWN)
    assert first == Example(str(ROWS[0]["review"]), "(A)", "ana", "Category: Food | Review Stars: 5")
    assert (second.unit, second.parse) == (third.unit, '(Find "a, b")')
    assert third.utterance == " two spaces " and third.parse == "(B (C))"


def is_name(text: str) -> bool:
    try:
        return bool(unit_name(text))
    except ValueError:
        return False


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1).filter(is_name)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)
table = st.lists(st.fixed_dictionaries({"text": texts, "label": names, "unit": names}), min_size=1, max_size=12)


@given(rows=table.filter(lambda rows: any(row["text"].strip() for row in rows)))
@example(rows=[{"unit": "ana", "label": "a", "text": "b"}, {"unit": "\ufeffzoe", "label": "a", "text": "b"}])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_rows_are_the_same_turns_and_units_in_every_form(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    paths = [write_table(tmp_path / form, form, rows) for form in FORMS]
    for unit in ("utterance", "user"):
        found = [read_examples(path, unit) for path in paths]  # type: ignore[arg-type]
        assert all(turns == found[0] for turns in found)
        assert [turn.utterance for turn in found[0]] == [row["text"] for row in rows if row["text"].strip()]


@given(rows=table.filter(lambda rows: all(row["text"].strip() for row in rows)), place=st.integers(0, 11))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("form", ["csv", "parquet", "saved"])
def test_a_person_less_takes_the_turns_of_this_person_alone(
    tmp_path: Path, form: str, rows: list[dict[str, Any]], place: int
) -> None:
    everybody = read_examples(write_table(tmp_path / form, form, rows), "user")
    person = everybody[place % len(rows)].unit
    others = [row for row, turn in zip(rows, everybody, strict=True) if turn.unit != person]
    if others:
        left = read_examples(write_table(tmp_path / form, form, others), "user")
        assert left == [turn for turn in everybody if turn.unit != person]


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_text_alone_is_one_utterance_a_line(tmp_path: Path, form: str) -> None:
    path = write_table(tmp_path, form, [{"text": "hello"}, {"text": " "}, {"text": "café"}])
    columns = None if form == "strings" else Columns(text="review")  # the lines of a text have no names
    assert [turn.utterance for turn in read_examples(path, "utterance", columns=columns)] == ["hello", "café"]


def test_every_form_gives_the_same_units_to_a_training_and_the_same_epsilon(tmp_path: Path, tokenizer: Any) -> None:
    rows = [{"text": f"find {i}", "unit": f"u{i % 10}"} for i in range(30)]
    found, calibrate = set(), cache(plan)
    for form in FORMS:
        data = DialogueDataModule(write_table(tmp_path / form, form, rows), unit="user", batch_size=5)
        data.text_format = TextFormat(tokenizer, None, "utterance", 64)
        data.setup("fit")
        spec = calibrate(data.num_units, 5, 1.0, target_epsilon=8.0, unit=data.unit)
        found.add((data.num_units, tuple(data.train_examples().ids.tolist()), repr(spec)))
    assert len(found) == 1


def test_a_fingerprint_knows_the_columns_and_all_files_of_a_folder(tmp_path: Path) -> None:
    rows = [{"text": "a", "other": "b"}, {"text": "c", "other": "d"}]
    paths = [write_table(tmp_path / form, form, rows) for form in FORMS]
    prints = {content_digest(path, columns=columns) for path in paths for columns in (None, Columns(text="other"))}
    assert len(prints) == 2 * len(FORMS)
    saved = paths[FORMS.index("saved")]
    before = content_digest(saved)
    write_table(Path(saved), "saved", [*rows[:1], {"text": "c", "other": "e"}])
    assert content_digest(saved) != before


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.csv", f'text,unit\nhi,u\n"{SECRET}\nhi\n', ":3"),
        ("a.csv", f'text,unit\nhi,u\n"a\nb",u\n"{SECRET}"x\n', ":5"),
        ("a.csv", f"text,unit\nhi,a\n{SECRET}\n", ":3"),
        ("a.csv", f"text,label,text\n{SECRET},a,b\n", ":1"),
        ("a.csv", f"{SECRET} is here\nhi\n", ":1"),
        ("a.csv", f"review,stars\n{SECRET},5\n", ":1"),
        ("a.tsv", f"text\tunit\n{SECRET}\t \n", ":2"),
        ("a.csv", f"text,unit\n{SECRET},\n", ":2"),
        ("a.csv", f"text,unit,parse\nhi,u,(A)\n{SECRET},u,{SECRET}\n", ":3"),
        ("a.json", f'[{{"text": "{SECRET}", "unit": "u"}}, 7]', ", entry 2"),
        ("a.json", f'[{{"text": "{SECRET}",\n "unit": }}]', ":2"),
        ("a.json", f'{{"text": ["{SECRET}"], "unit": "u"}}\n', ":1"),
        ("a.txt", f"{SECRET}\n", ":1"),
        ("a.xlsx", SECRET, ""),
        ("a.parquet", SECRET, ""),
        ("a.csv", "", ""),
        ("a.csv", "text,unit\n", ""),
    ],
)
def test_what_cannot_be_read_is_named_and_never_quoted(tmp_path: Path, name: str, content: str, place: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    with pytest.raises(DataError) as refused:
        read_examples(str(path), "user")
    assert refused.value.about == (f"{path}{place}" if place else "")
    assert str(refused.value).startswith(str(path))
    assert SECRET not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text;label\n“hi, there”;b\n{long};c\n"),
        ("a.csv", '"text"\t"so, or so"\tlabel\n“hi, there”\t\tb\n{long}\t\tc\n'),
        ("a.tsv", "text,label\n“hi; there”,b\n{long},c\n"),
        ("a.csv", "text|label\n“hi, there”|b\n{long}|c\n"),
        ("a.csv", "sep=;\ntext;label\n“hi, there”;b\n{long};c\n"),
        ("a.csv", '"sep=\t"\r\ntext\tlabel\r\n“hi”\tb\r\n{long}\tc\r\n'),
        ("a.csv", 'text,label,,\n"“hi, there”",b,,\n,,,\n{long},c\n'),
        ("a.csv", ",text,label\n0,“hi”,b\n1,{long},c\n"),
        ("a.csv", "text,label\r“hi”,b\r{long},c"),
    ],
)
def test_what_spreadsheets_make_of_a_table_is_the_same_table(tmp_path: Path, name: str, content: str) -> None:
    long = "a whole story " * 20_000
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / name).write_bytes(content.format(long=long).encode(encoding))
        first, second = read_examples(str(tmp_path / name), "utterance")
        assert (first.utterance[:3], first.label, second.utterance, second.label) == ("“hi", "b", long, "c")


def test_a_cell_behind_the_columns_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label,,\nhi,a,,\nhi, there,a,\n")
    with pytest.raises(DataError) as refused:
        read_examples(str(tmp_path / "a.csv"), "utterance")
    assert refused.value.about == f"{tmp_path / 'a.csv'}:3"


def test_rows_under_a_named_separator_stand_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sep=;\ntext;label\nhi;a\nhi; there;a\n")
    with pytest.raises(DataError) as refused:
        read_examples(str(tmp_path / "a.csv"), "utterance")
    assert refused.value.about == f"{tmp_path / 'a.csv'}:4"


@pytest.mark.parametrize(("name", "line"), [("a.csv", 3), ("a.tsv", 3), ("a.txt", 3), ("a.json", 3)])
def test_latin_1_is_refused_by_its_line(tmp_path: Path, name: str, line: int) -> None:
    start = '[\n"hi",\n"' if name == "a.json" else "text\nhi\n"
    (tmp_path / name).write_bytes(f"{start}café".encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8") as refused:
        read_examples(str(tmp_path / name), "utterance")
    assert refused.value.about == f"{tmp_path / name}:{line}"


@pytest.mark.parametrize(("form", "where"), [("csv", "rows.csv:1"), ("parquet", "rows.parquet, row 1")])
def test_a_wrong_column_names_the_known_ones_that_there_are(tmp_path: Path, form: str, where: str) -> None:
    path = write_table(tmp_path, form, [{"review": SECRET, "stars": "5"}])
    with pytest.raises(DataError) as refused:
        read_examples(path, "utterance", columns=Columns(text="revue"))
    assert refused.value.about == str(tmp_path / where)
    assert "'revue'" in str(refused.value) and "of its 2 columns: none;" in str(refused.value)
    for needs, place in (((), path), (("label",), str(tmp_path / where))):
        with pytest.raises(DataError, match=r"'star'.* columns: review;") as refused:
            read_examples(path, "utterance", needs=needs, columns=Columns(text="review", label="star"))
        assert refused.value.about == place


def test_folders_that_hold_several_data_sets_are_refused_with_their_names(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "train-00000-of-00001.parquet")
    assert len(read_examples(str(tmp_path), "utterance")) == 1
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "test-00000-of-00001.parquet")
    with pytest.raises(DataError, match="test, train"):
        read_examples(str(tmp_path), "utterance")
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with pytest.raises(DataError, match="train, test.*/train"):
        read_examples(str(tmp_path), "utterance")


def test_the_classes_of_a_hugging_face_data_set_are_labels_by_their_names(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"names": ["bars", "food"], "_type": "ClassLabel"}}}}
    schema = pyarrow.schema([("text", "string"), ("label", "int64")], {"huggingface": json.dumps(features)})
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [1, None]}, schema), tmp_path / "a.parquet")
    assert [turn.label for turn in read_examples(str(tmp_path / "a.parquet"), "utterance")] == ["food", None]


def test_control_codes_have_the_form_of_the_paper() -> None:
    wanted = "Business Category: Restaurants | Review Stars: 5.0"
    assert control_code({"business_category": "Restaurants", "review_stars": "5.0"}) == wanted
    assert control_code({"label1": "Business Category: Restaurants", "label2": "Review Stars: 5.0"}) == wanted


@given(st.lists(st.tuples(st.text("aZ é1.&/:|-", min_size=1), st.sampled_from("12345")), min_size=1, max_size=3))
def test_the_labels_of_a_control_code_are_those_that_it_was_made_of(rows: list[tuple[str, str]]) -> None:
    rows = [(re.sub(r"[:|]", "", kind).strip() or "none", stars) for kind, stars in rows]
    codes = [control_code({"business_kind": kind, "stars": stars}) for kind, stars in rows]
    assert labels_of(codes) == {"Business Kind": [kind for kind, _ in rows], "Stars": [stars for _, stars in rows]}
    assert labels_of(["calendar", "travel"]) == {"label": ["calendar", "travel"]}
    assert labels_of(["Kind: a | Stars: 1", "Kind: b"]) == {"Kind": ["a", "b"], "Stars": ["1", ""]}


def test_a_column_that_is_a_label_is_no_tree(tmp_path: Path) -> None:
    path = write_table(tmp_path, "csv", [{"text": "hi", "parse": "calendar"}])
    with pytest.raises(DataError, match=r"data\.columns\.label=parse.*systems=\[labels\]") as refused:
        read_examples(path, "utterance")
    assert refused.value.about == f"{path}:2"
    (turn,) = read_examples(path, "utterance", columns=Columns(label="parse"))
    assert (turn.parse, turn.label) == (None, "calendar")


def test_a_reference_of_another_form_is_read_by_its_usual_names(tmp_path: Path) -> None:
    plain = write_table(tmp_path / "a", "jsonl", [{"utterance": "hi", "tree": "(A)"}])
    columns = reference_columns(OWN)
    assert columns is not None and reference_columns(None) is None
    assert read_examples(plain, "utterance", columns=columns)[0] == Example("hi", "(A)", "1")
    same = write_table(tmp_path / "b", "csv", ROWS)
    assert read_examples(same, "user", columns=columns) == read_examples(same, "user", columns=OWN)


def test_a_reference_whose_first_row_lacks_a_column_keeps_the_labels_of_the_others(tmp_path: Path) -> None:
    rows = [{"review": "a"}, {"review": "b", "stars": 5.0}, {"review": "c", "stars": "4"}]
    path = write_table(tmp_path, "jsonl", rows)
    own = Columns(text="review", label="stars")
    for columns in (own, reference_columns(own)):
        assert [turn.label for turn in read_examples(path, "utterance", columns=columns)] == [None, "5", "4"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [5, 5.0, "5", "5.0", True, "TRUE", "yes", "1.10", "007", None])
def test_a_label_is_the_same_whatever_the_form_says_it_with(tmp_path: Path, form: str, value: Any) -> None:
    wanted = {"5": "5", "5.0": "5", "True": "true", "TRUE": "true", "None": None}.get(str(value), value)
    path = write_table(tmp_path, form, [{"text": "a", "label": value}])
    assert [turn.label for turn in read_examples(path, "utterance")] == [wanted]


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "decimal128(5, 2)"])
def test_a_number_of_a_column_of_any_type_is_the_label_that_a_text_of_it_is(tmp_path: Path, kind: str) -> None:
    values = [Decimal("5"), Decimal("4.25"), Decimal("-0.5"), None, *([] if kind == "float16" else [Decimal("4.31")])]
    numbers = values if kind.startswith("decimal") else [None if v is None else float(v) for v in values]
    column = pyarrow.array(numbers, "float64").cast(kind) if kind.startswith("float") else pyarrow.array(numbers)
    parquet.write_table(pyarrow.table({"text": ["a"] * len(values), "label": column}), tmp_path / "a.parquet")
    texts = [{"text": "a", "label": "" if v is None else str(v)} for v in values]
    theirs = read_examples(write_table(tmp_path, "csv", texts), "utterance")
    assert read_examples(str(tmp_path / "a.parquet"), "utterance") == theirs


def test_the_domain_of_a_dialogue_is_a_label_by_the_rule_of_rows(tmp_path: Path) -> None:
    said = [5.0, " 5 ", True, None, "calendar"]
    turns = [{"user_utterance": {"original_text": "a"}, "tags": {"domain": domain}} for domain in said]
    (tmp_path / "a.jsonl").write_text(json.dumps({"dialogue_id": "d", "turns": turns}) + "\n")
    found = read_examples(str(tmp_path / "a.jsonl"), "dialogue")
    assert [turn.label for turn in found] == ["5", "5", "true", None, "calendar"]
    (tmp_path / "a.jsonl").write_text(json.dumps({"dialogue_id": "d", "turns": [turns[0] | {"tags": {"domain": []}}]}))
    with pytest.raises(DataError, match="'domain' is a list"):
        read_examples(str(tmp_path / "a.jsonl"), "dialogue")


@pytest.mark.parametrize("name", ["", " ", "NULL", "NaN", "none", "n/a", "N/A", "<NA>", "#N/A", "\\N", "-", "?"])
def test_a_unit_that_is_nobody_is_refused_by_its_line(tmp_path: Path, name: str) -> None:
    for form, line in (("csv", 3), ("jsonl", 2)):
        path = write_table(tmp_path, form, [{"text": "a", "unit": "Nana"}, {"text": "b", "unit": name}])
        with pytest.raises(DataError, match="'unit' is empty.*give everybody a name") as refused:
            read_examples(path, "user")
        assert refused.value.about == f"{path}:{line}"


@pytest.mark.parametrize("sign", ["\0", "\x1b", "\x1f", "\x85", "\x07"])
def test_names_that_differ_by_a_control_character_are_never_one_unit(tmp_path: Path, sign: str) -> None:
    path = write_table(tmp_path, "jsonl", [{"text": "a", "unit": "ana"}, {"text": "b", "unit": f"ana{sign}"}])
    with pytest.raises(DataError, match="control character") as refused:
        read_examples(path, "user")
    assert refused.value.about == f"{path}:2"


@pytest.mark.parametrize("columns", [{"txt": "review"}, {"text": ["a", "b"]}, {"label": []}, ["review"]])
def test_columns_that_are_none_are_refused(columns: Any) -> None:
    with pytest.raises(DataError, match=r"data\.columns"):
        Columns.from_config({"columns": columns})


def test_a_column_of_users_is_not_passed_over_where_each_row_would_be_protected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="data.unit=user"):
        DialogueDataModule(str(tmp_path / "a.csv"), columns=Columns(unit="user_id"))


@pytest.mark.parametrize("named", [{"messages": "messages"}, {"messages": "messages", "unit": "uid"}, {"unit": "uid"}])
def test_lines_are_no_units_of_the_columns_that_are_named(tmp_path: Path, named: dict[str, str]) -> None:
    """The ledger would say user or conversation, and each line would be protected by itself."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match="it has no columns, and data.columns names") as refused:
        read_examples(str(tmp_path / "a.txt"), None if "messages" in named else "user", columns=Columns(**named))
    assert refused.value.about == str(tmp_path / "a.txt")
    assert len(read_examples(str(tmp_path / "a.txt"), "utterance", columns=ReferenceColumns(**named))) == 2


def test_a_check_names_the_first_row_of_a_kind_and_counts_public_rows_alone(tmp_path: Path) -> None:
    texts = ["hi", "", "x" * 50, " ", "y" * 60]
    path = write_table(tmp_path, "csv", [{"text": text, "label": "a" if text else "b"} for text in texts])
    known = {"labels": ["b"], "is_over_long": lambda turn: len(turn.utterance) > 20}
    empty, long, unknown = check(path, **known).notes  # type: ignore[arg-type]
    assert empty == f"{path}:3 has no text; such rows are left out"
    assert long.startswith(f"{path}:4 is longer than the model's max_length") and "of" not in long.split()
    assert unknown.startswith(f"{path}:2 has a label that the public list lacks")
    counted = check(path, is_public=True, **known).notes  # type: ignore[arg-type]
    assert counted[0].endswith("(2 of 3 rows)") and counted[1].endswith("(2 of 3 rows)")
    for none_fits in (False, True):
        longest = {"is_over_long": lambda turn, none_fits=none_fits: none_fits or len(turn.utterance) > 20}
        for given_too, refuses in (({}, none_fits), ({"truncate": True}, False), ({"is_public": True}, False)):
            with pytest.raises(DataError, match="no row fits") if refuses else nullcontext():
                check(path, **longest, **given_too)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'parse'") as refused:
        check(path, needs=("utterance", "parse"))
    assert refused.value.about == f"{path}:1"
    with pytest.raises(DataError, match="NOWHERE"):
        check("$NOWHERE/own.jsonl")


def test_times_that_python_cannot_say_are_refused_where_they_are_read(tmp_path: Path) -> None:
    there = pyarrow.timestamp("us", tz="Mars/Olympus")
    times = pyarrow.array([9 * 10**17, 10**9], type=pyarrow.timestamp("us"))
    nested = pyarrow.array([{"at": 7}, None], type=pyarrow.struct([("at", there)]))
    days = pyarrow.array([[2**31 - 1], [1]], type=pyarrow.list_(pyarrow.date32()))
    table = {"text": ["a", "b"], "unit": times, "here": times.cast(there), "nested": nested, "days": days}
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    assert [example.utterance for example in read_examples(str(tmp_path / "a.parquet"), "utterance")] == ["a", "b"]
    for name in ("unit", "here", "nested", "days"):
        with pytest.raises(DataError, match=rf"row 1: '{name}' is a UnreadTime: give a text or a whole number"):
            read_examples(str(tmp_path / "a.parquet"), "user", columns=Columns(unit=name))
