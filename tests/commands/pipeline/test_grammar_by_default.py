"""Trees are sampled under the API's table wherever there is one and the paper's settings are not the point."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.pipeline.experiment import load, shipped
from commands.pipeline.synthesis import steps_of
from doppel.errors import UserError
from lightning_modules.causal_lm import ParseTreeLM
from lightning_modules.sampling import SamplingArguments

TABLES = ["DATA/smcalflow/api_types.csv", "configs/grammar/smcalflow_constants.csv"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("quickstart", None), ("smcalflow-best-small", TABLES), ("smcalflow-small", None), ("smcalflow", None)],
)
def test_experiments_sample_trees_under_their_grammar(
    name: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOPPEL_DATA", "DATA")
    systems = ["one_stage", "two_stage", "unconstrained"]
    stages = {stage.name: stage for stage in steps_of(load(shipped(name), {"systems": systems}), Path("run"))}
    ways = {
        stage: (stages[f"sample_{stage}"].config or {})["model"]["init_args"]["sampling"]
        for stage in ("trees", "utterances", "one_stage", "unconstrained_trees", "unconstrained_utterances")
    }
    assert {stage: way.get("grammar") for stage, way in ways.items()} == dict.fromkeys(ways) | {"trees": expected}
    assert "unconstrained_parse_tree" not in stages  # it samples from the same models


def test_a_grammar_that_cannot_be_read_is_refused_before_anything_is_spent(tiny_model: str) -> None:
    with pytest.raises(UserError, match=r"'no\.csv'"):
        ParseTreeLM(base_model=tiny_model, sampling=SamplingArguments(grammar="no.csv"))
