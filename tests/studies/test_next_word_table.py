"""The table of next-word models is written and gone on with, and `closeness` reads the weights that it keeps."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.quality.frame import read_csv
from studies.redaction import __main__ as tasks
from studies.redaction import next_word


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """That of Lightning, which the task sets, is as before for later tests."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.slow
def test_next_word_measures_redaction_and_private_training_and_goes_on(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where every word is hidden both sets are the same text, so both models have the same weights."""
    monkeypatch.delenv("DOPPEL_LEDGER", raising=False)
    path, weights = tmp_path / "next_word.csv", tmp_path / "weights"
    size = ["--num-rows", "200", "--num-words", "300", "--hidden-size", "8", "--epochs", "1", "--private-epochs", "1"]
    size += ["--private-batch-size", "50", "--seeds", "1", "--folder", str(data_folder), "--weights", str(weights)]
    next_word.main([*size, "--levels", "0", "1", "--epsilons", "--out", str(path)])
    next_word.main([*size, "--levels", "0", "1", "--epsilons", "4", "--stacked", "0.5", "--out", str(path)])
    found = read_csv(path).set_index(["setting", "metric"])["value"]
    settings = {"p = 0", "p = 1", "DP-SGD, ε = 4", "DP-SGD after p = 0.5, ε = 4"}
    assert {setting for setting, _ in found.index} == settings and len(found) == 28
    assert found["p = 0", "log_perplexity"] < found["p = 1", "log_perplexity"]
    for metric in (
        "cka_decoder",
        "pwcca_decoder",
        "procrustes_decoder",
    ):  # so few words of each move the encoder little
        assert found["p = 1", metric] < 1e-3 < found["p = 0", metric]
    assert len(list(weights.glob("*.npz"))) == 8
    first, second = sorted(weights.glob("p=0-*.npz"))
    assert tasks.main(["closeness", str(first), str(second)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["decoder"]["procrustes"] == pytest.approx(
        found["p = 0", "procrustes_decoder"], abs=1e-4
    )
