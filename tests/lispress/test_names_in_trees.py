"""The names of public trees: what is found in them, and how likely the next tree has another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doppel.errors import DataError
from doppel.lispress import function_types, write
from doppel.lispress.names import Signature
from doppel.lispress.tree_names import names_in_trees, read_tree_names, unseen_share
from tests.lispress.lispress_trees import programs

TREES = [
    '(Yield :output (Event.subject_? (?= "lunch")))',
    '(let (x0 (Today)) (do (Yield x0) (Yield true) (Find (^((Constraint Date)) ?= x0) Nowhere #(Path "a"))))',
    "(Yield (map (lambda (^Event x0) (size x0)) 1L))",
]


def test_names_are_those_of_calls_types_constants_and_arguments() -> None:
    names = names_in_trees(TREES)
    called = {head for tree in TREES for head in function_types(tree, "call_heads")}
    assert names.functions == called - {"let", "lambda"}
    assert names.signatures["Yield"] == Signature(1, 1, frozenset({":output"}))
    assert names.signatures["Find"] == Signature(1, 3, frozenset())
    assert names.signatures["Today"] == Signature(0, 0, frozenset())
    assert names.types == {("Constraint", 1), ("Date", 0), ("Event", 0)}
    assert names.constants == {"true", "false", "Nowhere"} and names.literals == {"Path"}


@given(st.lists(programs.map(write), max_size=4))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_every_head_of_a_tree_is_a_name_and_a_broken_tree_has_none(trees: list[str]) -> None:
    heads = {head for tree in trees for head in function_types(tree, "call_heads")} - {"let", "lambda"}
    assert names_in_trees([*trees, "(Broken", "(Also (Broken) x0)"]).functions == heads | {"do"}


def test_both_have_what_either_has() -> None:
    both = names_in_trees(["(Find 1 2)", "(Today)"]) | names_in_trees(["(Find)", "(Find :of 1)", "(^(Date) Find a)"])
    assert both.signatures["Find"] == Signature(0, 2, frozenset({":of"})) and "Today" in both.functions
    assert both.types == {("Date", 0)} and "a" in both.constants
    assert both.signatures["do"].max_args is None


@given(st.lists(st.sampled_from(["(A)", "(B)", "(A (B))", "(C)", "(D (A))"]), min_size=2, max_size=12))
def test_the_share_of_unseen_functions_is_that_of_each_tree_beside_the_others(trees: list[str]) -> None:
    def is_new(i: int) -> bool:
        others = {name for j, tree in enumerate(trees) if j != i for name in function_types(tree, "call_heads")}
        return not set(function_types(trees[i], "call_heads")) <= others

    assert unseen_share(trees) == sum(map(is_new, range(len(trees)))) / len(trees)
    assert unseen_share([]) == 1


def test_a_line_without_a_tree_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trees.jsonl"
    path.write_text(json.dumps({"parse": TREES[0]}) + "\n" + json.dumps({"parse": "(Broken"}) + "\n")
    with pytest.raises(DataError, match=r"trees\.jsonl:2"):
        read_tree_names(path)
    with pytest.raises(DataError, match=r"none\.jsonl"):
        read_tree_names(tmp_path / "none.jsonl")
    path.write_text("")
    assert read_tree_names(path).is_empty
