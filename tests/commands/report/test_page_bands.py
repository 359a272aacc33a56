"""What a page says of its metrics: bands with advice that measured runs bear out, and when samples are no good."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_blocks import ROOT
from page_content import Element, make_samples, read_html
from run_folders import edit_manifest, end_step, evaluate

import cli
from commands.quality.measures import BANDS, LEAST_FOR_MAUVE, band, human_value
from commands.report.quality import not_good_enough
from commands.run_folder.steps import File
from doppel.console.plan import measured_runs

#: Human values of SMCalFlow's metrics, as ``evaluate`` names them.
HUMAN = {"human_mauve_minilm": 0.965, "human_mauve_smollm2_135m": 0.955, "human_fluency": 6.71}
FILES = ("docs/results/judged.csv", "docs/results/small-data.csv", "benchmarks/results/samples-nvidia-h100.csv")


def page(run: Path) -> Element:
    assert cli.main(["report", str(run)]) == 0
    return read_html(run / "report.html")


def measured() -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Of each run of the results: what it is called, its ε, and its metrics; people have the ε nan."""
    for name in FILES:
        runs: dict[tuple[str, ...], dict[str, Any]] = defaultdict(dict)
        for row in csv.DictReader((ROOT / name).open(encoding="utf-8")):
            key = [value for column, value in row.items() if column not in ("metric", "value", "commit")]
            runs[(row["epsilon"], *key)][row["metric"]] = float(row["value"])
        for (epsilon, *key), values in runs.items():
            yield " ".join(key), float(epsilon or "nan"), {**HUMAN, **values}


#: Runs of the default way to train and to sample, at the ε that people use.
USUAL = [
    values
    for key, epsilon, values in measured()
    if epsilon in (1.0, 3.0, 8.0) and not re.search("beams|mean|135m|fluent|kept|corrected one", key)
]


def test_no_usual_run_is_called_worse_than_usual() -> None:
    assert len(USUAL) > 30
    for values in USUAL:
        for name in ("fluency_outliers", "fluency", "word_overlap", "parsed_chi_square", "parsed_function_overlap"):
            found = band(values, name)
            assert name not in values or (found is not None and found.text.startswith("Where runs")), (name, values)
        assert not any(found.is_bad for name in BANDS if "mauve" not in name and (found := band(values, name)))


def test_samples_that_repeat_no_more_than_people_are_not_told_that_they_repeat_themselves() -> None:
    for name, value, human in (("distinct", 0.7, "reference_distinct"), ("word_overlap", 0.2, "human_word_overlap")):
        assert band({name: value}, name) is BANDS[name][0]
        assert band({name: value, human: value - 0.1}, name) is None
        assert band({name: value, human: value + 0.1}, name) is BANDS[name][0]


def test_a_mauve_of_halves_tells_only_what_is_far() -> None:
    for value, is_told in ((0.3, True), (0.7, False), (0.93, False)):
        values = {"mauve_minilm": value, "human_mauve_minilm": 0.95, "num_compared": 775}
        assert band({**values, "human_num_compared": 775}, "mauve_minilm") is not None
        found = band({**values, "human_num_compared": 387}, "mauve_minilm")
        assert (found is not None and found.is_bad) == is_told and (found is None or found.is_bad)


def test_a_band_names_the_values_that_runs_had() -> None:
    """Every range of a band "where runs are" holds those runs, and is no wider than they are, rounded."""
    for name, bands in BANDS.items():
        values = [own[name] for own in USUAL if name in own]
        (usual,) = [band for band in bands if band.text.startswith("Where")] or [None]
        told = re.search(r"\((\.?\d+)–(\.?\d+)( %)?\)", usual.text) if usual is not None else None
        if told is not None and name not in ("distinct", "word_overlap"):
            low, high = (float(number) / (100 if told[3] else 1) for number in told.groups()[:2])
            assert low - 0.006 <= min(values) and max(values) <= high + 0.006, (name, min(values), max(values))
            assert max(values) - min(values) > 0.6 * (high - low), (name, min(values), max(values))


def test_a_low_mauve_is_told_with_the_measured_runs_that_had_one() -> None:
    far = BANDS["mauve_minilm"][0]
    runs = [
        (int(run["num_units"]), part)
        for run in measured_runs()
        for name in ("mauve_minilm", "mauve_smollm2_135m")
        if (part := float(run[name]) / float(run[f"human_{name}"])) < far.below
    ]
    sizes, parts = zip(*runs, strict=True)
    assert f"{min(sizes):,} to {max(sizes):,} requests" in far.text
    assert f"({min(parts):.2f}–{max(parts):.2f} of".replace("0.", ".") in far.text


def test_advice_is_given_once() -> None:
    """No two bands of a page say so much alike."""
    texts = [{*band.text.split()} for bands in BANDS.values() for band in bands if not band.text.startswith("Where")]
    pairs = [(one, other) for one, other in combinations(texts, 2) if one != other]
    assert max(len(one & other) / min(len(one), len(other)) for one, other in pairs) < 0.6


