"""The pages of results are what their CSV files say."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from source_modules import ROOT

from commands.quality.frame import COLUMNS, SETTINGS, read_csv
from docs.results.__main__ import HERE, PAGES, value, written
from doppel.console.plan import MEASURED

FILES = sorted(HERE.glob("*.csv"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_the_files_say(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == written(PAGES[page]), "run `python -m docs.results`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_one_long_frame_without_a_number_twice(path: Path) -> None:
    header = path.read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {"experiment", "system", "metric", "value"} <= set(header) <= {*COLUMNS, "machine", "command"}
    frame = read_csv(path)
    assert not frame.duplicated([*SETTINGS, "seed", "metric"]).any() and frame["value"].notna().all()


@pytest.mark.parametrize("name", ["usable", "usable-again", "usable-taught"])
def test_what_was_read_names_command_commit_and_machine(name: str) -> None:
    """Commands as docs/reproduce.md has them, which has none of sheet 8, of people and of messages by a program."""
    rows = pd.read_csv(ROOT / "docs" / "results" / f"{name}.csv")
    is_left_out = rows["data"].str.contains("Support desk|City council|sheet 8$|300 of sheet 15")
    own = rows[~(is_left_out | (rows["setting"] == "people"))]
    assert len(own) and own["command"].notna().all() and rows[["commit", "machine"]].notna().all(None)


def test_the_runs_that_a_plan_names_are_those_that_were_measured() -> None:
    """Their figures are typed once more, for the wheel has no results; and the page and the README tell the same."""
    rows = pd.read_csv(MEASURED)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(rows["system"]) == {"one_stage", "two_stage"} and len(rows) > 5
    for _, row in rows.iterrows():
        path, *runs = row["source"].split()
        own = pd.read_csv(ROOT / path)
        chosen = own["run"].isin(runs) if runs else (own["setting"] == "5.9 M, placeholders") & (own["epsilon"] == 3)
        found = own[chosen & (own["system"] == row["system"])].groupby("metric")["value"]
        for name in ("mauve_minilm", "mauve_smollm2_135m", "fluency", "word_overlap"):
            assert row[name] == pytest.approx(found.get_group(name).mean(), abs=6e-5)
            assert row["seeds"] == len(found.get_group(name))
        if row["system"] == "one_stage" and (row["machine"] != "NVIDIA H200" or row["data"] != "SMCalFlow"):
            assert f"{row['mauve_minilm']:.2f}".lstrip("0") in readme and f"{row['num_units']:,}" in readme


def readme_table() -> pd.DataFrame:
    """Mean, deviation and boldness of each cell of the README's results that has a deviation."""
    (section,) = re.findall(r"^## Results\n(.*?)^## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    found = [
        (column, float(match[2]), float(match[3]), match[1] == "**")
        for line in cells
        for column, cell in enumerate(line)
        if (match := re.fullmatch(r" (\**)(\S+) ± ([\d.]+)(?: %)?\**", cell.rstrip()))
    ]
    return pd.DataFrame(found, columns=["column", "mean", "std", "bold"])


def test_the_numbers_of_the_readme_are_those_of_the_headline() -> None:
    told, page = readme_table(), written("results.md.jinja").partition("| column |")[0]
    own = [(float(mean), float(std)) for mean, std in re.findall(r"([\d.]+) ± ([\d.]+)", page)]
    assert len(told) == 10
    for _, row in told.iterrows():
        assert (row["mean"], row["std"]) in own, row


def test_bold_is_where_the_gap_is_larger_than_twice_the_deviation() -> None:
    told = readme_table()
    for _, both in told.groupby("column"):
        gap = abs(both["mean"].iloc[0] - both["mean"].iloc[1])
        assert both["bold"].any() == (gap > 2 * both["std"].max()), both


def test_a_number_of_several_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="not one"):
        value("smcalflow-best-small", "mauve_own_base", system="two_stage")
