"""The pages of results are what their CSV files say."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from source_modules import ROOT

from commands.quality.frame import COLUMNS, SETTINGS, pool, read_csv
from docs.results.__main__ import HERE, PAGES, value, written

FILES = sorted(HERE.glob("*.csv"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_the_files_say(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == written(PAGES[page]), "run `python -m docs.results`"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_one_long_frame_without_a_number_twice(path: Path) -> None:
    header = path.read_text(encoding="utf-8").splitlines()[0].split(",")
    assert set(header) <= set(COLUMNS) and {"experiment", "system", "metric", "value"} <= set(header)
    frame = read_csv(path)
    assert not frame.duplicated([*SETTINGS, "seed", "metric"]).any() and frame["value"].notna().all()


def readme_table() -> pd.DataFrame:
    """Mean, deviation and boldness of each cell of the README's results that has a deviation."""
    (section,) = re.findall(r"^## Results\n(.*?)^## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    found = [
        (column, float(match[2]), float(match[3]), match[1] == "**")
        for line in cells
        for column, cell in enumerate(line)
        if (match := re.fullmatch(r" (\**)(\S+) ± ([\d.]+)\**", cell.rstrip()))
    ]
    return pd.DataFrame(found, columns=["column", "mean", "std", "bold"])


def test_the_numbers_of_the_readme_are_those_of_the_headline() -> None:
    told, own = readme_table(), pool(read_csv(HERE / "judged.csv"))
    three = own[own["seeds"] == 3]
    digits = [len(str(mean).partition(".")[2]) for mean in told["mean"]]
    assert len(told) > 10
    for (_, row), places in zip(told.iterrows(), digits, strict=True):
        near = (three["value"] - row["mean"]).abs().le(0.51 * 10**-places)
        assert (near & (three["std"] - row["std"]).abs().le(0.51 * 10**-places)).any(), row


def test_bold_is_where_the_gap_is_larger_than_twice_the_deviation() -> None:
    told = readme_table()
    for _, both in told.groupby("column"):
        gap = abs(both["mean"].iloc[0] - both["mean"].iloc[1])
        assert both["bold"].any() == (gap > 2 * both["std"].max()), both


def test_a_number_of_several_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="not one"):
        value("smcalflow-best-small", "mauve_own_base", system="two_stage")
