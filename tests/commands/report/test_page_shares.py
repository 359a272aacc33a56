"""The shares of a page: released ones with the interval of their noise, and what lies under it is not shown."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_content import Element, make_samples, read_html
from run_folders import end_step

import cli
from commands.report.asked import FEWEST, Sample, ask
from commands.report.names import read_names
from commands.report.released import Release, read_release, sampling_interval
from commands.report.supported import read_supported
from commands.report.tree_paths import tree_paths
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import File
from doppel.errors import UserError
from doppel.privacy.histogram import add_noise, unit_sums
from doppel.privacy.ledger import Ledger
from doppel.privacy.release import NoisyHistogram, declare
from doppel.privacy.spec import PrivacyArguments
from doppel.resampling import pool_bins, tree_vector
from doppel.text.topics import UNLIKE

SIGMA, UNITS = 5.0, 2000
NO_NAMES = read_names(None)


def page(run: Path) -> Element:
    assert cli.main(["report", str(run)]) == 0
    return read_html(run / "report.html")


def ledger_line(run: Path, scope: str, content: dict[str, Any] | None = None) -> None:
    terms = PrivacyArguments(8.0, delta=1e-5, accountant="rdp", histogram_noise_multiplier=SIGMA)
    plan = terms.plan_release(NoisyHistogram.kind, UNITS, "utterance", SIGMA)
    ledger = Ledger(run / "ledger.jsonl")
    ledger.spend(declare(ledger, scope, "histogram", plan, "f00d"), content)


def labels(run: Path, sums: dict[str, float], sigma: float | None = SIGMA) -> None:
    told = {"unit": "utterance", "num_units": UNITS, "noise_multiplier": sigma, "sums": sums}
    (run / "labels").mkdir(exist_ok=True)
    (run / "labels/labels.histogram.json").write_text(json.dumps(told))
    (run / "labels/labels.jsonl").write_text("{}\n")
    shares = File("labels/labels.histogram.json", "metrics", "labels", "labels")
    end_step(run, "histogram", ["histogram"], [File("labels/labels.jsonl", "prompts", "labels", "labels"), shares])
    (run / "labels/samples.jsonl").write_text("{}\n")
    samples = File("labels/samples.jsonl", "release", "labels", "labels")
    end_step(run, "labels-sample_labels", ["predict"], [samples], ["labels/labels.jsonl"])


def resampled(
    run: Path, system: str, stage: str, told: dict[str, Any], lines: Sequence[dict[str, Any]] = ({},)
) -> None:
    """Leave what a resampling of a system leaves."""
    (run / stage).mkdir()
    (run / stage / "marginals.json").write_text(json.dumps(told))
    (run / "samples.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    files = [File("samples.jsonl", "release", system, system)]
    files.append(File(f"{stage}/marginals.json", "metrics", system, system))
    end_step(run, f"resample_{system}", ["resample"], files)


def test_intervals_hold_the_true_shares_as_often_as_they_say() -> None:
    true = {f"label {i}": float(i % 40) for i in range(2000)}
    release = Release(
        {name: value / UNITS for name, value in add_noise(true, SIGMA, seed=1).items()},
        dict.fromkeys(true, SIGMA / UNITS),
        SIGMA,
        UNITS,
        "utterance",
    )
    held = [low <= true[name] / UNITS <= high for name in true for low, high in [release.interval(name)]]
    assert 0.93 < sum(held) / len(held) < 0.97
    spurious = [name for name in true if true[name] == 0 and release.is_above_noise(name)]
    assert not spurious, "no label that nobody has is shown"


def test_labels_have_the_released_shares(tmp_path: Path) -> None:
    labels(tmp_path, {"travel": 900.0, "music": 300.0, "games": 9.0})
    assert read_release(RunFolder(tmp_path), "labels", ()) is None, "the ledger has not paid for it"
    ledger_line(tmp_path, "labels")
    release = read_release(RunFolder(tmp_path), "labels", ())
    assert release is not None and release.shares["travel"] == 0.45
    low, high = release.interval("travel")
    assert high - 0.45 == pytest.approx(0.45 - low) == pytest.approx(1.96 * SIGMA / UNITS, rel=1e-3)
    samples = [Sample("a song please", label="music")] * 9
    asked = ask(samples, read_supported(["!music", "!games"]), release, NO_NAMES)
    assert asked is not None and [row.name for row in asked.rows] == ["music", "travel"]
    assert asked.too_rare == ("games",) and asked.rows[0].share.value == 0.15
    labels(tmp_path, {"travel": 900.0, "music": 300.0}, sigma=None)
    assert read_release(RunFolder(tmp_path), "labels", ()) is None, "exact shares are not released ones"


def test_sizes_of_labels_that_an_evolution_paid_for_are_released_shares(tmp_path: Path) -> None:
    """They stand in the ledger alone."""
    content = {"labels": ["travel", "music"], "sums": [900.0, 300.0], "noise_multiplier": SIGMA}
    (tmp_path / "samples.jsonl").write_text('{"utterance": "a song please", "label": "music"}\n')
    end_step(tmp_path, "evolution-evolve", ["evolve"], [File("samples.jsonl", "release", "evolution", "evolution")])
    ledger_line(tmp_path, "evolution")
    assert read_release(RunFolder(tmp_path), "evolution", ()) is None, "a crash has lost them"
    ledger_line(tmp_path, "evolution", content)
    release = read_release(RunFolder(tmp_path), "evolution", ())
    assert release is not None and release.shares == {"travel": 0.45, "music": 0.15}
    assert release.deviations["music"] == SIGMA / UNITS and (release.num_units, release.unit) == (UNITS, "utterance")


def test_topics_that_an_over_sample_was_drawn_by_have_the_released_shares(tmp_path: Path) -> None:
    told = {"unit": "utterance", "num_units": UNITS, "noise_multiplier": SIGMA, "sums": {"lunch": 500.0, "rain": 90.0}}
    resampled(tmp_path, "topics", "topics", {**told, "bins": {"lunch": 1.0, "rain": 1.0}})
    ledger_line(tmp_path, "topics")
    release = read_release(RunFolder(tmp_path), "topics", ())
    assert release is not None and release.shares == {"lunch": 0.25, "rain": 0.045}


def themes_told() -> dict[str, Any]:
    """A release of two themes of two topics each, of one that nobody expected, and of what is unlike all."""
    sums = {"wifi is slow": 200.0, "no wifi": 100.0, "lost my card": 120.0, "card gone": 4.0, "esim, qr": 150.0}
    themes = {"wifi is slow": "no internet", "no wifi": "no internet", "lost my card": "my card is lost"}
    themes |= {"card gone": "my card is lost", "esim, qr": "esim, qr"}
    told = {"unit": "user", "num_units": UNITS, "noise_multiplier": SIGMA, "sums": {**sums, UNLIKE: 250.0}}
    told |= {"themes": themes, "unexpected": ["esim, qr"], "words": {"no internet": ["wifi", "slow"]}}
    return told | {"bins": dict.fromkeys(told["sums"], 1.0)}


def test_the_share_of_a_theme_is_that_of_its_topics_with_the_noise_of_them_together() -> None:
    told = themes_told()
    shares = {name: own / UNITS for name, own in told["sums"].items()}
    topics = Release(
        shares, dict.fromkeys(shares, SIGMA / UNITS), SIGMA, UNITS, "user", told["themes"], {}, ["esim, qr"]
    )
    themes = topics.of_themes()
    assert themes.shares == pytest.approx(
        {"no internet": 0.15, "my card is lost": 0.062, "esim, qr": 0.075, UNLIKE: 0.125}
    )
    assert themes.deviations["no internet"] == pytest.approx(math.sqrt(2) * SIGMA / UNITS)
    assert themes.deviations["esim, qr"] == SIGMA / UNITS
    together = themes.unlike()
    assert together.shares == {UNLIKE: pytest.approx(0.2)}
    assert together.deviations[UNLIKE] == pytest.approx(math.sqrt(2) * SIGMA / UNITS)


def test_intervals_of_themes_hold_the_true_shares_as_often_as_they_say() -> None:
    themes = {f"topic {i}": f"theme {i // 4}" for i in range(80)}
    true = dict.fromkeys(themes, 0.0125)
    held = total = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shares = {name: share + SIGMA / UNITS * rng.standard_normal() for name, share in true.items()}
        of_themes = Release(shares, dict.fromkeys(shares, SIGMA / UNITS), SIGMA, UNITS, "user", themes).of_themes()
        for name in of_themes.shares:
            low, high = of_themes.interval(name)
            held, total = held + (low <= 0.05 <= high), total + 1
    assert 0.92 < held / total < 0.98


def test_examples_of_a_theme_say_one_of_its_words_where_any_sample_does() -> None:
    shares = {"no internet": 0.2, "my card is lost": 0.1}
    words = {"no internet": ("wifi", "slow"), "my card is lost": ("stolen",)}
    release = Release(shares, dict.fromkeys(shares, 0.001), SIGMA, UNITS, "user", words=words)
    texts = ["what is on tv", "what is on the radio", "where is my wifis password", "who took my card"]
    names = ["no internet"] * 3 + ["my card is lost"]
    samples = [Sample(text, label=name) for text, name in zip(texts, names, strict=True)]
    asked = ask(samples, None, release, NO_NAMES)
    assert asked is not None and [row.examples for row in asked.rows] == [(texts[2],), (texts[3],)]


def test_a_page_of_topics_speaks_of_themes_of_users_and_of_what_nobody_expected_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"utterance": f"{name} {i}", "label": name} for name in themes_told()["sums"] for i in range(10)]
    resampled(tmp_path, "topics", "topics", themes_told(), lines)
    ledger_line(tmp_path, "topics")
    read = page(tmp_path)
    leads = [text.words for text in read.all("p", class_="lead")]
    assert leads[0].startswith("20 of 100 users ask for what is unlike anything in your reference (95 % CI 19 to 21)")
    assert "“no internet” (15 of 100 users)" in leads[1] and "“my card is lost” (6 of 100 users)" in leads[1]
    assert "esim" not in leads[1]
    section = read.all("section", id="asked")[0]
    first = section.all("th", scope="row")[0].words
    assert first.startswith("no internet wifi, slow") and "2 topics" in first and "“wifi is slow” 10.0 %" in first
    assert "card gone" not in section.words, "it is below the noise"
    nobody = read.all("section", id="unexpected")[0]
    assert nobody.all("th", scope="row")[0].words == "esim, qr" and "7.5 %" in nobody.words
    assert "hardly" not in leads[0]
    word = {"word": "esim", "share": 0.0684, "low": 0.062, "high": 0.071, "reference": 0.0}
    least = dict.fromkeys(("least", "least_half_noise", "least_twice_reference"), 0.006)
    counted = least | {"unit": "user", "num_units": UNITS, "noise_multiplier": 5.0, "per_unit": 2, "num_words": 9}
    counted |= {"times": 3, "findings": [{"words": [word], "samples": []}]}
    monkeypatch.setattr("commands.report.write.read_unexpected", lambda *_: counted)
    lead = page(tmp_path).all("p", class_="lead")[0].words
    assert lead.endswith("19 to 21), and 7 of 100 say “esim”, which it hardly does: what nobody expected.")
    (tmp_path / "can.txt").write_text("no internet\nmy card is lost\n")
    assert cli.main(["report", str(tmp_path), "--supported", str(tmp_path / "can.txt")]) == 0
    read = read_html(tmp_path / "report.html")
    assert "cannot do: esim, qr" in read.all("h1")[0].words
    assert "20 of 100 users ask for what is unlike anything" in read.all("header")[0].words
    (tmp_path / "can.txt").write_text("no internet\nmy card is lost\nesim, qr\n")
    assert cli.main(["report", str(tmp_path), "--supported", str(tmp_path / "can.txt")]) == 0
    header = read_html(tmp_path / "report.html").all("header")[0].words
    assert "20 of 100 users ask for what is unlike anything" in header and "can do whatever" not in header


def test_shares_of_functions_come_back_from_what_a_resampling_released(tmp_path: Path) -> None:
    draw = random.Random(4)
    trees = [
        f"(Yield ({draw.choice(['Ask'] * 5 + ['Tell'] * 2 + ['Order'])}{' (Now)' * draw.randint(0, 1)}))"
        for _ in range(UNITS)
    ]
    bins = pool_bins(trees)
    sums = add_noise(unit_sums(((str(i), tree_vector(t, bins)) for i, t in enumerate(trees)), bins), SIGMA, seed=2)
    told = {"unit": "utterance", "num_units": UNITS, "noise_multiplier": SIGMA, "sums": sums, "bins": bins}
    resampled(tmp_path, "two_stage", "parse_tree", told)
    ledger_line(tmp_path, "two_stage")
    release = read_release(RunFolder(tmp_path), "two_stage", trees[:500])
    assert release is not None
    true = Counter(name for tree in trees for name in Sample("", tree).names)
    for name in ("Ask", "Tell", "Order", "Now", "Yield"):
        low, high = release.interval(name)
        assert low <= true[name] / UNITS <= high and high - low < 0.1, name


def test_a_share_of_samples_has_the_interval_of_its_draw() -> None:
    draw = random.Random(3)
    held = 0
    for _ in range(400):
        count = sum(draw.random() < 0.05 for _ in range(300))
        low, high = sampling_interval(count, 300)
        held += low <= 0.05 <= high
    assert 0.92 < held / 400 < 0.99
    assert sampling_interval(0, 300)[0] == 0 < sampling_interval(0, 300)[1] < 0.02


def test_what_few_samples_use_is_too_rare_to_show() -> None:
    samples = [Sample("a", "(Yield (Ask))")] * 50 + [Sample("b", "(Yield (Tell))")] * (FEWEST - 1)
    asked = ask(samples, read_supported(["!Tell"]), None, NO_NAMES)
    assert asked is not None and asked.too_rare == ("Tell",) and not asked.lacking
    assert asked.unserved == 0 and asked.unserved_too_rare == (FEWEST - 1) / len(samples)
    assert ask([Sample("no tree")], None, None, NO_NAMES) is None


def test_what_is_not_supported_in_all_is_the_sum_of_the_rows_and_what_is_too_rare_stands_apart() -> None:
    """Of labels their sum, as released; a request of several functions counts once, and rare ones are in no sum."""
    true = {"travel": 0.3, "music": 0.2, "games": 0.1, **{f"rare {i}": 0.01 for i in range(13)}, "weather": 0.27}
    samples = [Sample(name, label=name) for name, share in true.items() for _ in range(round(1000 * share) + 10)]
    shares = {name: share + 0.002 for name, share in true.items()}
    release = Release(shares, dict.fromkeys(shares, 0.005), SIGMA, UNITS, "utterance")
    asked = ask(samples, read_supported(["weather"]), release, NO_NAMES)
    assert asked is not None and [row.name for row in asked.lacking] == ["travel", "music", "games"]
    assert asked.unserved == pytest.approx(sum(row.share.value for row in asked.lacking))
    assert asked.unserved_too_rare == asked.share_of_too_rare == pytest.approx(13 * 20 / len(samples))
    trees = ["(Tell (Ask))"] * 20 + ["(Tell (Rare))"] * 2 + ["(Ask)"] * 10 + ["(Rare)"] * 2 + ["(Can)"] * 66
    asked = ask([Sample("say", tree) for tree in trees], read_supported(["Can"]), None, NO_NAMES)
    assert asked is not None and {row.name for row in asked.lacking} == {"Tell", "Ask"}
    assert asked.unserved == pytest.approx(0.32) and asked.unserved_too_rare == pytest.approx(0.02)


def test_what_is_unlike_all_topics_is_a_share_and_nothing_that_people_ask_for(tmp_path: Path) -> None:
    samples = [(UNLIKE, "a poem")] * 40 + [("set alarm", "an alarm for six")] * 15 + [("rain", "will it rain")] * 5
    lines = [{"utterance": f"{text} {i}", "label": topic} for i, (topic, text) in enumerate(samples)]
    run = make_samples(tmp_path / "run", lines, "topics")
    header = page(run).all("header")[0].words
    assert "Most often they ask for set alarm: 25 of 100" in header and "two thirds" not in header
    section = page(run).all("section", id="asked")[0]
    assert [row.words for row in section.all("th", scope="row")] == ["set alarm", "rain"]
    assert "66.7 % (54.1 % – 77.3 %) are unlike all topics" in section.words
    (tmp_path / "can.txt").write_text("set alarm\n")
    assert cli.main(["report", str(run), "--supported", str(tmp_path / "can.txt")]) == 0
    read = read_html(run / "report.html")
    assert "cannot do: rain" in read.all("h1")[0].words and "too rare" not in read.words
    assert not any("unlike" in text.words for text in [*read.all("h1"), *read.all("p", class_="lead")])


def test_each_attribute_is_a_table_whose_shares_are_of_one_whole(tmp_path: Path) -> None:
    lines = [
        {"utterance": f"say {i}", "label": f"Stars: {1 + i % 2} | Category: {'Food' if i % 5 else 'Bars'}"}
        for i in range(40)
    ]
    read = page(make_samples(tmp_path / "run", lines, "attributes"))
    section = read.all("section", id="asked")[0]
    tables = dict(zip([h.words for h in section.all("h3")], section.all("tbody"), strict=True))
    assert tables.keys() == {"Stars", "Category"}
    for table in tables.values():
        assert sum(float(cell.words.split()[0]) for cell in table.all("td", class_="share")) == pytest.approx(100)
    lead = read.all("p", class_="lead")[0].words
    assert "Category: Food (80 of 100)" in lead and "Stars: " in lead


def test_a_parser_that_reads_the_words_has_its_say() -> None:
    trees = ["(Yield (Ask))"] * 6 + ["(Yield (Tell))"] * 2
    samples = [Sample("a", "(Yield (Ask))", read_tree=tree, confidence=0.9 if "Ask" in tree else 0.5) for tree in trees]
    asked = ask(samples, None, None, NO_NAMES)
    assert asked is not None
    assert {row.name: row.read_back for row in asked.rows} == {"Yield": 1.0, "Ask": 0.75}
    assert [row.confidence for row in asked.rows] == pytest.approx([0.8, 0.8])


def test_paths_follow_the_calls_through_let_and_do() -> None:
    tree = '(do (Yield (A :x (B) "(C)")) (let (x0 (D)) (E x0 ^(F) G)))'
    assert tree_paths(tree) == {("Yield",), ("Yield", "A"), ("Yield", "A", "B"), ("D",), ("E",)}
    assert tree_paths("(Yield") == frozenset()
    without = tree_paths(tree, lambda name: name not in ("Yield", "D"))
    assert without == {("A",), ("A", "B"), ("E",)}, "what a function holds stays where the function is left out"


def test_what_is_supported_is_said_in_several_ways(tmp_path: Path) -> None:
    names = read_supported(["Find*", "Create", "!FindManager"])
    assert names is not None and [names.holds(n) for n in ("FindPlace", "Create", "FindManager", "Delete")] == [
        True,
        True,
        False,
        False,
    ]
    (tmp_path / "list.txt").write_text("# ours\nCreate\n\n")
    listed = read_supported(str(tmp_path / "list.txt"))
    assert listed is not None and listed.holds("Create") and not listed.holds("Delete")
    (tmp_path / "api.csv").write_text("Create,Event,\nFenceOther,Unit,\n")
    by_default = read_supported(None, [str(tmp_path / "api.csv")])
    assert by_default is not None and by_default.holds("Create") and not by_default.holds("FenceOther")
    assert read_supported(None) is None


@pytest.mark.parametrize("word", ["nope.txt", "lists/mine.CSV", "./mine", "~/mine", "/tmp/mine", "../mine"])
def test_what_is_meant_as_a_file_must_be_one(word: str) -> None:
    with pytest.raises(UserError, match=re.escape(word)):
        read_supported([word])
    with pytest.raises(UserError, match=re.escape(word)):
        read_supported(["Create", word])


def test_names_with_signs_are_no_files() -> None:
    names = ["Event.start_?", "food/drink", "Path.apply", "1.0", "What is 1/2?"]
    said = read_supported(names)
    assert said is not None and all(map(said.holds, names))
