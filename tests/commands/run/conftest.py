"""A finished run of a tiny model, and copies of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest import mock

import pytest
from finished_run import write_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> Path:
    """The run folder of a finished run, for tests that copy it; some files have a run of their own under this name.

    Its key is asked for by those who copy it alone: as long as it were in the environment, no other run would be known.
    """
    folder = tmp_path_factory.mktemp("finished")
    with mock.patch.dict(os.environ, {"DOPPEL_KEY": str(folder / "site" / "key")}):
        return write_run(folder, tiny_model)


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, at the same place for whoever reads its configurations."""
    shutil.copytree(finished.parent / "site", tmp_path / "site")
    monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / "site" / "key"))
    return Path(shutil.copytree(finished, tmp_path / "run"))
