"""`page` of several runs: what may share a cell, what is left out, and that both are said."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from run_folders import make_run, sample, spec

import cli
from commands.quality.frame import COLUMNS, HUMAN, SETTINGS, VOID, counted, pool, read_csv, read_runs, write_csv
from commands.quality.measures import MEASURES, measure
from commands.quality.tables import PAPER, beside_paper, lines, sections, table
from commands.report.charts import draw_curves
from commands.run_folder.run_folder import AUDIT_SETTINGS
from doppel.errors import UserError
from doppel.privacy.accounting import Mechanism, compute_epsilon


def run(folder: Path, **fields: Any) -> dict[str, Any]:
    """A run whose samples came from checkpoints that its ledger has paid for."""
    report = make_run(folder, **fields)
    if report["privacy"] is not None:
        for name in report["privacy"]["systems"]:
            sample(folder, name)
    return report


def pooled(root: Path, metric: str = "mauve_own_base", system: str = "two_stage") -> pd.DataFrame:
    """The cells of one metric of one system."""
    found = pool(counted(read_runs([root])[0])[0])
    return found[(found["metric"] == metric) & (found["system"] == system)]


def test_a_cell_is_the_mean_and_the_unbiased_deviation_over_seeds(tmp_path: Path) -> None:
    values = {1: 0.2, 2: 0.25, 5: 0.36}
    for seed, value in values.items():
        run(tmp_path / f"run{seed}", seed=seed, metrics={"two_stage": {"word_overlap": value}}, commit=f"c{seed}")
    (cell,) = pooled(tmp_path, "word_overlap").itertuples()
    assert cell.seeds == 3 and cell.value == pytest.approx(statistics.mean(values.values()))
    assert cell.std == pytest.approx(statistics.stdev(values.values()))
    assert cell.commit == "c1, c2, c5"  # commits are pooled, and listed
    assert "| 0.270 ± 0.082 |" in table(pooled(tmp_path, "word_overlap")).markdown()


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    run(tmp_path / "run", metrics={"two_stage": {}})
    (cell,) = pooled(tmp_path).itertuples()
    assert math.isnan(cell.std) and "±" not in table(pooled(tmp_path)).markdown()


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
        {"sampling": {"two_stage": {"two_stage/samples.jsonl": {"num_beams": 5}}}},
        {"data": {}},
    ],
)
def test_runs_that_differ_in_a_setting_never_share_a_cell(tmp_path: Path, other: dict[str, Any]) -> None:
    run(tmp_path / "a", seed=1, metrics={"two_stage": {}})
    run(tmp_path / "b", **{"seed": 2, "metrics": {"two_stage": {"mauve_own_base": 0.9}}, **other})
    cells = pooled(tmp_path)
    assert cells["seeds"].tolist() == [1, 1]
    for own, _ in sections(cells):
        assert set(own["value"]) <= {0.5, 0.9} and "0.700" not in table(own).markdown()


def test_rows_that_differ_say_in_what(tmp_path: Path) -> None:
    run(tmp_path / "a", seed=1)
    run(tmp_path / "b", seed=2, delta=2e-5)
    lines = table(pooled(tmp_path)).markdown().splitlines()
    assert "δ" in lines[0] and len(lines) == 4
    with pytest.raises(ValueError, match="row"):
        table(pooled(tmp_path), rows=["epsilon", "system"]).markdown()


def test_a_run_without_privacy_is_labelled(tmp_path: Path) -> None:
    run(tmp_path / "run", epsilon=None)
    (cell,) = pooled(tmp_path).itertuples()
    assert cell.epsilon == math.inf and math.isnan(cell.spent)
    assert "∞ (not private)" in table(pooled(tmp_path)).markdown()


def test_unfinished_runs_are_named_and_left_out(tmp_path: Path) -> None:
    run(tmp_path / "none", done=7, report=False)
    run(tmp_path / "steps", done=7)
    make_run(tmp_path / "text")
    (tmp_path / "text" / "report.json").write_text('{"metrics": ')
    run(tmp_path / "part", metrics={"one_stage": {}}, left_out={"two_stage": "it has no evaluation"})
    frame, problems = read_runs([tmp_path])
    assert set(frame["run"]) == {"part"}
    named = {problem.partition(":")[0] for problem in problems}
    assert named == {"none", "steps, one_stage", "steps, two_stage", "text", "part, two_stage"}


@pytest.mark.parametrize("folder", ["run/audit", "run/two_stage_audit", "audit"])
def test_an_audit_is_no_run_that_is_half_done(tmp_path: Path, folder: str) -> None:
    run(tmp_path / "run")
    make_run(tmp_path / folder, done=7, report=False)  # an audit spends from a ledger of its own
    (tmp_path / folder / AUDIT_SETTINGS).write_text("{}")
    frame, problems = read_runs([tmp_path])
    assert set(frame["run"]) == {"run"} and problems == []


def test_epsilon_is_the_ledgers_whatever_the_report_says(tmp_path: Path) -> None:
    true = run(tmp_path / "true", metrics={"two_stage": {}})["privacy"]["systems"]["two_stage"]["epsilon"]
    for name, changes in (("less", {"epsilon": 1.0}), ("target", {"target_epsilon": 0.1})):
        report = run(tmp_path / name, metrics={"two_stage": {}})
        report["privacy"]["systems"]["two_stage"] |= changes
        (tmp_path / name / "report.json").write_text(json.dumps(report))
    report = run(tmp_path / "hidden", metrics={"two_stage": {}})
    (tmp_path / "hidden" / "report.json").write_text(json.dumps(report | {"privacy": None, "epsilon": None}))
    frame, _ = read_runs([tmp_path])
    assert set(frame["epsilon"]) == {3.0} and set(frame["run"]) == {"true", "less", "target", "hidden"}
    assert frame["spent"].tolist() == pytest.approx([true] * len(frame))


def test_an_epsilon_that_is_void_is_said_and_its_number_is_not(tmp_path: Path) -> None:
    report = run(tmp_path / "run", metrics={"two_stage": {}})
    (tmp_path / "run" / "ledger.jsonl").unlink()
    scope = report["privacy"]["systems"]["two_stage"]
    scope |= {"epsilon": None, "epsilon_of_mechanisms": 2.9, "caveats": ["exact histogram"]}
    (tmp_path / "run" / "report.json").write_text(json.dumps(report))
    (cell,) = pooled(tmp_path).itertuples()
    assert math.isnan(cell.spent) and cell.caveats.startswith(VOID) and "exact histogram" in cell.caveats
    assert (
        "3 (void: not private)" in table(pooled(tmp_path)).markdown()
        and "2.9" not in table(pooled(tmp_path)).markdown()
    )


def test_a_duplicate_seed_counts_once_or_not_at_all(tmp_path: Path) -> None:
    for name, seed, value in (("a", 1, 0.2), ("b", 1, 0.3), ("c", 2, 0.4), ("d", 3, 0.5), ("e", 3, 0.5)):
        run(tmp_path / name, seed=seed, metrics={"two_stage": {"word_overlap": value}})
    (cell,) = pooled(tmp_path, "word_overlap").itertuples()
    assert cell.seeds == 2 and cell.value == pytest.approx(0.45)
    (note,) = counted(read_runs([tmp_path])[0])[1]
    assert note.startswith("a and b, two_stage: seed 1")


def test_a_null_metric_is_a_dash_and_counts_no_seed(tmp_path: Path) -> None:
    run(tmp_path / "a", metrics={"two_stage": {"mauve_own_base": None}})
    assert measure("mauve_own_base").show(*pooled(tmp_path)[["value", "std"]].iloc[0]) == "–"
    nothing = table(pooled(tmp_path))
    assert measure("mauve_own_base").label not in nothing.headings and len(nothing.rows) == 1
    run(tmp_path / "b", seed=2, metrics={"two_stage": {}})
    both = pd.concat([pooled(tmp_path), pooled(tmp_path, "word_overlap")])
    made = table(both)
    assert "0.500 (1 of 2)" in made.markdown() and measure("mauve_own_base").label in made.headings


def test_private_figures_stay_out(tmp_path: Path) -> None:
    run(tmp_path / "run", metrics={"two_stage": {"private/copies": 0.125}})
    frame, _ = read_runs([tmp_path])
    assert 0.125 not in set(frame["value"]) and not any("private/" in name for name in frame["metric"])


SYSTEMS = (("one_stage", 0.5, 500), ("two_stage", 0.6, 800))


def test_human_turns_are_a_row_of_their_own(tmp_path: Path) -> None:
    for seed in (1, 2):
        values = {"human_parsed_chi_square": 0.01 * seed, "human_chi_square": 1.0, "ground_truth_chi_square": 0.0}
        run(tmp_path / f"run{seed}", seed=seed, metrics={"two_stage": values | {"parsed_chi_square": 0.1}})
    (cell,) = pooled(tmp_path, "parsed_chi_square", HUMAN).itertuples()
    assert cell.value == pytest.approx(0.015) and cell.seeds == 2 and math.isnan(cell.epsilon)
    run(tmp_path / "again", seed=2, metrics={"two_stage": values | {"human_parsed_chi_square": 0.3}})
    frame, notes = counted(read_runs([tmp_path])[0])
    assert any(note.startswith("again and run2, human: seed 2") for note in notes), "left out, and said"
    assert set(frame[frame["system"] == HUMAN]["seed"]) == {1}


def test_human_turns_of_every_number_of_texts_are_kept(tmp_path: Path) -> None:
    values = {"word_overlap": 0.4}
    many = {name: {**values, "human_word_overlap": own, "num_compared": n} for name, own, n in SYSTEMS}
    run(tmp_path / "run", metrics=many)
    cells = pooled(tmp_path, "word_overlap", HUMAN)
    assert dict(zip(cells["num_compared"], cells["value"], strict=True)) == {500: 0.5, 800: 0.6}


def test_parsers_of_an_adaptation_stand_beside_the_papers(tmp_path: Path) -> None:
    pattern = "EventOnDate*"
    for seed in (1, 2):
        values = {
            system: {f"{key}{of}": match for key in ("exact_match", "api_precision", "api_recall") for of in suffixes}
            for system, match in (("none", 0.1 * seed), ("one_stage", 0.4), ("two_stage", 0.5))
            for suffixes in [("", f"@{pattern}", f"@not {pattern}")]
        }
        fields = {"missing_function": pattern, "parser_metrics": values, "experiment": "adaptation-event-on-date"}
        run(tmp_path / f"run{seed}", seed=seed, metrics={}, table="adaptation", **fields)
    (public,) = pooled(tmp_path, "exact_match@missing", "none").itertuples()
    assert public.value == pytest.approx(0.15) and math.isnan(public.spent)  # no ε was spent on public data
    ((own, _),) = sections(pool(read_runs([tmp_path])[0]))
    rows = [[cell.strip() for cell in line.split("|")] for line in table(beside_paper(own)).markdown().splitlines()]
    column = rows[0].index(measure("exact_match@missing").label)
    cells = {(row[1], row[2]): row[column] for row in rows[2:]}
    assert cells["3", "2-stage"] == "50.0 ± 0.0 %" and cells["3", "2-stage (paper)"] == "61.4 ± 0.7 %"
    assert measure("exact_match@rest").label in rows[0] and ("–", "none") in cells


def test_the_papers_numbers_are_as_in_its_text() -> None:
    paper = read_csv(PAPER)

    def cell(setting: str, epsilon: float, system: str, metric: str, missing: str | None = None) -> tuple[float, float]:
        own = paper[(paper["setting"] == setting) & (paper["epsilon"] == epsilon) & (paper["system"] == system)]
        own = own[
            (own["metric"] == metric)
            & (own["missing_function"].isna() if missing is None else own["missing_function"] == missing)
        ]
        return own["value"].item(), own["std"].item()

    assert cell("Table 1", 3, "two_stage", "mauve_gpt2_large") == (0.53, 0.031)
    assert cell("Table 1", 3, "two_stage", "parsed_chi_square") == (0.054, 0.003)
    assert cell("Table 1, TreeDST", math.inf, "labels", "mauve_gpt2_large") == (0.399, 0.046)
    assert cell("Table 3", 3, "two_stage", "exact_match@missing", "EventOnDate") == (0.614, 0.007)
    assert {name.split(",")[0].split(":")[0] for name in paper["setting"]} == {f"Table {n}" for n in range(1, 9)}
    assert not paper.duplicated([*SETTINGS, "metric"]).any()
    assert {name.partition("@")[0] for name in paper["metric"]} <= MEASURES.keys()


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
    run(
        tmp_path / "run", fingerprint="a" * 32, data={"train": train, "fingerprint": "a" * 32, "reference": "valid.zip"}
    )
    assert set(read_runs([tmp_path])[0]["data"]) == {f"{name} {'a' * 8}"}


def test_a_csv_is_read_back_as_it_was(tmp_path: Path) -> None:
    run(tmp_path / "run", epsilon=None)
    frame, _ = read_runs([tmp_path])
    write_csv(frame, tmp_path / "all.csv")
    pd.testing.assert_frame_equal(read_csv(tmp_path / "all.csv"), frame)
    assert list(frame.columns) == COLUMNS


def test_a_figure_has_a_line_a_system_and_a_dashed_one_of_the_paper(tmp_path: Path) -> None:
    """Runs that are void stand at no ε, and so in no figure."""
    for epsilon in (3.0, None):
        run(tmp_path / f"{epsilon}", epsilon=epsilon)
    drawn = lines(read_runs([tmp_path])[0])
    drawn = drawn[drawn["metric"] == "word_overlap"]
    assert set(drawn["line"]) == {"1-stage", "2-stage", "1-stage (paper)", "2-stage (paper)"}
    axes = Figure().subplots()
    draw_curves(axes, drawn)
    styles = {str(bars.get_label()): bars.lines[0].get_linestyle() for bars in axes.containers}
    assert styles == {name: "--" if name.endswith("(paper)") else "-" for name in set(drawn["line"])}
    assert lines(read_runs([tmp_path])[0].assign(caveats=f"{VOID}: a leak")).empty


def test_a_page_of_several_runs_on_one_file_says_what_they_come_to_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two releases of ε = 3 on the same people are not one of ε = 3; runs on other people are their own matter."""
    for name, seed in (("a", 1), ("b", 2)):
        run(tmp_path / "runs" / name, seed=seed, metrics={"two_stage": {}})
    run(tmp_path / "runs" / "others", fingerprint="0ddba11" * 8, metrics={"two_stage": {}})
    terms = spec(3.0)
    both = compute_epsilon([Mechanism(terms.sample_rate, terms.noise_multiplier, 40)], 1e-5, "rdp")
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    page, told = (tmp_path / "runs" / "comparison.html").read_text(), capsys.readouterr().out
    for text in (page, told):
        assert f"2 runs (a, b) learnt from the same data: released together, they come to ε = {both:.4g} at" in text
        assert text.count("they come to ε") == 1
    sample(tmp_path / "runs" / "b", "two_stage", is_paid=False)
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    assert "no ε holds for all of them: NOT PRIVATE is b." in capsys.readouterr().out


