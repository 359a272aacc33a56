"""Properties of the embedded corpus: determinism, validity, variety, copying, skew."""

from __future__ import annotations

import csv
import os
import random
import re
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest

from doppel.grammar import GeneratedTurn, generate
from doppel.grammar.dialogue import DOMAINS, FOLLOWS, MAX_TURNS, OPENINGS
from doppel.grammar.rules import productions, rules
from doppel.grammar.style import finish
from doppel.grammar.synchronous import GrammarError, SynchronousGrammar, rule
from doppel.grammar.times import DAYS, MONTHS
from doppel.lispress import function_types, is_valid, read, write

CONFIRMATION = "(Yield (Execute (^(Dynamic) ConfirmAndReturnAction)))"
THANKS = "(PleasantryAnythingElseCombined)"
STRUCTURAL = {"do", "let", "&", "Yield", "x0"}
MONTHS_AND_DAYS = {*MONTHS, *DAYS}


@pytest.fixture(scope="module")
def turns() -> list[GeneratedTurn]:
    return list(generate(10_000, seed=1))


def user_strings(parse: str) -> list[str]:
    """Quoted strings that the user said (not the paths inside the program)."""
    return re.sub(r'\(Path\.apply "[^"]*"\)', "", parse).split('"')[1::2]


def call_heads(turns: list[GeneratedTurn]) -> Counter[str]:
    return Counter(head for turn in turns for head in function_types(str(turn.parse), counting="call_heads"))


@pytest.fixture(scope="module")
def heads(turns: list[GeneratedTurn]) -> Counter[str]:
    return call_heads(turns)


def test_same_seed_same_turns_and_other_seed_other_turns() -> None:
    first = list(generate(300, seed=5))
    assert first == list(generate(300, seed=5))
    assert {t.utterance for t in first} != {t.utterance for t in generate(300, seed=6)}


def test_longer_corpus_starts_with_the_shorter_one() -> None:
    assert list(generate(200, seed=2))[:50] == list(generate(50, seed=2))


@pytest.mark.parametrize("num_turns", [0, 1, 7, 100])
def test_writes_exactly_the_number_of_turns_asked_for(num_turns: int) -> None:
    assert len(list(generate(num_turns, seed=0))) == num_turns


@pytest.mark.parametrize("arguments", [{"num_turns": -1, "seed": 0}, {"num_turns": 1, "seed": 0, "skew": -0.5}])
def test_refuses_negative_arguments_at_once(arguments: dict) -> None:
    with pytest.raises(ValueError, match="num_turns"):
        generate(**arguments)


def test_every_tree_is_valid_lispress_and_round_trips(turns: list[GeneratedTurn]) -> None:
    for parse in {turn.parse for turn in turns if turn.parse}:
        assert is_valid(parse), parse
        assert write(read(parse)) == parse


def test_every_string_of_a_tree_occurs_verbatim_in_the_utterance(turns: list[GeneratedTurn]) -> None:
    for turn in turns:
        for string in user_strings(turn.parse):
            assert string and string in turn.utterance, turn


def test_utterances_are_clean_text(turns: list[GeneratedTurn]) -> None:
    for turn in turns:
        assert turn.utterance == turn.utterance.strip() and "  " not in turn.utterance
        assert not set(turn.utterance) & set("{}[]|\n\t"), turn.utterance
        assert not set(turn.parse) & set("{}[]|\n\t"), turn.parse


def test_thousands_of_distinct_pairs(turns: list[GeneratedTurn]) -> None:
    requests = [t for t in turns if t.domain in ("calendar", "weather", "people", "places")]
    assert len({t.utterance for t in requests}) > 6_000
    assert len({t.parse for t in turns}) > 4_000


def test_function_types_have_a_long_tail(heads: Counter[str]) -> None:
    counts = sorted(heads.values(), reverse=True)
    assert len(counts) >= 150
    assert sum(counts[:20]) > 0.5 * sum(counts)
    assert sum(count < 10 for count in counts) > 0.2 * len(counts)


def test_short_answers_are_as_frequent_as_in_real_use(turns: list[GeneratedTurn]) -> None:
    share = {parse: count / len(turns) for parse, count in Counter(t.parse for t in turns).most_common(2)}
    assert list(share) == [CONFIRMATION, THANKS]
    assert 0.09 < share[CONFIRMATION] < 0.14 and 0.05 < share[THANKS] < 0.10
    assert 0.03 < sum(t.parse.startswith("(Fence") for t in turns) / len(turns) < 0.08


def test_names_vary_too_much_to_be_learned_by_heart(turns: list[GeneratedTurn]) -> None:
    half = len(turns) // 2
    seen = {string for turn in turns[:half] for string in user_strings(turn.parse)}
    fresh = [string for turn in turns[half:] for string in user_strings(turn.parse)]
    assert sum(string not in seen for string in fresh) > 0.4 * len(fresh)