def test_what_repeated_itself_or_had_few_requests_is_far() -> None:
    for key, _, values in measured():
        is_far = "beams" in key or "2,000 rows" in key
        found = band(values, "mauve_minilm")
        if is_far and human_value(values, "mauve_minilm") and "human" not in key:
            assert found is not None and found.is_bad, key
        if "beams" in key:
            assert (
                band(values, "distinct") == BANDS["distinct"][0]
                and band(values, "word_overlap") == BANDS["word_overlap"][0]
            )


def test_web_texts_are_told_first_whatever_mauve_says(tmp_path: Path) -> None:
    run = make_samples(tmp_path / "run", [{"utterance": "say", "parse": "(Yield (Ask))"}] * 9, "two_stage")
    make_samples(run, [{"utterance": "Copyright 2014", "parse": None}] * 9, "one_stage")
    web = {"mauve_minilm": 0.831, "fluency_outliers": 0.767}
    for name, values in (("one_stage", web), ("two_stage", {"mauve_minilm": 0.7, "fluency_outliers": 0.12})):
        evaluate(
            run, name, {"num_compared": 855, "human_mauve_minilm": 0.954, "human_fluency_outliers": 0.017, **values}
        )
    read = page(run)
    figures = read.all("table", class_="figures")[0].all("tbody")[0].all("th")
    assert [row.words.split(" share")[0] for row in figures][0] == "above human 95th percentile"
    warning, card = [badge.words for badge in read.all("header")[0].all("p", class_="badge")]
    assert (
        warning.startswith("1-stage: its samples are not good enough to read or to use.") and "no requests" in warning
    )
    assert "Above human 95th percentile 76.7 % (95 % CI 73.8 % to 79.4 % of 855 samples, people 1.7 %)." in warning
    assert card.startswith("NOT PRIVATE") and "a base that reads English" in read.all("header")[0].words
    header = read.all("header")[0].text
    assert header.index("not good enough") < header.index(read.all("h1")[0].text), "it stands first"
    lists = read.all("section", id="utterances")[0].all("ol")
    folded = ["folded" in str(own.parent and own.parent.attributes.get("class")) for own in lists]
    assert folded == [False, True], "those that are good stay open"
    headings = [heading.words.split()[0] for heading in read.all("section", id="utterances")[0].all("h3")]
    assert headings == ["2-stage", "1-stage"], "the higher MAUVE does not put them first"


def test_few_samples_are_judged_too_with_an_interval_and_good_ones_are_not_folded(tmp_path: Path) -> None:
    for share, is_far in ((0.767, True), (0.1, False)):
        run = make_samples(tmp_path / f"run{share}", [{"utterance": "say"}] * 9, "one_stage")
        evaluate(run, "one_stage", {"num_compared": 40, "fluency_outliers": share, "human_fluency_outliers": 0.05})
        read = page(run)
        assert ("not good enough" in read.all("header")[0].words) == is_far
        assert bool(read.all("section", id="utterances")[0].all("details", class_="folded")) == is_far
        assert "beams" not in read.all("header")[0].words, "advice is of this run"
        if is_far:
            assert "95 % CI 62.5 % to 87.7 % of 40 samples, people 5.0 %" in read.all("header")[0].words


@pytest.mark.parametrize(("precision", "is_far"), [(0.105, True), (0.7, False)])
def test_what_is_made_of_samples_far_from_people_is_folded_however_few(
    precision: float, is_far: bool, tmp_path: Path
) -> None:
    """Forty samples that people would not take for theirs, though a language model of the same kin finds them smooth:
    neither they nor what is counted in them is shown, and the advice is what this run lacks."""
    run = make_samples(tmp_path / "run", [{"utterance": u, "label": u} for u in ["refund", "bill"] * 20], "labels")
    evaluate(
        run,
        "labels",
        {
            **{"num_compared": 40, "fluency_outliers": 0.002, "human_fluency_outliers": 0.05},
            **{"precision_minilm": precision, "human_precision_minilm": 0.9},
        },
    )
    read = page(run)
    head, asked = read.all("header")[0], read.all("section", id="asked")[0]
    assert ("Precision (MiniLM features) 10.5 % (95 % CI " in head.words) == is_far
    assert ("of 40 samples, people 90.0 %" in head.words) == is_far
    assert ("of what this run has not: a base that reads English" in head.words) == is_far
    assert (read.all("h1")[0].words == "These samples do not tell what people ask for") == is_far
    for own in (asked.all("table")[0], read.all("section", id="utterances")[0].all("ol")[0]):
        assert ("folded" in str(own.parent and own.parent.attributes.get("class"))) == is_far
    assert ("Most often they ask for" in head.words) == (not is_far)
    assert "beams" not in read.words, "none were used"


