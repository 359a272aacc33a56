"""``evaluate --columns.attributes``: samples that follow their attributes do so by a public reader, others do not."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cli
from commands.privacy import feature_extractors
from commands.quality.measures import measure
from datamodules.reading.attribute_codes import AttributeCodes
from doppel.metrics.attributes import adherence, jensen_shannon
from doppel.tables.schema import Column, Schema

WORDS = {"Food": ["pizza", "soup", "noodles", "cheese"], "Cars": ["engine", "tyres", "oil", "brakes"]}
SCHEMA = "kind: [Food, Cars]\nlength: {made: words, bins: [4]}\nact: {made: function, values: [Ask, Tell]}\n"
NAMES = sorted(word for words in WORDS.values() for word in words)


def embed(texts: Sequence[str], encoder: str, independent: bool = False, keep: object = None) -> np.ndarray:
    """In place of a sentence encoder, which not every machine has: which words a text holds."""
    assert keep is not None, "an evaluation keeps what it has read"
    return np.array([[float(name in text.split()) for name in NAMES] for text in texts])


@pytest.fixture(autouse=True)
def small_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_extractors, "embed", embed)


def rows(num: int, seed: int, share: float = 0.5) -> list[dict[str, Any]]:
    """Texts of two kinds, long and short, ``share`` of them about food."""
    rng = random.Random(seed)
    found = []
    for number in range(num):
        kind = "Food" if number < share * num else "Cars"
        text = " ".join(rng.choices(WORDS[kind], k=rng.choice([2, 6])))
        found.append({"utterance": text, "kind": kind, "parse": f"(Yield ({rng.choice(['Ask', 'Tell'])}))"})
    rng.shuffle(found)
    return found


def code(row: dict[str, Any], kind: str | None = None) -> str:
    length = "4 or more" if len(row["utterance"].split()) > 3 else "under 4"
    act = "Ask" if "Ask" in row["parse"] else "Tell"
    return f"Kind: {kind or row['kind']} | Length: {length} | Act: {act}"


def write(path: Path, lines: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def values_of(folder: Path, samples: list[dict[str, Any]], reference: list[dict[str, Any]], *more: str) -> Any:
    (folder / "schema.yaml").write_text(SCHEMA)
    sides = ["--synthetic", write(folder / "s.jsonl", samples), "--reference", write(folder / "r.jsonl", reference)]
    words = [*sides, "--columns.attributes", str(folder / "schema.yaml"), "--no-mauve", *more]
    assert cli.main(["evaluate", *words, "--out", str(folder / "out.json")]) == 0
    return json.loads((folder / "out.json").read_text())


def test_samples_that_follow_their_prompts_adhere_and_others_do_so_by_chance(tmp_path: Path) -> None:
    drawn, reference = rows(200, 1), rows(200, 2)
    more = ["--parsed", write(tmp_path / "parsed.jsonl", [*drawn, *reference])]
    good = [{**row, "label": code(row)} for row in drawn]
    values = values_of(tmp_path, good, reference, *more)
    assert values["attribute_adherence_kind"] == values["attribute_adherence_length"] == 1.0
    assert values["attribute_adherence"] > 0.9 and values["human_attribute_adherence"] > 0.9
    assert 0.4 < values["attribute_adherence_chance"] < 0.6
    assert values["attribute_jsd"] < 0.02 and values["human_attribute_jsd"] < 0.05
    swapped = [{**row, "label": code(row, {"Food": "Cars", "Cars": "Food"}[row["kind"]])} for row in drawn]
    assert values_of(tmp_path, swapped, reference, *more)["attribute_adherence_kind"] == 0.0


def test_other_shares_of_an_attribute_are_a_distance(tmp_path: Path) -> None:
    shifted = [{**row, "label": code(row)} for row in rows(200, 1, share=0.9)]
    values = values_of(tmp_path, shifted, rows(200, 2))
    half = jensen_shannon(["Food"] * 9 + ["Cars"], ["Food"] * 5 + ["Cars"] * 5)
    assert values["attribute_jsd_kind"] == pytest.approx(half, abs=0.06) and values["attribute_jsd_length"] < 0.02
    assert any("'Act' is not read" in note and "--parser" in note for note in values["notes"])


def test_a_reference_without_the_columns_and_samples_without_prompts_have_what_can_be_counted(tmp_path: Path) -> None:
    plain = [{"utterance": row["utterance"]} for row in rows(60, 2)]
    values = values_of(tmp_path, [{"utterance": row["utterance"]} for row in rows(60, 1)], plain)
    assert values["attribute_jsd_length"] == values["attribute_jsd"] < 0.05
    assert values["attribute_adherence"] is None and "attribute_jsd_kind" not in values
    assert any("'Kind' is not read" in note and "no columns" in note for note in values["notes"])


def test_the_figure_of_one_attribute_is_shown_as_that_of_all() -> None:
    assert measure("attribute_adherence_review_stars").show(0.5) == "50.0 %"
    assert measure("attribute_adherence_review_stars").label == "attribute accuracy, review stars"
    assert measure("attribute_adherence_chance").label == "attribute accuracy, shuffled"


def test_the_divergence_is_in_bits_and_not_its_root() -> None:
    assert jensen_shannon("aabb", "abab") == 0.0 and jensen_shannon("aa", "bbb") == 1.0
    scipy = pytest.importorskip("scipy.spatial.distance")
    found = scipy.jensenshannon([0.75, 0.25], [0.25, 0.75], base=2) ** 2
    assert jensen_shannon("aaab", "abbb") == pytest.approx(found)
    with pytest.raises(ValueError, match="no value"):
        jensen_shannon("", "a")


def test_chance_is_what_texts_have_that_are_dealt_out_anew() -> None:
    rng, wanted, read = random.Random(0), [*"aaab"] * 500, [*"abbb"] * 500
    own, by_chance = adherence(wanted, read)
    rng.shuffle(read)
    assert own == 0.5 and adherence(wanted, read) == (pytest.approx(by_chance, abs=0.03), by_chance)


def test_two_attributes_with_the_same_words_are_apart() -> None:
    codes = AttributeCodes(Schema((Column.of_values("a", ["x"]), Column.of_values("b", ["x"]))))
    assert codes.write([0, 1]) == "A: x | B: other" and codes.read("A: x | B: other") == [0, 1]


def test_samples_teach_what_they_were_written_for_and_others_nothing(tmp_path: Path) -> None:
    drawn, reference = rows(200, 1), rows(200, 2, share=0.7)
    good = values_of(tmp_path, [{**row, "label": code(row)} for row in drawn], reference)
    assert good["attribute_downstream_kind"] == good["human_attribute_downstream_kind"] == 1.0
    assert 0.6 < good["attribute_downstream_majority_kind"] < 0.8
    assert good["attribute_downstream"] is not None and "attribute_downstream_length" not in good, "words are counted"
    assert measure("attribute_downstream_majority_kind").label == "majority class, kind"
    assert measure("attribute_downstream_kind").show(0.5) == "50.0 %"
    swapped = [{**row, "label": code(row, {"Food": "Cars", "Cars": "Food"}[row["kind"]])} for row in drawn]
    assert values_of(tmp_path, swapped, reference)["attribute_downstream_kind"] == 0.0
    told = [{**row, "attributes": code(row)} for row in drawn]  # as an evolution writes what it asked with
    assert values_of(tmp_path, told, reference)["attribute_downstream_kind"] == 1.0
    plain = values_of(tmp_path, drawn, reference)
    assert plain["attribute_downstream"] is None and "attribute_downstream_kind" not in plain
