"""The incremental recogniser accepts what `first_error` accepts, character by character, and can always end in time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lispress_trees import corpus_trees, programs

from datamodules.linearisation import delinearise, linearise
from doppel.errors import UserError
from doppel.lispress import MAX_DEPTH, is_valid, read, write
from doppel.lispress.api_table import read_api_names
from doppel.lispress.incremental import Layout, Recognizer, State

ROOT = Path(__file__).resolve().parents[2]
CONSTANTS = ROOT / "configs" / "grammar" / "smcalflow_constants.csv"
TABLE = """\
Yield,Unit,output: Dynamic,
FindManager,Recipient,recipient: Recipient
refer,CalflowIntension[Dynamic],constraint: Constraint[Dynamic]
Event.subject,String,obj: Event
?=,Constraint[String],reference: String
MDY,Date,day: Number,month: Month,year: Number
Today,Date,,,
"""
ANY = Recognizer()
PIECES = [
    *'()()() ^#"\\:x01-.eL \n',
    "let ",
    "lambda ",
    "(let (",
    "x0 ",
    "x1",
    "(f ",
    ")) ",
    "^(T) ",
    ":a ",
    "\\(",
    "é",
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("api") / "api.csv"
    path.write_text(TABLE)
    return str(path)


def accepts(recognizer: Recognizer, text: str) -> bool:
    state = recognizer.read(text)
    return state is not None and recognizer.accepts(state)


def steps(recognizer: Recognizer, state: State) -> list[tuple[str, State]]:
    """The printable characters that may come next."""
    after = [(chr(code), recognizer.advance(state, chr(code))) for code in range(32, 127)]
    return [(character, state) for character, state in after if state is not None]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(max_examples=500, deadline=None)
def test_agrees_with_first_error_on_arbitrary_text(text: str) -> None:
    assert accepts(ANY, text) == is_valid(text)


@given(programs.map(write), st.data())
@settings(max_examples=150, deadline=None)
def test_agrees_with_first_error_on_damaged_programs(text: str, data: st.DataObject) -> None:
    """And every prefix of a whole program is viable."""
    assert accepts(ANY, text) and accepts(Recognizer(layout="raw"), text)
    assert accepts(Recognizer(layout="spaced"), linearise(text, "spaced"))
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.sampled_from(["", *PIECES])) + text[at + data.draw(st.integers(0, 4)) :]
    assert accepts(ANY, damaged) == is_valid(damaged)


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1])
@pytest.mark.parametrize("inner", ["(f)", "(let (x 1) x)", "(^(T) f)", "#(T 1)", "1"])
def test_nesting_ends_where_the_reader_ends_it(depth: int, inner: str) -> None:
    deepest = {"1": 0, "(f)": 1}.get(inner, 3 if "^" in inner else 2)
    text = "(f " * (depth - deepest) + inner + ")" * (depth - deepest)
    assert accepts(ANY, text) == is_valid(text) == (depth <= MAX_DEPTH)


@pytest.mark.parametrize("layout", ["any", "raw", "spaced"])
@pytest.mark.parametrize("names", ["any", "table"])
@pytest.mark.parametrize("only_calls", [False, True])
def test_every_state_on_a_random_walk_can_be_ended(layout: Layout, names: str, only_calls: bool, api: str) -> None:
    """In the announced number of characters, taken from the announced alphabet; what is written is well-formed."""
    recognizer = Recognizer(read_api_names([api]) if names == "table" else None, layout, only_calls)
    generator = random.Random(f"{layout} {names}")
    for _ in range(25):
        state, text = recognizer.start(), ""
        for _ in range(generator.randint(0, 40)):
            possible = steps(recognizer, state)
            structural = [step for step in possible if step[0] in '(^#"):l'] if generator.random() < 0.5 else []
            if not possible:
                break
            character, state = generator.choice(structural or possible)
            text += character
        while (missing := recognizer.shortest_end(state)) > 0:
            possible = [step for step in steps(recognizer, state) if step[0] in recognizer.names.characters]
            character, state = min(possible, key=lambda step: recognizer.shortest_end(step[1]))
            assert recognizer.shortest_end(state) < missing
            text += character
        tree = delinearise(text, "spaced") if layout == "spaced" else text
        assert is_valid(tree)
        assert not only_calls or tree.strip().startswith("(")
        assert layout == "any" or write(read(tree)) == tree
        assert layout != "spaced" or linearise(tree, "spaced") == text


def test_a_variable_named_like_a_form_hides_no_form() -> None:
    text = "(lambda (let) (let (x0 let) (f x0 let)))"
    assert is_valid(text) and accepts(ANY, text)


def test_equal_states_for_equal_futures() -> None:
    states = {ANY.read(text) for text in ("(f Foo", "(f Bar", "(f 12", '(f "a" Baz')}
    assert len(states) == 1 and None not in states
    assert ANY.read("(let (Foo 1) (Foo") != ANY.read("(let (Foo 1) (Bar")


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ('(Yield (Event.subject_? (?= "lunch")))', True),
        ('(Yield :output (Event.subject_? (?= "lunch")))', True),
        ("(let (x0 (Today)) (do (Yield x0) (Yield true) (Yield 2L)))", True),
        ("(Yield (refer (^((Constraint Date)) ?= (Today))))", True),
        ("(Yield (Foo))", False),
        ("(Yield Today)", False),
        ("(Yield)", False),
        ("(Today 1)", False),
        ("(MDY 1 2 3 4)", False),
        ("(Yield :input 1)", False),
        ("(MDY :day 1 :day 2)", False),
        ("(Yield x0)", False),
        ("(Yield (^(Foo) Today))", False),
        ("(Yield (^(Constraint) Today))", False),
        ("(Yield (^((Date Date)) Today))", False),
        ("(Yield (Today.subject_? 1))", False),
        ("(Yield  (Today))", False),
        ("(Yield (Today) )", False),
    ],
)
def test_only_names_of_the_table_pass(api: str, text: str, is_accepted: bool) -> None:
    assert accepts(Recognizer(read_api_names([api]), "raw"), text) == is_accepted


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "names no function"),
        ("Today", "line 1: expected 'name,return type"),
        ("To day,Date", "line 1: expected 'name,return type"),
        ("Today,Date\nFind,Event,constraint", "line 2: expected 'argument: type'"),
        ("Find,List[Event", "no type such as"),
        ("Find,List[Event]]", "no type such as"),
        ("Find,List[]", "no type such as"),
    ],
)
def test_bad_tables_are_named_with_their_line(tmp_path: Path, table: str, message: str) -> None:
    path = tmp_path / "api.csv"
    path.write_text(table)
    with pytest.raises(UserError, match="api.csv") as caught:
        read_api_names([str(path)])
    assert message in str(caught.value)
    with pytest.raises(UserError, match=r"none\.csv"):
        read_api_names([str(tmp_path / "none.csv")])


def test_trees_of_the_corpus_pass(data_folder: Path) -> None:
    """All under the notation; under the public tables, nearly all: no name was taken from the corpus."""
    trees = corpus_trees("smcalflow", fields=("lispress",))[::8]
    recognizer = Recognizer(layout="spaced", only_calls=True)
    assert all(accepts(recognizer, linearise(tree, "spaced")) for tree in trees)
    names = read_api_names([data_folder / "smcalflow" / "api_types.csv", CONSTANTS])
    recognizer = Recognizer(names, "raw", only_calls=True)
    assert sum(accepts(recognizer, tree) for tree in trees) >= 0.99 * len(trees)