def test_a_mauve_decides_where_no_precision_does() -> None:
    """By the sheet of readers: 35 of 40 samples of a low MAUVE were usable, none or one of those of a low precision."""
    values = {"num_compared": 855, "mauve_minilm": 0.552, "human_mauve_minilm": 0.967}
    assert "Far from people's" in not_good_enough({"one_stage": values})["one_stage"][0]
    assert not_good_enough({"one_stage": {**values, "precision_minilm": 0.86, "human_precision_minilm": 0.804}}) == {}
    (told,) = not_good_enough({"x": {**values, "precision_minilm": 0.476, "human_precision_minilm": 0.804}})["x"]
    assert told.startswith("Precision (MiniLM features) 47.6 %")


@pytest.mark.parametrize(("kept", "told"), [(0.9, "not read as pay"), (0.5, "They do not follow their labels")])
def test_samples_that_do_not_follow_their_labels_are_told(kept: float, told: str, tmp_path: Path) -> None:
    """Examples of a label are of samples that a public encoder reads as it; a label without any shows none."""
    lines = [{"utterance": f"say {label}", "label": label, "fits": label == "refund"} for label in ("refund", "pay")]
    run = make_samples(tmp_path / "run", lines * 20, "labels")
    record = {"num_kept": 40, "num_candidates": 320, "kept_match": kept, "candidates_match": 0.52, "chance_match": 0.5}
    (run / "labels/samples.jsonl.kept.json").write_text(json.dumps(record))
    end_step(
        run, "labels-choose", ["keep-best"], [File("labels/samples.jsonl.kept.json", "metrics", "labels", "labels")]
    )
    read = page(run)
    asked = read.all("section", id="asked")[0].words
    assert (
        told in read.words and "52% of all 320 that were drawn, and 50% as one at random: the model does not" in asked
    )
    assert "say refund" in asked and "say pay" not in asked and "no sample is read as it" in asked


@pytest.mark.parametrize(("adherence", "is_useless"), [(0.313, True), (0.651, False)])
def test_texts_that_ignore_their_attributes_are_useless(adherence: float, is_useless: bool, tmp_path: Path) -> None:
    run = make_samples(tmp_path / "run", [{"utterance": "good", "label": "Stars: 5"}] * 9, "attributes")
    values = {"attribute_adherence": adherence, "attribute_adherence_chance": 0.311 if is_useless else 0.586}
    evaluate(run, "attributes", {"num_compared": 1500, **values})
    head = page(run).all("header")[0].words
    assert ("Only the tables hold" in head) == is_useless


def test_no_mauve_of_few_samples_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (LEAST_FOR_MAUVE - 1, LEAST_FOR_MAUVE):
        run = make_samples(tmp_path / str(number), [{"utterance": "yes"}] * 9, "one_stage")
        values = {"num_compared": number, "mauve_minilm": 0.8765, "human_mauve_minilm": 0.9543, "word_overlap": 0.3}
        evaluate(run, "one_stage", values)
        read = page(run)
        text = (run / "report.html").read_text() + capsys.readouterr().out
        assert (".876" in text or ".877" in text) == (".954" in text) == (number >= LEAST_FOR_MAUVE)
        assert text.count("needs at least 500 samples") == (2 if number < LEAST_FOR_MAUVE else 0), "page and console"
        assert ("needs at least 500 samples" in read.all("section", id="quality")[0].words) == (
            number < LEAST_FOR_MAUVE
        )


def test_terms_have_a_tip_where_they_stand_and_an_entry_in_the_glossary(tmp_path: Path) -> None:
    run = make_samples(tmp_path / "run", [{"utterance": "yes"}] * 9, "one_stage")
    evaluate(run, "one_stage", {"mauve_minilm": 0.8, "parsed_chi_square": 0.1})
    read = page(run)
    tips = {tip.words: tip.attributes["title"] for tip in read.all("abbr")}
    (glossary,) = read.all("section", id="glossary")
    entries = dict(zip([e.words for e in glossary.all("dt")], [e.words for e in glossary.all("dd")], strict=True))
    assert {"MAUVE", "χ²"} <= tips.keys() and tips.items() <= entries.items()
    (fold,) = glossary.all("details")
    assert "open" not in fold.attributes and "more" in fold.attributes["class"], "the script opens it in print"


def test_beams_are_named_where_some_were_used(tmp_path: Path) -> None:
    run = make_samples(tmp_path / "run", [{"utterance": "say"}] * 9, "one_stage")
    edit_manifest(run, "one_stage/samples.jsonl", command=["predict", "--run_dir", "sample_one_stage"])
    (run / "sample_one_stage").mkdir()
    for num, is_told in ((5, True), (1, False)):
        content = {"model": {"init_args": {"sampling": {"num_beams": num}}}}
        (run / "sample_one_stage" / "predict.yaml").write_text(yaml.safe_dump(content))
        told = page(run).all("section", id="quality")[0].words
        assert ("one_stage was sampled with 5 beams" in told) == is_told
