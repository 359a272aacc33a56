from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lispress_trees import programs

from doppel.lispress import MAX_DEPTH, LispressError, first_error, is_valid, read, to_graph, write

FAULTS = [
    ("", 0, "empty"),
    ("   ", 0, "empty"),
    ("(f (g)", 6, "opened at character 0"),
    ("(f (g", 5, "opened at character 3"),
    ("(f) (g)", 4, "after the end"),
    ("(f))", 3, "after the end"),
    (")", 0, "closing bracket"),
    ('(f "abc)', 3, "never closed"),
    ('(f "abc\\")', 3, "never closed"),
    ("(f a\\", 4, "backslash"),
    ("(f ^)", 4, "needs a type"),
    ("(f ^T)", 5, "needs a type"),
    ("(f #)", 4, "needs a list"),
    ("^T", 2, "needs a type"),
    ("()", 0, "empty list"),
    ("(f ())", 3, "empty list"),
    ("((f) a)", 1, "head of a call"),
    ('("f" a)', 1, "head of a call"),
    ("(f (2 a))", 4, "head of a call"),
    ("(^T f)", 2, "type arguments"),
    ("(^() f)", 2, "type arguments"),
    ("(^(T) (f))", 6, "function name"),
    ("(^(2) f)", 3, "a type must be"),
    ('(f ^("T" A) x)', 5, "name is expected"),
    ("(f :k)", 3, "without a value"),
    ("(f :k :l 1)", 6, "keyword"),
    (":k", 0, "keyword"),
    ("(f x0)", 3, "no let or lambda"),
    ("(let (x0 (f x0)) x0)", 12, "no let or lambda"),
    ("(f (let (x0 (g)) x0) x0)", 21, "no let or lambda"),
    ("(let (x0 (f)) (x0))", 15, "variable at the head"),
    ("(let (x0) x0)", 5, "pairs"),
    ("(let () (f))", 5, "pairs"),
    ("(let x0 (f))", 5, "pairs"),
    ("(let ((f) x0) (g))", 6, "name is expected"),
    ("(let (x0 (f)))", 0, "exactly one body"),
    ("(let (x0 (f)) (g) (h))", 0, "exactly one body"),
    ("(lambda x0 x0)", 8, "parameters"),
    ("(lambda ((T x0)) x0)", 9, "parameter"),
    ("#3", 1, "# literal"),
    ("#(Number)", 1, "# literal"),
    # The first of two faults counts.
    ("(f (2) (g :k))", 4, "head of a call"),
    ("(f (2) (g", 9, "never closed"),
]


@pytest.mark.parametrize(("text", "position", "message"), FAULTS)
def test_the_first_error_says_where_and_what(text: str, position: int, message: str) -> None:
    error = first_error(text)
    assert error is not None and not is_valid(text)
    assert (error.position, message in error.message) == (position, True), str(error)
    assert f"character {position}" in str(error)


@given(programs, st.data())
def test_a_truncated_call_is_invalid_and_the_error_lies_at_its_end_or_at_the_open_string(program, data) -> None:
    text = f"(f {write(program)})"
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    error = first_error(cut)
    assert error is not None
    assert error.position == len(cut) or cut[error.position] in '"\\'


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2_000,
        "(f " * 50_000,
        ")" * 2_000,
        "^" * 50_000,
        "#" * 50_000,
        '"' * 2_001,
        "\\" * 2_001,
        "(f " * 5_000 + ")" * 5_000,
        "^(" * 9_000,
        "(" + "a " * 50_000,
        '"' + "\\" * 50_001,
        "a" * 200_000 + '"',
    ],
    ids=lambda text: f"{text[:4]} {len(text)}",
)
def test_garbage_of_any_length_is_an_error_and_never_a_crash(text: str) -> None:
    assert isinstance(first_error(text), LispressError)
    with pytest.raises(LispressError):
        read(text)


def test_the_depth_limit_is_exact_and_safe_to_work_with() -> None:
    deepest = "(f " * (MAX_DEPTH - 1) + "(f)" + ")" * (MAX_DEPTH - 1)
    expression = read(deepest)
    assert write(expression) == deepest and expression == read(deepest) and len(repr(expression)) > MAX_DEPTH
    assert len(to_graph(expression).nodes) == MAX_DEPTH
    error = first_error(f"(f {deepest})")
    assert error is not None and "deeper" in error.message and error.position == 3 * MAX_DEPTH


def test_errors_quote_nothing_of_the_tree() -> None:
    for text, _, _ in FAULTS:
        secret = text.replace("f", "Secret").replace("g", "Secret").replace("T", "Secret")
        assert "Secret" not in str(first_error(secret))
