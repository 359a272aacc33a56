"""The programs of docs/own-model.md run as they are printed, and their guarantee is the one that is asked for."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cli
from callbacks.row_independence import check_row_independence
from commands.lightning.own_code import find_here
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore")
PAGE = Path(__file__).parents[1] / "docs" / "own-model.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the reader's, with the page's mine.py and texts.jsonl as printed."""
    mine, texts, *_ = blocks()
    assert len([line for line in mine.splitlines() if line.strip()]) <= 40
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    for name in ("mine", "other"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    Path("mine.py").write_text(mine)
    exec(compile(texts, str(PAGE), "exec"), {})
    return tmp_path


def test_the_command_of_the_page_trains_and_names_what_works_next(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    command = re.search(r"^python cli.py (fit --model mine.Model .*)$", PAGE.read_text(), flags=re.M)
    assert command is not None
    with caplog.at_level(logging.INFO):
        assert cli.main([*command[1].split(), "--trainer.max_epochs=1", "--privacy.accountant=rdp"]) == 0
    assert "--privacy.max_grad_norm 1" in caplog.text, "what the page advises is not the default"
    ledger = Ledger(folder / "runs" / "mine" / "ledger.jsonl")
    assert 5 < ledger.epsilon("default") <= 6.0
    (mechanism,) = ledger.summary()["mechanisms"]
    assert (mechanism["unit"], mechanism["done_steps"], mechanism["num_units"]) == ("user", 20, 300)
    lines = [line for line in caplog.messages if " cli.py " in line or "/cli.py " in line]
    words = [line.partition("cli.py ")[2].split() for line in lines]
    assert [line[0] for line in words] == ["ledger", "export"], "it writes no text, and has no rows of a validation"
    for line in words:
        assert cli.main(line) == 0
    weights = torch.load(folder / "runs" / "mine-release" / "pytorch_model.bin")
    saved = torch.load(folder / "runs" / "mine" / "fit" / "checkpoints" / "last.ckpt", weights_only=False)
    assert all(torch.equal(weights[name], value) for name, value in saved["state_dict"].items())
    lines = (folder / "runs" / "mine-release" / "README.md").read_text().split("```")[1].removeprefix("python\n")
    monkeypatch.chdir(folder / "runs")
    exec(lines, loaded := {})  # the lines that it shows, beside the folder
    assert all(torch.equal(loaded["model"].state_dict()[name], value) for name, value in weights.items())
    card = json.loads((folder / "runs" / "mine-release" / "privacy_card.json").read_text())
    assert card["private"] and card["epsilon"] <= 6.0


def test_rows_of_a_validation_are_told_where_they_are_public(
    folder: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    Path("other.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset as T\nfrom mine import *\n"
        "class Net(LogicalBatchModule):\n"
        "    def __init__(self):\n        super().__init__()\n        self.head = nn.Linear(3, 2)\n"
        "    def losses(self, batch):\n"
        "        x, y = batch.rows\n        return nn.functional.cross_entropy(self.head(x), y, reduction='none')\n"
        "    configure_optimizers = Model.configure_optimizers\n"
        "class Public(UnitDataModule):\n"
        "    def __init__(self, told: bool = True):\n"
        "        rows = [T(torch.randn(n, 3), torch.arange(n) % 2) for n in (40, 30)]\n"
        "        super().__init__(rows[0], 'row', val=rows[1], val_is_public=told)\n"
    )
    fit = ["fit", "--model=other.Net", "--data=other.Public", "--trainer.max_epochs=1"]
    fit += ["--privacy.target_epsilon=6", "--privacy.accountant=rdp", "--privacy.delta=1e-3"]
    with caplog.at_level(logging.INFO):
        assert cli.main(fit) == 0
    (validate,) = [line.partition("cli.py ")[2].split() for line in caplog.messages if "cli.py validate" in line]
    capsys.readouterr()
    assert cli.main(validate) == 0
    assert "val/loss" in capsys.readouterr().out
    assert cli.main([*validate, "--data.told=false"]) == 0
    assert "val/loss" not in capsys.readouterr().out


def test_what_cannot_go_on_is_one_line_and_the_folder_keeps_the_configuration_of_what_was_trained(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    fit = ["fit", "--model=mine.Model", "--data=mine.Data", "--trainer.max_epochs=1", "--privacy.accountant=rdp"]
    fit += ["--privacy.target_epsilon=6", "--trainer.logger=false"]
    monitored = [*fit, "--trainer.callbacks+=lightning.pytorch.callbacks.DeviceStatsMonitor"]
    assert cli.main(monitored) == 2
    assert "Lightning refuses this configuration: Cannot use `DeviceStatsMonitor`" in capsys.readouterr().err
    assert not Path("runs/mine/fit/config.yaml").exists()
    assert cli.main(fit) == 0
    trained = Path("runs/mine/fit/config.yaml").read_bytes()
    assert b"width: 64" in trained
    assert cli.main([*fit, "--model.width=32", "--ckpt_path=last"]) == 2
    assert "is of another model (size mismatch for embed.weight" in capsys.readouterr().err
    assert Path("runs/mine/fit/config.yaml").read_bytes() == trained
    assert cli.main(["validate", "--model=mine.Model", "--data=mine.Data"]) == 2
    assert "there is nothing to validate on: give val=DATASET" in capsys.readouterr().err


def test_a_second_ctrl_c_ends_it_as_an_interruption(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    source = Path("mine.py").read_text()
    twice = "        if self.training and self.trainer.global_step == 2:\n"
    twice += "            import os, signal\n            [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]\n"
    Path("mine.py").write_text(source.replace("        words_BT, labels_B", twice + "        words_BT, labels_B", 1))
    fit = ["fit", "--model=mine.Model", "--data=mine.Data", "--trainer.max_epochs=1", "--privacy.accountant=rdp"]
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):  # "interrupted", status 130
            cli.main([*fit, "--privacy.target_epsilon=6", "--trainer.logger=false"])
    finally:
        signal.signal(signal.SIGINT, before)
    (mechanism,) = Ledger(folder / "runs" / "mine" / "ledger.jsonl").summary()["mechanisms"]
    assert mechanism["done_steps"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("import zlib", "import zlib, nopackage"), "mine.py:2: .*nopackage"),
        (("class Model(", "clas Model("), "mine.py:14: .*SyntaxError"),
        (("nn.Embedding(4096", "nn.Embedding(size"), "mine.py:17: .*size"),
        (("class Model(LogicalBatchModule)", "class Model"), "Model is no LightningModule.*LogicalBatchModule"),
        (("class Data(UnitDataModule)", "class Dato(UnitDataModule)"), "mine.py has no 'Data'.*Dato"),
        (("def losses", "def loss"), "define losses"),
        (("def configure_optimizers", "def optimizers"), "define configure_optimizers"),
        ((', reduction="none"', ""), "reduction='none'"),
        (('unit="user", ', ""), "unit='row'.*unit='user'"),
        (("nn.Linear(width, len(LABELS))", "nn.Sequential(nn.Linear(width, 2), nn.BatchNorm1d(2))"), "BatchNorm"),
    ],
    ids=["import", "syntax", "init", "base", "name", "losses", "optimizer", "scalar", "unit", "batchnorm"],
)
def test_a_mistake_is_told_with_its_place_or_its_remedy(
    folder: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    source = Path("mine.py").read_text()
    assert change[0] in source
    Path("mine.py").write_text(source.replace(*change))
    fit = ["fit", "--model=mine.Model", "--data=mine.Data", "--trainer.max_epochs=1", "--privacy.accountant=rdp"]
    assert cli.main([*fit, "--privacy.target_epsilon=6"]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(folder.rglob("*.ckpt"))


def test_a_folder_of_ones_own_that_the_project_shadows_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    (tmp_path / "callbacks").mkdir()
    (tmp_path / "doppel").mkdir()  # without code: nobody imports it
    (tmp_path / "callbacks" / "mine.py").touch()
    (tmp_path / "datamodules.py").touch()
    find_here()
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in told] == ["datamodules", "callbacks"] and "rename yours" in told[0]
    find_here()
    monkeypatch.chdir(PAGE.parents[1])
    find_here()
    assert not capsys.readouterr().out


def test_a_folder_without_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    assert cli.main(["fit", "--model=nomine.Model", "--data=nomine.Data"]) == 2
    assert f"there is no nomine.py in {tmp_path}" in capsys.readouterr().err


def test_the_rows_that_the_page_makes_up_tell_a_mean_over_the_batch() -> None:
    program: dict[str, Any] = {}
    exec(compile(blocks()[0], str(PAGE), "exec"), program)
    classifier = program["Model"]
    assert check_row_independence(classifier()) is None
    per_row = classifier.losses
    classifier.losses = lambda self, batch: (losses := per_row(self, batch)) * 0 + losses.mean()
    with pytest.raises(UserError, match="Model cannot be trained privately: the loss of a made-up row"):
        check_row_independence(classifier())


def test_check_accepts_the_model_of_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(folder)
    (source,) = (block for block in blocks() if "privacy.check" in block)
    exec(compile(source, str(PAGE), "exec"), {})
    out = capsys.readouterr().out
    assert "embed" in out and "head" in out and "refused" not in out


def test_three_lines_make_data_of_a_dataset() -> None:
    program: dict[str, Any] = {"torch": torch}
    (source,) = (block for block in blocks() if "TensorDataset" in block)
    exec(compile(source, str(PAGE), "exec"), program)
    data = program["Data"]()
    assert (data.num_units, data.batch_size, data.max_rows_per_unit) == (200, 10, 4)
    images, labels = next(iter(data.train_dataloader())).micro_batches[0].rows
    assert images.shape[1:] == (1, 28, 28) and len(labels) == len(images)


def test_the_loop_without_lightning_spends_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (source,) = (block for block in blocks() if "spec = plan" in block)
    start, begin, loop = source.partition("spec = plan")
    assert len([line for line in loop.splitlines() if line.strip()]) <= 18
    program: dict[str, Any] = {}
    exec(compile(start, str(PAGE), "exec"), program)
    before = program["model"].weight.detach().clone()
    exec(compile(begin + loop, str(PAGE), "exec"), program)
    assert not torch.equal(program["model"].weight, before)
    assert 2.5 < Ledger(tmp_path / "loop-ledger.jsonl").epsilon("mine") <= 3.0
