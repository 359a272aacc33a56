"""Parser accuracy: graph match, API match, bag of nodes; properties, values by hand, facts of SMCalFlow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datamodules.reading.examples import read_examples
from doppel.metrics import (
    PARSER_KEYS,
    SMCALFLOW_APIS,
    TREEDST_APIS,
    ApiMatch,
    BagOfNodes,
    GraphMatch,
    identical_trees,
    parser_metric_collection,
    parser_metrics,
)
from doppel.metrics.anonymous_graph import anonymous_graph, anonymous_subgraphs

FUNCTIONS = ("Yield", "Find*")
LEAVES = st.sampled_from(['"Ann"', '"Bob"', "1L", "true", "(Now)", "(FindManager)"])


TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["Yield", "And", "Find_"]), inner).map(lambda p: f"({p[0]} {p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"(And :left {p[0]} :right {p[1]})"),
        inner.map(lambda value: f"(let (x0 {value}) (Yield (And x0 x0)))"),
        inner.map(lambda value: f"(^(Event) EventAttendance {value})"),
    ),
    max_leaves=6,
)
TURNS = st.lists(st.tuples(st.one_of(TREES, st.sampled_from([None, "(Broken ("])), TREES), min_size=1, max_size=8)


@given(st.lists(TREES, min_size=1, max_size=6))
def test_the_truth_is_right_whatever_it_is(gold: list[str]) -> None:
    values = parser_metrics(gold, gold, FUNCTIONS)
    for name, value in values.items():
        if not name.startswith("num_turns") and value is not None:
            assert value == pytest.approx(1, abs=2e-6), name
    assert values["exact_match"] == 1
    assert values["num_turns"] == len(gold)


@given(TURNS)
def test_relations_between_the_values(turns: list[tuple[str | None, str]]) -> None:
    predicted, gold = map(list, zip(*turns, strict=True))
    values = parser_metrics(predicted, gold, FUNCTIONS)
    names = [f"{key}{suffix}" for suffix in ("", "@Yield", "@not Yield", "@Find*", "@not Find*") for key in PARSER_KEYS]
    assert list(values) == names
    exact, wrong = values["exact_match"], sum(tree in (None, "(Broken (") for tree in predicted) / len(gold)
    for key in PARSER_KEYS[:-1]:
        assert values[key] is None or 0 <= values[key] <= 1 - (0 if key.startswith("api") else wrong) + 1e-6
    assert exact <= min(values["node_precision"], values["node_recall"]) + 1e-6
    for pattern in FUNCTIONS:  # all turns are those with the function and those without
        parts = [(values[f"exact_match@{n}"] or 0, values[f"num_turns@{n}"]) for n in (pattern, f"not {pattern}")]
        assert sum(number for _, number in parts) == values["num_turns"] == len(gold)
        assert sum(share * number for share, number in parts) == pytest.approx(exact * len(gold), abs=1e-4)


@given(st.lists(st.tuples(TREES, TREES), min_size=1, max_size=6))
def test_swapping_the_sides_swaps_precision_and_recall_of_nodes(turns: list[tuple[str, str]]) -> None:
    first, second = map(list, zip(*turns, strict=True))
    there, back = parser_metrics(first, second), parser_metrics(second, first)
    assert there["node_precision"] == pytest.approx(back["node_recall"], abs=1e-6)
    assert there["exact_match"] == back["exact_match"]


@given(TURNS, st.integers(0, 8))
def test_batches_equal_one_update(turns: list[tuple[str | None, str]], cut: int) -> None:
    whole, parts = (parser_metric_collection(FUNCTIONS) for _ in range(2))
    predicted, gold = map(list, zip(*turns, strict=True))
    whole.update(predicted, gold)
    parts.update(predicted[:cut], gold[:cut])
    parts.update(predicted[cut:], gold[cut:])
    found = {name: value.item() for name, value in parts.compute().items()}
    assert found == pytest.approx({n: v.item() for n, v in whole.compute().items()}, nan_ok=True)


@pytest.mark.parametrize(
    ("predicted", "right"),
    [
        ('(Yield (And :left (Find "Bob") :right (Now)))', True),  # strings are hidden
        ('(Yield (And :right (Now) :left (Find "Ann")))', True),  # edges have no order
        ('(let (y (Now)) (Yield (And :left (Find "Ann") :right y)))', True),  # variables have no names
        ('(Yield (And :left (Now) :right (Find "Ann")))', False),  # other labels
        ("(Yield (And :left (Find 1L) :right (Now)))", False),  # numbers are not hidden
        ('(Yield (And :left (Find "Ann")))', False),
        ('(Yield (And :left (Find "Ann") :right (Now))', False),  # a bracket is missing
        (None, False),
    ],
)
def test_exact_match(predicted: str | None, right: bool) -> None:
    metric = GraphMatch()
    metric.update([predicted], ['(Yield (And :left (Find "Ann") :right (Now)))'])
    assert metric.compute()["exact_match"].item() == right


def test_a_shared_node_is_not_two_equal_nodes() -> None:
    shared, copied = "(let (x (Now)) (Yield (And x x)))", "(Yield (And (Now) (Now)))"
    assert parser_metrics([copied], [shared])["exact_match"] == 0
    assert anonymous_graph(shared).nodes == ("And", "Now", "Yield")
    # the calls below it are equal or not with it
    assert parser_metrics([copied], [shared])["api_recall"] == 0


API_GOLD = '(do (Yield (FindManager "Ann")) (Yield (FindManager "Bob")))'


@pytest.mark.parametrize(
    ("predicted", "precision", "recall"),
    [
        (API_GOLD, 1, 1),
        ('(Yield (FindManager "Eve"))', 1, 1 / 2),  # one call cannot match two
        ('(FindManager "Eve")', 1, 1 / 4),
        ('(do (FindManager "a") (FindManager "b") (FindManager "c"))', 2 / 3, 2 / 4),
        ('(Yield (And (FindManager "a")))', 1 / 2, 1 / 4),  # the subgraph must agree to its leaves
        ("(Now)", 0, 0),
        (None, 0, 0),
        ("(Yield", 0, 0),
    ],
)
def test_api_match_by_hand(predicted: str | None, precision: float, recall: float) -> None:
    metric = ApiMatch()
    metric.update([predicted], [API_GOLD])
    metric.update(["(Yield (Now))"], ["(Now)"])  # no gold call: this turn does not count
    values = {name: value.item() for name, value in metric.compute().items()}
    assert values == pytest.approx({"api_precision": precision, "api_recall": recall}, abs=2e-6)


def test_the_list_of_apis_decides() -> None:
    assert len(set(SMCALFLOW_APIS)) == 13
    assert len(set(TREEDST_APIS)) == 11
    gold, predicted = ["(plan (Find (Now)))"], ["(Find (Now))"]
    assert parser_metrics(predicted, gold)["api_recall"] is None
    assert parser_metrics(predicted, gold, apis=TREEDST_APIS)["api_recall"] == 0.5
    with pytest.raises(ValueError, match="APIs"):
        ApiMatch(apis=())


def test_bag_of_nodes_by_hand() -> None:
    metric = BagOfNodes()
    metric.update(['(And "a" "b" "c")'], ['(Yield (And "d"))'])  # And and one string of four, of three
    metric.update([None], ["(Now)"])
    values = metric.compute()
    assert values["node_precision"].item() == pytest.approx((2 / 4 + 0) / 2)
    assert values["node_recall"].item() == pytest.approx((2 / 3 + 0) / 2)


def test_turns_are_grouped_by_the_gold_tree() -> None:
    gold = ["(Yield (FindManager (Now)))", "(Finder (Now))", "(And (Now))"]
    values = parser_metrics(["(And (Now))", *gold[1:]], gold, ["Find*", "Finder"])
    assert (values["exact_match@Find*"], values["num_turns@Find*"]) == (0.5, 2)
    assert (values["exact_match@Finder"], values["exact_match@not Finder"]) == (1, 0.5)
    assert parser_metrics(gold, gold, ["Absent"])["exact_match@Absent"] is None


@pytest.mark.parametrize("pattern", ["", "*", "Event*Date", "a**"])
def test_bad_patterns_are_refused_at_once(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        GraphMatch([pattern])


def test_bad_sides_are_refused() -> None:
    with pytest.raises(ValueError, match="1 .*2"):
        parser_metrics(["(A)"], ["(A)", "(B)"])
    with pytest.raises(ValueError, match="gold tree 1"):
        parser_metrics(["(A)", "(A"], ["(A)", "(A"])


def test_no_turn_has_no_value() -> None:
    values = parser_metrics([], [], ["Yield"])
    assert values.pop("num_turns") == values.pop("num_turns@Yield") == values.pop("num_turns@not Yield") == 0
    assert set(values.values()) == {None}


def test_the_collection_has_prefixed_names() -> None:
    collection = parser_metric_collection(["Yield"], prefix="test/")
    collection.update(["(Yield (Now))"], ["(Yield (Now))"])
    assert {f"test/{key}@not Yield" for key in PARSER_KEYS} < collection.compute().keys()


def test_facts_of_smcalflow(data_folder: Path) -> None:
    """Shares measured on all 14,751 turns hold on the part at hand, within three standard errors."""
    trees = [
        t.parse
        for t in read_examples(str(data_folder / "smcalflow" / "valid.dataflow_dialogues.jsonl.zip"), "utterance")
    ]
    gold = [tree for tree in trees if tree is not None]

    def share(of: float) -> object:
        return pytest.approx(of, abs=3 * (of * (1 - of) / len(gold)) ** 0.5)

    assert sum(bool(anonymous_subgraphs(tree, set(SMCALFLOW_APIS))) for tree in gold) / len(gold) == share(0.825)
    most_frequent, number = Counter(gold).most_common(1)[0]
    assert most_frequent == "(Yield (Execute (^(Dynamic) ConfirmAndReturnAction)))"
    values = parser_metrics([most_frequent] * len(gold), gold, ["WeatherQueryApi", "EventOnDate*"])
    assert values["exact_match"] == pytest.approx(number / len(gold), abs=1e-6)
    assert values["exact_match"] == share(1599 / 14_751)
    assert values["num_turns@WeatherQueryApi"] / len(gold) == share(473 / 14_751)
    assert values["num_turns@EventOnDate*"] / len(gold) == share(0.108)
    # the paper's low-resource parser: no match on turns with a function it lacks
    assert values["exact_match@WeatherQueryApi"] == values["exact_match@EventOnDate*"] == 0
    assert values["node_recall@EventOnDate*"] > values["api_recall@EventOnDate*"]


def test_identical_trees_count_strings_and_groups_of_entities_stand_or_fall_together() -> None:
    gold = ['(F "a")', '(F "b")', '(G "a" (H))', '(G "c" (H))', '(G "c" (H))', "(K)", "(K)"]
    predicted = ['(F "a")', '(F  "b")', '(G "a" (H))', '(G "x" (H))', '(G "c" (H))', "(K)", None]
    found = identical_trees(predicted, gold)
    assert found["identical_trees"] == pytest.approx(5 / 7)
    assert (found["num_groups"], found["consistent_groups"]) == (2, 0.5)  # (K) has no string to replace
    assert identical_trees([], []) == {"identical_trees": None, "num_groups": 0, "consistent_groups": None}
