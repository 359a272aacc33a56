"""The table of private rows of attributes, on turns of the embedded grammar."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.quality.frame import read_csv
from studies.tables import metadata


def test_metadata_measures_every_method_beside_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOPPEL_LEDGER", raising=False)
    path = tmp_path / "metadata.csv"
    size = ["--num-rows", "300", "--epsilons", "4", "--seeds", "1", "--methods", "independent"]
    metadata.main(["embedded:any?num=700", *size, "--out", str(path)])
    found = read_csv(path)
    assert list(found["setting"]) == ["other rows of the file", "independent"]
    assert found["value"].between(0.01, 0.6).all()
