"""`results`: what may share a cell, what is left out, and that both are said."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from run_folders import make_run

import cli
from commands.quality.pool import Group, pool
from commands.quality.results import write_results
from commands.quality.runs import Runs, read_runs
from commands.quality.sections import layouts


def group_of(runs: Runs, system: str, **key: Any) -> Group:
    """The only group of a system whose key has these values."""
    groups = [g for g in pool(runs.points) if g.key["system"] == system and key.items() <= g.key.items()]
    assert len(groups) == 1
    return groups[0]


def texts(runs: Runs, system: str | None = None) -> str:
    return "\n".join(problem.text for problem in runs.problems if system in (None, problem.system))


def markdown_of(root: Path) -> str:
    write_results(read_runs(root), root / "results", plots=False)
    return (root / "results" / "results.md").read_text(encoding="utf-8")


def row_of(markdown: str, table: str, start: str) -> list[list[str]]:
    """Cells of the rows of a table that start so."""
    part = markdown.split(f"## Table {table}:", 1)[1].split("\n## ", 1)[0]
    return [[c.strip() for c in line.strip("| ").split(" | ")] for line in part.splitlines() if line.startswith(start)]


def test_a_cell_is_the_mean_and_the_unbiased_deviation_over_seeds(tmp_path: Path) -> None:
    values = {1: 0.2, 2: 0.25, 5: 0.36}
    for seed, value in values.items():
        make_run(tmp_path / f"run{seed}", seed=seed, metrics={"two_stage": {"word_overlap": value}}, commit=f"c{seed}")
    group = group_of(read_runs(tmp_path), "two_stage")
    cell = group.cell("word_overlap")
    assert cell.num == 3 and cell.mean == pytest.approx(statistics.mean(values.values()))
    assert cell.std == pytest.approx(statistics.stdev(values.values()))
    assert group.commits == ["c1", "c2", "c5"]  # commits are pooled, and listed
    (row,) = row_of(markdown_of(tmp_path), "1", "| 3 | 2-stage")
    assert row[2:4] == ["0.270 ± 0.082", ".205 ± .004"] and row[-1] == "c1, c2, c5" and row[10] == "3"


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    make_run(tmp_path / "run", metrics={"two_stage": {}})
    assert group_of(read_runs(tmp_path), "two_stage").cell("mauve").std is None
    (row,) = row_of(markdown_of(tmp_path), "1", "| 3 | 2-stage")
    assert row[2] == "0.200"


@pytest.mark.parametrize(
    "other",
    [
        {"epsilon": 8.0},
        {"epsilon": None},
        {"delta": 2e-5},
        {"unit": "dialogue"},
        {"fingerprint": "beef" * 16},
        {"base_model": "models/other"},
        {"num_samples": 90000},
        {"parser": "runs/parser/last.ckpt 99999999"},
        {"parser": None},
        {"metrics": {"two_stage": {"featurizer": "gpt2-large"}}},
        {"metrics": {"two_stage": {"num_compared": 1000}}},
        {"experiment": "smcalflow-small-best"},
        {"table": None},
        {"base_model": None},
        {"sampling": {"two_stage": {"synthetic.jsonl": {"num_beams": 5}}}},
        {"data": {}},
    ],
)
def test_runs_that_differ_in_a_setting_never_share_a_cell(tmp_path: Path, other: dict[str, Any]) -> None:
    make_run(tmp_path / "a", seed=1, metrics={"two_stage": {}})
    make_run(tmp_path / "b", **{"seed": 2, "metrics": {"two_stage": {"mauve": 0.9}}, **other})
    groups = pool(read_runs(tmp_path).points)
    assert [len(group.points) for group in groups] == [1, 1]


def test_rows_that_differ_say_in_what(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=1)
    make_run(tmp_path / "b", seed=2, delta=2e-5)
    text = markdown_of(tmp_path)
    assert len(row_of(text, "1", "| 3 | 2-stage")) == 2
    assert "2-stage at ε = 3 has 2 rows, not pooled: they differ in delta" in text


def test_a_run_without_privacy_is_labelled(tmp_path: Path) -> None:
    make_run(tmp_path / "run", epsilon=None)
    group = group_of(read_runs(tmp_path), "two_stage")
    assert group.key["epsilon"] == math.inf and group.spent is None
    assert row_of(markdown_of(tmp_path), "1", "| ∞ (not private) | 2-stage")


def test_a_half_done_run_is_told_in_the_cell_it_would_have_filled(tmp_path: Path) -> None:
    make_run(tmp_path / "a", epsilon=8.0)
    make_run(tmp_path / "half", epsilon=3.0, done=7, report=False, metrics={"two_stage": {}})
    text = markdown_of(tmp_path)
    (row,) = row_of(text, "1", "| 3 | 2-stage")
    number = row[2].removeprefix("– [").removesuffix("]")
    assert f"- [{number}] half left out: half-done: the folder has no report.json; 7 of 20 planned steps" in text
    (row,) = row_of(text, "1", "| 16 | 2-stage")
    number = row[2].removeprefix("– [").removesuffix("]")
    assert f"- [{number}] no run\n" in text


def test_unfinished_steps_keep_a_system_out(tmp_path: Path) -> None:
    make_run(tmp_path / "run", done=7)
    runs = read_runs(tmp_path)
    assert not runs.points and "half-done: 7 of 20 planned steps" in texts(runs, "two_stage")


def test_an_experiment_names_its_table_and_nothing_else_does(tmp_path: Path) -> None:
    make_run(tmp_path / "sweeps" / "few-large", metrics={"two_stage": {}})
    make_run(tmp_path / "b", metrics={"two_stage": {"mauve": 0.9}}, table=None, seed=2)
    text = markdown_of(tmp_path)
    (row,) = row_of(text, "1", "| 3 | 2-stage")
    assert row[4] == "0.500" and "0.900" in text.split("## Runs outside the paper's tables")[1]
    report = make_run(tmp_path / "old", metrics={"one_stage": {}}, experiment="gpt2-large-small")
    del report["table"]  # as before experiments named theirs
    (tmp_path / "old" / "report.json").write_text(json.dumps(report))
    assert {point.key["table"] for point in read_runs(tmp_path / "old").points} == {"large"}


def test_a_system_that_the_report_left_out_is_told_in_its_cell(tmp_path: Path) -> None:
    make_run(tmp_path / "a", metrics={"one_stage": {}}, left_out={"two_stage": "half-done: it has no evaluation"})
    text = markdown_of(tmp_path)
    (row,) = row_of(text, "1", "| 3 | 2-stage")
    number = row[2].removeprefix("– [").removesuffix("]")
    assert f"- [{number}] a left out: half-done: it has no evaluation" in text


def test_contradictions_keep_a_system_out(tmp_path: Path) -> None:
    def edit(name: str, **fields: Any) -> Runs:
        report = make_run(tmp_path / name, metrics={"two_stage": {}})
        report["privacy"]["systems"]["two_stage"] |= fields
        (tmp_path / name / "report.json").write_text(json.dumps(report))
        return read_runs(tmp_path / name)

    assert "above its target" in texts(edit("spent", epsilon=3.5), "two_stage")
    assert "ledger disagrees with the report: ε is" in texts(edit("less", epsilon=1.0), "two_stage")
    assert "ledger disagrees with the report: delta" in texts(edit("delta", delta=1e-6), "two_stage")
    assert "ledger disagrees with the report: target_epsilon" in texts(edit("target", target_epsilon=8.0), "two_stage")
    assert "ledger disagrees with the report: steps_done" in texts(edit("steps", steps_done=25), "two_stage")
    for name in ("spent", "less", "delta", "target", "steps"):
        assert not read_runs(tmp_path / name).points


def test_a_report_that_hides_private_steps_is_refused(tmp_path: Path) -> None:
    report = make_run(tmp_path / "run", metrics={"two_stage": {}})
    (tmp_path / "run" / "report.json").write_text(json.dumps(report | {"privacy": None, "epsilon": None}))
    runs = read_runs(tmp_path)
    assert not runs.points and "the ledger holds private steps" in texts(runs, "two_stage")


def test_a_report_of_other_data_than_the_ledgers_is_refused(tmp_path: Path) -> None:
    report = make_run(tmp_path / "run", metrics={"two_stage": {}})
    report["data"]["fingerprint"] = "beef" * 16
    (tmp_path / "run" / "report.json").write_text(json.dumps(report))
    runs = read_runs(tmp_path)
    assert not runs.points and "fingerprint" in texts(runs, "two_stage")


def test_an_epsilon_that_the_ledger_calls_void_is_said(tmp_path: Path) -> None:
    report = make_run(tmp_path / "run", metrics={"domain": {}})
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        (tmp_path / "run" / name).unlink()
    scope = report["privacy"]["systems"]["domain"]
    scope |= {"epsilon": None, "epsilon_of_mechanisms": 2.9, "caveats": ["exact domain histogram"]}
    (tmp_path / "run" / "report.json").write_text(json.dumps(report))
    (row,) = row_of(markdown_of(tmp_path), "1", "| 3 (void: not private) | 1.5-stage")
    assert row[2] == "0.200"
    assert "exact domain histogram" in (tmp_path / "results" / "results.md").read_text()


def test_a_report_that_is_no_json_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "run", metrics={"two_stage": {}})
    (tmp_path / "run" / "report.json").write_text('{"metrics": ')
    runs = read_runs(tmp_path)
    assert not runs.points and "report.json is no JSON" in texts(runs, "two_stage")


def test_a_duplicate_seed_counts_once_or_not_at_all(tmp_path: Path) -> None:
    for name, seed, value in (("a", 1, 0.2), ("b", 1, 0.3), ("c", 2, 0.4), ("d", 3, 0.5), ("e", 3, 0.5)):
        make_run(tmp_path / name, seed=seed, metrics={"two_stage": {"word_overlap": value}})
    group = group_of(read_runs(tmp_path), "two_stage")
    assert [point.seed for point in group.points] == [2, 3]
    assert group.cell("word_overlap").mean == pytest.approx(0.45)
    assert any("duplicate seed 1: a and b" in note and "both left out" in note for note in group.notes)
    assert any("duplicate seed 3" in note and "counted once" in note for note in group.notes)
    assert "duplicate seed 1: a and b hold different numbers, both left out" in markdown_of(tmp_path)


def test_a_run_without_a_seed_is_not_pooled(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=1)
    make_run(tmp_path / "b", seed=None)
    group = group_of(read_runs(tmp_path), "two_stage")
    assert [point.path for point in group.points] == ["a"] and "without a seed" in group.notes[0]


def test_a_null_metric_is_a_dash_with_the_reports_reason(tmp_path: Path) -> None:
    null = {"parsed_function_overlap": None, "notes": ["parsed_… are null: the parser failed"]}
    make_run(tmp_path / "a", metrics={"two_stage": null})
    text = markdown_of(tmp_path)
    (row,) = row_of(text, "1", "| 3 | 2-stage")
    assert row[8].startswith("– [") and "null in the report (parsed_… are null: the parser failed)" in text
    make_run(tmp_path / "b", seed=2, metrics={"two_stage": {}})
    assert "only 1 of 2 seeds" in markdown_of(tmp_path)


def test_private_figures_stay_out(tmp_path: Path) -> None:
    make_run(tmp_path / "run", metrics={"two_stage": {"private/copies": 0.125}})
    markdown_of(tmp_path)
    written = [path.read_text() for path in (tmp_path / "results").iterdir() if path.is_file()]
    assert not any("private/" in text or "0.125" in text for text in written)


def test_adaptation_reports_fill_tables_3_and_8(tmp_path: Path) -> None:
    pattern = "EventOnDate*"
    for seed in (1, 2):
        values = {
            system: {f"{key}{of}": match for key in ("exact_match", "api_precision", "api_recall") for of in suffixes}
            for system, match in (("none", 0.1 * seed), ("one_stage", 0.4), ("two_stage", 0.5))
            for suffixes in [("", f"@{pattern}", f"@not {pattern}")]
        }
        fields = {"missing_function": pattern, "parser_metrics": values, "experiment": "adaptation-event-on-date"}
        fields |= {"table": "adaptation"}
        make_run(tmp_path / f"run{seed}", seed=seed, metrics={}, **fields)
    text = markdown_of(tmp_path)
    (row,) = row_of(text, "3", "| public data alone | none")
    assert row[2:4] == ["15.0 ± 7.1", "0.0"] and row[15] == "–"  # no ε was spent on public data
    (row,) = row_of(text, "3", "| 3 | 2-stage")
    assert row[2:4] == ["50.0 ± 0.0", "61.4 ± .7"]
    (row,) = row_of(text, "3", "| ∞ (not private) | full data")
    assert row[2].startswith("– [")
    assert row_of(text, "8", "| 3 | 1-stage")[0][2] == "40.0 ± 0.0"
    assert "Table 1, one-stage, 1.5-stage and two-stage synthesis, SMCalFlow: no run" in text


def test_samples_without_a_grammar_have_the_budget_of_the_models_they_come_from(tmp_path: Path) -> None:
    make_run(tmp_path / "a", metrics={"two_stage": {"mauve": 0.5}, "unconstrained": {"mauve": 0.6}})
    runs = read_runs(tmp_path)
    assert not runs.problems
    told = {point.key["system"]: (point.key["epsilon"], point.key["training"], point.spent) for point in runs.points}
    assert told["unconstrained"] == told["two_stage"]
    assert told["two_stage"][0] == 3.0


@pytest.mark.parametrize(
    ("train", "name"),
    [
        ("${DOPPEL_DATA}/smcalflow/train.zip", "smcalflow"),
        ("/data/smcalflow/train.zip", "smcalflow"),
        ("${PREPARED}/private_gold.jsonl", "private_gold.jsonl"),
        ("embedded:train?num=50", "embedded"),
        ("$TRAIN", "$TRAIN"),
    ],
)
def test_data_are_named_by_their_folder_and_never_by_a_variable_alone(tmp_path: Path, train: str, name: str) -> None:
    data = {"train": train, "fingerprint": "a" * 64, "reference": "valid.zip"}
    make_run(tmp_path / "run", fingerprint="a" * 64, data=data)
    assert {point.key["data"] for point in read_runs(tmp_path).points} == {name}


def test_plots_are_written_for_each_data_set(tmp_path: Path) -> None:
    for name, train in (("a", "x/smcalflow/train.zip"), ("b", "x/sgd/train.zip")):
        for epsilon in (3.0, None):
            fingerprint = name * 64
            data = {"train": train, "fingerprint": fingerprint, "reference": "valid.zip"}
            make_run(tmp_path / f"{name}{epsilon}", epsilon=epsilon, fingerprint=fingerprint, data=data)
    files = write_results(read_runs(tmp_path), tmp_path / "results")
    plots = [path for path in files if path.parent.name == "plots"]
    assert sorted(path.suffix for path in plots) == [".png", ".png", ".svg", ".svg"]
    assert all(path.stat().st_size > 10_000 for path in plots)
    assert {path.name.split("-")[2] for path in plots} == {"smcalflow", "sgd"}


def test_the_papers_numbers_are_as_in_its_text() -> None:
    values = {(t.id, t.of, t.missing_function): t.values for t in layouts()}
    smcalflow, treedst = values["1", ("main", "best"), None], values["1", ("treedst",), None]
    assert smcalflow[3.0, "two_stage"] == (".205 ± .004", ".530 ± .031", ".054 ± .003", ".693 ± .010")
    assert treedst[math.inf, "domain"][1] == ".399 ± .046"
    assert values["4", ("main", "shuffled"), None][3.0, "shuffled"] == (".032", ".401", ".453", ".232")
    assert values["3", ("adaptation",), "EventOnDate*"][3.0, "two_stage"][0] == "61.4 ± .7"
    assert {layout.id for layout in layouts()} == set("12345678")


def test_the_command_writes_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "runs" / "a")
    make_run(tmp_path / "runs" / "b", seed=2, done=3, report=False)
    assert cli.main(["results", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert "left out: b, two_stage: half-done" in capsys.readouterr().out
    assert {"results.md", "table_1.csv", "all.csv"} <= {path.name for path in (tmp_path / "out").iterdir()}
    (tmp_path / "empty").mkdir()
    assert cli.main(["results", str(tmp_path / "empty")]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert cli.main(["results", str(tmp_path / "nowhere")]) == 2