def test_one_tree_has_many_wordings() -> None:
    grammar = SynchronousGrammar(rules())
    rng = random.Random(0)
    wordings: dict[str, set[str]] = {}
    for _ in range(4_000):
        phrase, tree = grammar.expand("delete", rng)
        wordings.setdefault(re.sub(r'"[^"]*"', '""', tree), set()).add(phrase.split()[0])
    assert max(map(len, wordings.values())) >= 6


def test_dialogues_are_contiguous_short_and_begin_with_an_opening(turns: list[GeneratedTurn]) -> None:
    groups = [(unit, list(group)) for unit, group in groupby(turns, key=lambda turn: turn.unit)]
    assert len({unit for unit, _ in groups}) == len(groups)
    assert all(1 <= len(group) <= MAX_TURNS for _, group in groups)
    assert groups[0][0] == "grammar-1-000000"
    assert not any(group[0].parse == CONFIRMATION for _, group in groups)


def test_flow_names_only_known_intents() -> None:
    known = DOMAINS.keys()
    assert OPENINGS.keys() <= known and FOLLOWS.keys() == known
    assert all(follow.keys() <= known | {"again", "end"} for follow in FOLLOWS.values())


def test_skew_sharpens_the_distribution(heads: Counter[str]) -> None:
    def top_share(some: Counter[str]) -> float:
        return sum(count for _, count in some.most_common(15)) / some.total()

    flat, sharp = list(generate(1_500, seed=1, skew=0.4)), list(generate(1_500, seed=1, skew=1.8))
    assert top_share(call_heads(flat)) + 0.03 < top_share(heads) < top_share(call_heads(sharp)) - 0.03
    assert all(is_valid(str(turn.parse)) for turn in flat + sharp)


def test_heads_are_functions_of_the_published_api(heads: Counter[str]) -> None:
    folder = os.environ.get("DOPPEL_DATA")
    if not folder or not (path := Path(folder) / "smcalflow" / "api_types.csv").exists():
        pytest.skip("needs smcalflow/api_types.csv under DOPPEL_DATA")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    functions = {row[0] for row in rows}
    types = set(re.findall(r"\w+", " ".join(cell for row in rows for cell in row[1:])))

    def known(head: str) -> bool:
        if head in functions | STRUCTURAL | MONTHS_AND_DAYS:
            return True
        if head.endswith("_?"):  # a field constraint, written after the field's accessor
            return head.removesuffix("_?") in functions
        return "." in head and head.split(".")[0] in types  # a member of an enumeration

    rare = call_heads(list(generate(3_000, seed=3, skew=0.2)))
    assert sorted(head for head in heads | rare if not known(head)) == []


def test_rules_that_cannot_agree_are_refused() -> None:
    with pytest.raises(GrammarError, match="variables"):
        SynchronousGrammar({"a": [rule(1, "(X {b})", "[{b}|]")], "b": [rule(1, "1L", "one")]})
    with pytest.raises(GrammarError, match="unknown"):
        SynchronousGrammar({"a": [rule(1, "(X)", "{nowhere}")]})
    with pytest.raises(GrammarError, match="unclosed"):
        SynchronousGrammar({"a": [rule(1, "(X)", "[one|two")]})


@pytest.mark.parametrize(
    "entry",
    [
        {"weight": 1, "tree": "(X)"},
        {"weight": 0, "tree": "(X)", "phrases": ["x"]},
        {"weight": 1, "tree": "(X)", "phrases": []},
        {"weight": 1, "tree": "(X)", "phrases": [True]},  # what YAML reads of an unquoted "yes" or "on"
    ],
)
def test_an_entry_of_a_file_that_is_no_rule_is_refused_with_its_place(entry: dict) -> None:
    with pytest.raises(GrammarError, match="people.yaml, guest, rule 2"):
        productions([{"weight": 1, "tree": "(X)", "phrases": ["x"]}, entry], "people.yaml, guest")


def test_variables_are_shared_between_phrase_and_tree_and_numbered_ones_are_independent() -> None:
    digits = [rule(1, f"{n}L", str(n)) for n in range(10)]
    grammar = SynchronousGrammar({"sum": [rule(1, "(+ {n} {n.2})", "{n.2} and {n}")], "n": digits})
    rng = random.Random(0)
    pairs = [grammar.expand("sum", rng) for _ in range(200)]
    assert all(tree == f"(+ {text[-1]}L {text[0]}L)" for text, tree in pairs)
    assert any(text[0] != text[-1] for text, _ in pairs)


def test_typed_looks_change_utterance_and_tree_alike() -> None:
    rng = random.Random(0)
    looks = {finish("dan's Lunch with Ann", '(X "dan\'s Lunch" "Ann")', rng) for _ in range(300)}
    assert len(looks) > 8
    for text, tree in looks:
        assert all(string in text for string in user_strings(tree))
