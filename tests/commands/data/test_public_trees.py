"""The trees of the reference, of whose names trees are sampled: written where there are enough of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cli
from commands.data.public_trees import public_trees
from datamodules.reading.columns import Columns
from doppel.lispress import is_valid
from doppel.lispress.tree_names import read_tree_names


def trees_of(path: Path) -> list[str]:
    return [json.loads(line)["parse"] for line in path.read_bytes().splitlines()]


def test_the_distinct_trees_are_written_without_names_of_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, out = tmp_path / "public.jsonl", tmp_path / "out.jsonl"
    rows = [{"said": f"find {name}", "tree": f'(Find (?= "{name}"))'} for name in ("Ana", "Bo", "Cy")]
    rows += [{"said": "no tree"}]
    reference.write_text("".join(json.dumps(row) + "\n" for row in rows))
    public_trees(reference=str(reference), out=out, columns=Columns(text="said", parse="tree"))
    assert trees_of(out) == ['(Find (?= "STRING"))']
    assert read_tree_names(out).functions == {"Find", "?=", "do"}
    told = capsys.readouterr().out
    assert "never sampled" in told and "grammar=null" in told


@pytest.mark.parametrize("reference", ["embedded:test?num=30&seed=9&skew=1.5", "words.txt"])
def test_too_few_trees_are_none(
    reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("lunch with Ana\n")
    assert cli.main(["step", "public-trees", "--reference", reference, "--out", str(tmp_path / "out.jsonl")]) == 0
    assert trees_of(tmp_path / "out.jsonl") == []
    assert "malformed ones are drawn again" in capsys.readouterr().out


def test_enough_trees_are_all_well_formed(tmp_path: Path) -> None:
    public_trees(reference="embedded:test?num=1000&seed=9&skew=1.5", out=tmp_path / "out.jsonl")
    found = trees_of(tmp_path / "out.jsonl")
    assert len(found) > 100 and len(set(found)) == len(found) and all(map(is_valid, found))
