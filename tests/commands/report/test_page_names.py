"""The words of a page: a public table of names, which covers what the shipped experiments ask for."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from page_content import Element, make_samples, read_html

import cli
from commands.report.asked import Sample, ask
from commands.report.names import Names, read_names, shipped_names
from commands.report.supported import read_supported
from commands.run.experiment.experiment import EXPERIMENTS, load
from datamodules.reading.examples import read_examples
from doppel.errors import UserError
from doppel.grammar import generate

TABLE = "configs/names/smcalflow.yaml"
#: Of SMCalFlow's public turns, those that a function must be in to have words.
COMMON = 0.001


def page(run: Path, *words: str) -> Element:
    assert cli.main(["report", str(run), *words]) == 0
    return read_html(run / "report.html")


@pytest.fixture(scope="module")
def names() -> Names:
    return read_names(TABLE)


def test_each_function_has_its_own_words_or_is_plumbing(names: Names) -> None:
    assert len(set(names.words.values())) == len(names.words)
    assert not [name for name in names.words if names.is_plumbing(name)]
    assert all(words != name or len(words) > 2 for name, words in names.words.items())


def test_every_function_of_the_grammar_is_named(names: Names) -> None:
    seen = {name for turn in generate(4000, seed=1, skew=1.0) for name in Sample("", turn.parse).names}
    assert len(seen) > 250
    assert not {name for name in seen if name not in names.words and not names.is_plumbing(name)}


@pytest.mark.skipif("DOPPEL_DATA" not in os.environ, reason="DOPPEL_DATA is not set: no public turns to count")
def test_every_common_function_of_smcalflow_is_named(names: Names) -> None:
    path = Path(os.environ["DOPPEL_DATA"], "smcalflow", "valid.dataflow_dialogues.jsonl.zip")
    turns = list(read_examples(str(path), "utterance"))
    counts = Counter(name for turn in turns for name in Sample("", turn.parse).names)
    common = {name for name, count in counts.items() if count >= 3 * COMMON * len(turns)}  # of a part of the turns
    assert len(common) > 100 and not {n for n in common if n not in names.words and not names.is_plumbing(n)}


@pytest.mark.parametrize("name", ["quickstart", "smcalflow", "smcalflow-small"])
def test_shipped_experiments_name_their_functions(name: str, names: Names) -> None:
    experiment = load(EXPERIMENTS / f"{name}.yaml")
    assert read_names(experiment.names) == names
    assert all(word.strip("!*") in names.words for word in experiment.supported or ())


def test_a_name_without_words_stays_as_it_is_and_an_experiment_may_hold_the_table() -> None:
    own = read_names({"Ask": "ask  about\nit", "plumbing": ["Yield", "to*"]})
    assert own.of("Ask") == "ask about it" and own.of("FindManager") == "FindManager"
    assert [own.is_plumbing(name) for name in ("Yield", "toDays", "Ask", "plumbing")] == [True, True, False, False]


@pytest.mark.parametrize("given", ["nope.yaml", {"Ask": True}, {"plumbing": "Yield"}, {"plumbing": [1]}], ids=str)
def test_a_table_of_something_else_is_refused(given: object) -> None:
    with pytest.raises(UserError, match="names"):
        read_names(given)  # type: ignore[arg-type]


def test_plumbing_is_neither_lacking_nor_a_row_unless_it_is_said_to_be_lacking() -> None:
    samples = [Sample("a", "(Yield (Ask))")] * 8
    own = read_names({"Ask": "ask", "plumbing": ["Yield"]})
    asked = ask(samples, read_supported(["Ask"]), None, own)
    assert asked is not None and [row.name for row in asked.rows] == ["Ask"] and not asked.lacking
    assert [row.name for row in asked.plumbing] == ["Yield"]
    assert asked.unserved is not None and asked.unserved == 0
    asked = ask(samples, read_supported(["!Yield"]), None, own)
    assert asked is not None and [row.name for row in asked.lacking] == ["Yield"] and not asked.plumbing


def test_topics_may_have_words_too() -> None:
    asked = ask([Sample("lunch at two", label="lunch two")] * 8, None, None, read_names({"lunch two": "eating out"}))
    assert asked is not None and [row.words for row in asked.rows] == ["eating out"]


def test_names_of_smcalflow_are_found_and_a_wrapper_is_no_name_of_what_people_ask(tmp_path: Path) -> None:
    lines = [{"utterance": t.utterance, "parse": t.parse} for t in generate(200, seed=6, skew=1.5)]
    strong = page(make_samples(tmp_path / "smcalflow", lines)).all("p", class_="lead")[0].all("strong")[0].words
    assert strong in read_names(TABLE).words.values()
    calls = ["(Yield (Execute (refer (Lights.On))))"] * 6 + ["(Yield (Lights.Off))"] * 4 + ["(?= (CreateEvent))"] * 5
    lights = [{"utterance": f"say {i}", "parse": tree} for i, tree in enumerate(calls)]
    read = page(make_samples(tmp_path / "lights", lights))
    assert read.all("p", class_="lead")[0].all("strong")[0].words == "Lights.On"
    assert not shipped_names({"Lights.On", "Event.start", "Yield"}).words, "two APIs may share a name"


def test_the_names_of_an_own_api_are_written_to_fill_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["lights # on: 'now'", "lights\non", "on", "\x07 on", "light\ud800".encode("utf-8", "replace").decode()]
    trees = ["(Yield (Lights.On))", "(Yield (Off))", "(Yield (?x: (No)))"]
    lines = [{"utterance": text, "parse": tree} for tree in trees for text in texts] + [
        {"utterance": "a", "parse": "(Rare)"}
    ]
    run, out = make_samples(tmp_path / "run", lines), tmp_path / "names.yaml"
    page(run, "--names-template", str(out))
    assert read_names(str(out)) == Names({}, frozenset(["Yield"])), "nobody has filled in anything"
    text = out.read_text()
    assert text.index("Lights.On") < text.index("Rare")
    out.write_text(text.replace("Lights.On: ''", "Lights.On: switch on a light"))
    rows = page(run, "--names", str(out)).all("tbody")[0].all("tr")
    assert {row.all("th")[0].words for row in rows} >= {"switch on a light Lights.On", "Off", "No"}
    assert cli.main(["report", str(run), "--names-template", str(out)]) == 2
    assert str(out) in capsys.readouterr().err and "switch on a light" in out.read_text(), "what was filled in stays"
