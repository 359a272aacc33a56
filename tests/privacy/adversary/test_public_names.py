"""The attacker wants to read, off the functions that sampled trees may call, what a private user has called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cli
from commands.data.public_trees import public_trees
from commands.run.experiment.experiment import load, save, shipped
from commands.run.steps.recipes import steps_of
from datamodules.text_format import TextFormat
from doppel.decoding.tree_constraint import tree_constraint
from doppel.errors import UserError
from doppel.grammar import generate
from doppel.models.load import load_tokenizer
from doppel.settings.yaml_files import dump

SECRET = "(Yield (Quetzalcoatl (Today)))"


def rows(seed: int, *more: tuple[str, str]) -> str:
    turns = [(turn.utterance, turn.parse) for turn in generate(1000, seed, 1.5)]
    return "".join(json.dumps({"utterance": x, "parse": y}) + "\n" for x, y in [*turns, *more])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A private file in which one user calls a function that nobody else calls, and a public one."""
    private, public = tmp_path / "private.jsonl", tmp_path / "public.jsonl"
    private.write_text(rows(1, ("feed Quetzalcoatl today", SECRET)))
    public.write_text(rows(2))
    return private, public


def test_a_private_function_never_reaches_the_grammar(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Every step before the first training is run as the run would run it."""
    private, public = files
    own = {"data.train_path": str(private), "reference": str(public), "systems": ["two_stage"]}
    run = tmp_path / "run"
    steps = steps_of(load(shipped("own-data-small"), own), run)
    first = next(step for step in steps if step.kind == "fit")
    assert [step.name for step in steps[: steps.index(first)]] == ["public_trees"] == list(first.needs)
    (run / "configs").mkdir(parents=True)
    (run / "configs" / "public_trees.yaml").write_text(dump(steps[0].config))
    assert cli.main(list(steps[0].words(run))) == 0
    assert str(private) not in steps[0].reads and "Quetzalcoatl" not in (run / "public_trees.jsonl").read_text()
    (sampled,) = (step for step in steps if step.name == "two_stage-sample_parse_tree")
    text_format = TextFormat(load_tokenizer("models/base"), None, "parse", 256, "raw")
    constraint = tree_constraint(text_format, (sampled.config or {})["model"]["init_args"]["sampling"]["grammar"])
    assert constraint is not None

    def is_written(tree: str) -> bool:
        state, ids = constraint.start(), text_format.tokenize([text_format.linearise(tree, "parse")])[0]
        return bool(state.try_consume_tokens(ids) == len(ids) and state.is_accepting())

    assert not is_written(SECRET)
    assert is_written(SECRET.replace("(Quetzalcoatl (Today))", "(Today)"))


def test_the_private_file_is_refused_as_a_reference_in_any_form(files: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = files
    run, copy = tmp_path / "run", tmp_path / "copy.jsonl"
    run.mkdir()
    save(load(shipped("own-data-small"), {"data.train_path": str(private)}), run / "experiment.yaml")
    lines = [json.loads(line) for line in private.read_bytes().splitlines()]
    turned = [{"text": f"{line['utterance'].upper()}!", "parse": line["parse"]} for line in lines[::-1]]
    copy.write_text("".join(json.dumps(line) + "\n" for line in turned))
    with pytest.raises(UserError, match="--reference is .* is to be public"):
        public_trees(reference=str(copy), out=run / "public_trees.jsonl")
    assert not (run / "public_trees.jsonl").exists()
    public_trees(reference=str(public), out=run / "public_trees.jsonl")