def test_half_done_runs_alone_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, done=3, report=False)
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "no run has a number: a: " in capsys.readouterr().err


def test_the_command_prints_writes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "runs" / "a")
    make_run(tmp_path / "runs" / "b", seed=2, done=3, report=False)
    make_run(tmp_path / "runs" / "c", seed=3)
    (tmp_path / "runs" / "c" / "manifest.json").write_text("{")
    files = ["--csv", str(tmp_path / "all.csv"), "--out", str(tmp_path / "all.html")]
    assert cli.main(["report", str(tmp_path / "runs"), *files]) == 0
    told = capsys.readouterr().out
    assert "| 3 | 2-stage |" in told and "2-stage (paper)" in told and "left out: b: " in told
    page = (tmp_path / "all.html").read_text()
    assert "2-stage (paper)" in page and not read_csv(tmp_path / "all.csv").empty
    assert "c: manifest.json cannot be read" in page and "report runs<" in page and tmp_path.name not in page
    for word in ("--private", "--topics=3", "--samples=9"):  # of the page of one run
        assert cli.main(["report", str(tmp_path / "runs"), word]) == 2
        assert f"{word.split('=')[0]} does not belong to several runs" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        with pytest.raises(UserError):
            read_runs([tmp_path / name])
        assert cli.main(["report", str(tmp_path / name)]) == 2
