"""The pages of results are what their CSV files say."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_the_numbers_of_the_readme_are_those_of_the_headline() -> None:
    (section,) = re.findall(r"^## Results\n(.*?)^## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    told = set(re.findall(r"(?<=[ *])\.\d{3}(?=[ *])", "\n".join(re.findall(r"^\|.*", section, re.M))))
    means = pool(read_csv(HERE / "judged.csv"))["value"]
    assert len(told) > 10 and told <= {f"{mean:.3f}"[1:] for mean in means}


def test_a_number_of_several_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="not one"):
        value("smcalflow-best-small", "mauve_own_base", system="two_stage")
