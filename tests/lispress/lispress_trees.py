"""Hypothesis strategies for well-formed Lispress programs, and the trees of the corpora at hand."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import strategies as st

from doppel.lispress import Expression, List, Number, ReaderLiteral, String, Symbol, TypeAnnotation

functions = st.sampled_from(["Yield", "Event.subject_?", "?=", "&", "-", "do", "Path.apply", "a\\ b"])
types = st.recursive(
    st.sampled_from(["Event", "Dynamic", "Unit"]).map(Symbol),
    lambda inner: st.lists(inner, max_size=2).map(lambda rest: List((Symbol("List"), *rest))),
    max_leaves=3,
)
numbers = st.one_of(
    st.integers().map(lambda n: Number(f"{n}L")),
    st.integers().map(lambda n: Number(str(n))),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda x: Number(repr(x))),
    st.sampled_from(["1.50", "007", "-0", "1E+2"]).map(Number),
)
strings = st.text(max_size=8).map(String.of)
literals = strings.map(lambda s: ReaderLiteral(List((Symbol("PersonName"), s))))


@st.composite
def _calls(draw: st.DrawFn, inner: st.SearchStrategy[Expression]) -> Expression:
    head: Expression = Symbol(draw(functions))
    if draw(st.booleans()):
        head = TypeAnnotation(List(tuple(draw(st.lists(types, min_size=1, max_size=2)))), head)
    items = [head]
    for name in draw(st.lists(st.sampled_from([None, ":output", ":c1"]), max_size=3)):
        items += [] if name is None else [Symbol(name)]
        items.append(draw(inner))
    return List(tuple(items))


@st.composite
def _lets(draw: st.DrawFn, inner: st.SearchStrategy[Expression]) -> Expression:
    value, body = draw(inner), draw(inner)
    name = Symbol(draw(st.sampled_from(["x0", "x1"])))
    uses = List((Symbol("&"), body, name, name))
    return List((Symbol("let"), List((name, value)), uses))


@st.composite
def _lambdas(draw: st.DrawFn, inner: st.SearchStrategy[Expression]) -> Expression:
    parameter = TypeAnnotation(draw(types), Symbol("x7"))
    return List((Symbol("lambda"), List((parameter,)), List((Symbol("allows"), draw(inner), Symbol("x7")))))


programs: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(numbers, strings, literals, st.sampled_from(["true", "false"]).map(Symbol)),
    lambda inner: st.one_of(_calls(inner), _lets(inner), _lambdas(inner), st.builds(TypeAnnotation, types, inner)),
    max_leaves=12,
)


def corpus_trees(*folders: str, fields: tuple[str, ...] = ("lispress", "fully_typed_lispress")) -> list[str]:
    """The distinct trees of the dialogue files under DOPPEL_DATA; skips the test where there are none."""
    root = os.environ.get("DOPPEL_DATA")
    if not root:
        pytest.skip("DOPPEL_DATA is not set: no corpus at hand")
    trees: dict[str, None] = {}
    for folder in folders:
        archives = sorted((Path(root) / folder).glob("*.dataflow_dialogues.jsonl.zip"))
        if not archives:
            pytest.skip(f"no dialogue archives in DOPPEL_DATA/{folder}")
        for path in archives:
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    with archive.open(member) as lines:
                        for line in io.TextIOWrapper(lines, "utf-8"):
                            for turn in json.loads(line)["turns"]:
                                trees.update(dict.fromkeys(turn[name] for name in fields if turn.get(name)))
    return list(trees)
