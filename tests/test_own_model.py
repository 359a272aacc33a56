"""The two programs of docs/own-model.md run as they are printed, and their guarantee is the one that is asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from callbacks.row_independence import check_row_independence
from datamodules.unit_data_module import UnitDataModule
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = Path(__file__).parents[1] / "docs" / "own-model.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


def rows() -> list[dict[str, str]]:
    """Labelled texts of 200 users, some with six lines."""
    words = {"weather": "will it rain in Oslo", "calendar": "book lunch with Ana"}
    return [
        {"text": f"{words[label]} {i % 7}", "label": label, "user": f"user-{i % 200}"}
        for i in range(700)
        for label in words
        if (i % 2 == 0) == (label == "weather")
    ]


def test_the_classifier_trains_within_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    program: dict[str, Any] = {"__name__": "classifier"}
    source = blocks()[0]
    assert len([line for line in source.splitlines() if line.strip()]) <= 40
    exec(compile(source, str(PAGE), "exec"), program)
    assert program["trainer"].global_step == 4 * 200 // 50
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert 2.5 < ledger.epsilon("default") <= 3.0
    (mechanism,) = ledger.summary()["mechanisms"]
    assert (mechanism["unit"], mechanism["done_steps"], mechanism["max_rows_per_unit"]) == ("user", 16, 4)
    words, labels = program["collate"](rows()[:40])
    model, batch = program["model"].eval(), type("Batch", (), {"rows": (words, labels)})
    with torch.no_grad():
        assert model.losses(batch).mean() < 0.6  # it learns: a guess has 0.69


def test_the_rows_that_the_page_makes_up_tell_a_mean_over_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    program: dict[str, Any] = {}
    exec(compile(blocks()[0].split("data = UnitDataModule")[0], str(PAGE), "exec"), program)
    classifier = program["Classifier"]
    assert check_row_independence(classifier()) is None
    per_row = classifier.losses
    classifier.losses = lambda self, batch: per_row(self, batch) * 0 + per_row(self, batch).mean()
    with pytest.raises(UserError, match="Classifier"):
        check_row_independence(classifier())


def test_the_loop_without_lightning_spends_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    start, loop = blocks()[1:]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 24
    program: dict[str, Any] = {}
    exec(compile(start, str(PAGE), "exec"), program)
    before = program["model"].weight.detach().clone()
    exec(compile(loop, str(PAGE), "exec"), program)
    assert not torch.equal(program["model"].weight, before)
    assert 2.5 < Ledger(tmp_path / "ledger.jsonl").epsilon("mine") <= 3.0


def test_units_of_rows_are_whole_and_bounded() -> None:
    data = UnitDataModule(
        rows(), "user", list, batch_size=20, max_rows_per_unit=3, max_rows_per_micro_batch=10, sampling_seed=1
    )
    batches = list(data.train_dataloader())
    assert len(batches) == 10
    drawn = [batch.num_units for batch in batches]
    assert 10 * 20 * 0.7 < sum(drawn) < 10 * 20 * 1.3 and len(set(drawn)) > 1
    for batch in batches:
        assert batch.expected_num_units == 20.0
        assert sum(part.num_units for part in batch.micro_batches) == batch.num_units
        for part in batch.micro_batches:
            owners = [row["user"] for row in part.rows]
            assert len(owners) == part.num_units * part.rows_per_unit <= 12 and part.rows_per_unit <= 3
            assert all(
                len(set(owners[i : i + part.rows_per_unit])) == 1 for i in range(0, len(owners), part.rows_per_unit)
            )
            assert len(set(owners)) == part.num_units
