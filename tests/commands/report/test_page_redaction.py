"""The page of a run with `redact`: what was hidden, by which rules, that it is no guarantee; no figure of its rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from page_content import Element, make_samples, read_html
from run_folders import make_run, sample

import cli
from commands.report import redacted
from doppel.settings.yaml_files import dump, read_yaml

RULES = {
    "level": 0.3,
    "sensitive": "/data/public/doctors.txt",
    "safe": "/data/public/waiters.txt",
    "words": "/data/names.txt",
    "patterns": ["email", "number"],
    "entities": True,
}


def section(run: Path) -> Element | None:
    assert cli.main(["report", str(run)]) == 0
    found = read_html(run / "report.html").all("div", id="redaction")
    return next(iter(found), None)


def private_run(folder: Path, redact: dict[str, Any] | None) -> Path:
    """A run with a true ledger and a sample; its experiment says what was hidden."""
    make_run(folder, metrics={"two_stage": {}})
    sample(folder, "two_stage")
    path = folder / "experiment.yaml"
    told = read_yaml(path) if path.is_file() else {"name": "mine", "systems": ["two_stage"], "epsilon": 3.0}
    path.write_text(dump({**told, "redact": redact}))
    return folder


def test_rules_and_their_warning_are_told_and_no_number_of_the_rows(tmp_path: Path) -> None:
    told = section(private_run(tmp_path / "run", RULES))
    assert told is not None
    rules = [item.words for item in told.all("li")]
    assert any("0.3 of its words" in rule and "doctors.txt" in rule for rule in rules)
    assert any("names.txt" in rule for rule in rules) and "e-mail addresses and words with a digit" in rules
    assert not any("/data" in rule for rule in rules)
    assert "This is no privacy guarantee." in told.words
    assert "adds nothing to it and saves nothing of it" in told.words
    numbers = set(re.findall(r"\d+(?:\.\d+)?", told.words))
    assert numbers == {"0.3"}, "the level that the user has set, and nothing that was counted"


def test_the_curves_are_of_another_data_set_and_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = private_run(tmp_path / "run", RULES)
    told = section(run)
    assert told is not None
    (picture,) = told.all("img")
    assert picture.attributes["src"].startswith("data:image/png;base64,iVBOR") and picture.attributes["alt"]
    assert "not figures of this run" in told.all("figcaption")[0].words
    monkeypatch.setattr(redacted, "_CURVES", tmp_path / "none.png")
    told = section(run)
    assert told is not None and not told.all("img") and told.all("li")


def test_a_run_without_redaction_says_nothing_of_it(tmp_path: Path) -> None:
    assert section(private_run(tmp_path / "run", None)) is None


def test_a_run_without_privacy_gets_no_epsilon_by_it(tmp_path: Path) -> None:
    run = make_samples(tmp_path, [{"utterance": "see Ana"}] * 3, "one_stage", redact={"patterns": ["phone"]})
    told = section(run)
    assert (
        told is not None
        and "This run has no ε" in told.words
        and [li.words for li in told.all("li")] == ["phone numbers"]
    )
