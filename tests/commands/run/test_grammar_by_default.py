"""Trees are sampled of the functions of the API's table or of the reference, but for the paper's settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.run.experiment.experiment import load, shipped
from commands.run.steps.recipes import steps_of
from commands.run_folder.places import ROOT
from doppel.decoding.sampling import SamplingArguments
from doppel.errors import UserError
from lightning_modules.causal_lm import ParseTreeLM

TABLES = ["DATA/smcalflow/api_types.csv", str(ROOT / "configs/grammar/smcalflow_constants.csv")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quickstart", ["run/public_trees.jsonl"]),
        ("sgd-small", ["run/public_trees.jsonl"]),
        ("smcalflow-best-small", TABLES),
        ("smcalflow-small", None),
        ("smcalflow", None),
        ("adaptation-weather-small", TABLES),
    ],
)
def test_experiments_sample_trees_under_their_grammar(
    name: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOPPEL_DATA", "DATA")
    systems = ["one_stage", "two_stage", "unconstrained"]
    stages = {stage.name: stage for stage in steps_of(load(shipped(name), {"systems": systems}), Path("run"))}
    ways = {
        name: (stage.config or {})["model"]["init_args"]["sampling"]
        for name, stage in stages.items()
        if stage.kind == "predict" and stage.folder and "sample_" in stage.folder
    }
    assert {stage: way.get("grammar") for stage, way in ways.items()} == dict.fromkeys(ways) | {
        "two_stage-sample_parse_tree": expected
    }
    assert len(ways) == 5 and "unconstrained-parse_tree" not in stages  # it samples from the same models


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"reference": "public.jsonl"}, ["run/public_trees.jsonl"]),
        ({"reference": "public.jsonl", "stages.parse_tree.sampling.grammar": None}, None),
        ({"reference": "public.jsonl", "sampling.grammar": ["api.csv"]}, ["api.csv"]),
        ({"reference": "p.txt", "sampling.grammar": ["reference", "api.csv"]}, ["run/public_trees.jsonl", "api.csv"]),
    ],
)
def test_names_are_those_of_the_reference_unless_something_else_is_said(
    changes: dict[str, object], expected: list[str] | None
) -> None:
    """Where they are, a step writes them before the training, which reads them as the sampling does."""
    own = {"data.train_path": "private.jsonl", "systems": ["two_stage"], **changes}
    steps = {step.name: step for step in steps_of(load(shipped("own-data-small"), own), Path("run"))}
    reads = "public_trees.jsonl" in (expected or [""])[0]
    assert ("public_trees" in steps) == reads
    for name in ("two_stage-parse_tree", "two_stage-sample_parse_tree"):
        config = steps[name].config or {}
        assert config["model"]["init_args"]["sampling"].get("grammar") == expected
        assert ("public_trees.jsonl" in steps[name].reads) == reads
    assert not reads or "public_trees" in steps["two_stage-parse_tree"].needs


def test_the_names_of_no_reference_are_refused() -> None:
    own = {"data.train_path": "private.jsonl", "systems": ["two_stage"], "sampling.grammar": "reference"}
    with pytest.raises(UserError, match="reference=PUBLIC"):
        steps_of(load(shipped("own-data-small"), own), Path("run"))


def test_a_grammar_that_cannot_be_read_is_refused_before_anything_is_spent(tiny_model: str) -> None:
    with pytest.raises(UserError, match=r"no file no\.csv"):
        ParseTreeLM(base_model=tiny_model, sampling=SamplingArguments(grammar="no.csv"))
