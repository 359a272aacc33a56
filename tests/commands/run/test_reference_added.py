"""A reference that is given to a finished run: it is evaluated and reported, and nothing else of it changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from finished_run import step_here

import cli
from commands.run import launch
from commands.run.execution import execute
from commands.run.experiment.experiment import load


@pytest.mark.slow
def test_a_reference_of_a_finished_run_is_evaluated_and_reported_alone(finished: Path, run: Path) -> None:
    public = run.parent / "human.jsonl"
    public.write_text("".join(json.dumps({"utterance": f"what is on at {i} today"}) + "\n" for i in range(40)))
    ran: list[str] = []

    def stage(kind: str, mark: Path | None, command: Sequence[str], *rest: object) -> int:
        if mark is None:
            ran.append("report")
            return cli.main(list(command[2:]))
        if not mark.exists():
            ran.append(mark.name)
        return step_here(kind, mark, command, *rest)

    def again(*changes: str) -> list[str]:
        ran.clear()
        with mock.patch.object(execute, "run_step", stage):
            assert launch.run(finished.parent / "mine.yaml", run, local=True, set=list(changes)) == 0
        return ran

    before = {path: (run / path).read_bytes() for path in ("ledger.jsonl", "two_stage/samples.jsonl")}
    configs = {path.name: path.read_text() for path in (run / "configs").glob("*sample*.yaml")}
    evaluations = [f"{system}-evaluate" for system in ("one_stage", "labels", "topics", "two_stage")]
    given = f"reference={public}"
    assert again(given) == [*evaluations, "report"]
    assert again(given) == ["report"] and again() == ["report"], "what is compared stays compared"
    assert {path: (run / path).read_bytes() for path in before} == before
    assert {path.name: path.read_text() for path in (run / "configs").glob("*sample*.yaml")} == configs
    report = json.loads((run / "report.json").read_text())
    assert {"one_stage", "two_stage"} <= report["metrics"].keys() and report["card"]["verified"]
    assert report["metrics"]["one_stage"]["word_overlap"] is not None and report["data"]["reference"] == public.name
    assert "word overlap" in (run / "report.html").read_text()
    kept = load(run / "experiment.yaml")
    assert (kept.reference, kept.compared_with) == (None, str(public))
    public.write_text(public.read_text() * 2)
    other = public.with_name("other.jsonl")
    other.write_text(public.read_text())
    assert again(f"reference={other}") == [*evaluations, "report"], "another one takes its place"
    assert {path: (run / path).read_bytes() for path in before} == before
