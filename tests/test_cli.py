"""The command line as a user meets it: overview, errors that one can mend, shipped configurations, a private fit."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from zipfile import is_zipfile

import pytest
import torch
import yaml

import cli
from commands.lightning import hardware
from commands.lightning.cli import DEFAULTS
from commands.lightning.stage_folder import last_checkpoint
from commands.run_folder.systems import SYSTEMS
from doppel.privacy.ledger import Ledger

ROOT = Path(__file__).resolve().parent.parent
DATA = "datamodules.dialogue_data_module.DialogueDataModule"
PRIVATE = [
    "--privacy.target_epsilon=8",
    "--privacy.accountant=rdp",
    "--privacy.epochs=[1]",
    "--privacy.scope=one_stage",
]


def configs(*names: str) -> list[str]:
    return [argument for name in names for argument in ("--config", str(ROOT / "configs" / f"{name}.yaml"))]


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    monkeypatch.setenv("DOPPEL_DATA", os.environ.get("DOPPEL_DATA", str(tmp_path)))


@pytest.fixture
def small(tiny_model: str, corpus: str, tmp_path: Path) -> list[str]:
    """Arguments that make a quickstart stage tiny."""
    return [
        *configs("utterance_lm"),
        f"--model.init_args.base_model={tiny_model}",
        f"--data={DATA}",
        f"--data.init_args.train_path={corpus}",
        "--data.init_args.unit=utterance",
        "--data.init_args.batch_size=12",
        "--trainer.accelerator=cpu",
        "--trainer.logger=false",
        f"--run_dir={tmp_path / 'run' / 'one_stage'}",
    ]


@pytest.mark.parametrize("words", [[], ["--help"], ["--help", "all"]])
def test_each_group_and_each_command_stands_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    overview = capsys.readouterr().out
    groups = {**cli.COMMANDS, **(cli.MORE if "all" in words else {})}
    names = [name for group in groups.values() for name in group]
    assert re.findall(r"^  ([\w-]+) ", overview, re.M) == names
    assert re.findall(r"^(\w[\w ]+):$", overview, re.M) == list(groups)
    assert max(map(len, overview.splitlines())) <= 120
    assert all(re.search(rf"^  {name} +[A-Z].*\.$", overview, re.M) for name in names), "each says what it does"
    assert len(names) <= (24 if "all" in words else 16)


def test_the_help_of_run_shows_an_example_and_names_every_system(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    told = capsys.readouterr().out
    assert "\npython cli.py run configs/experiments/" in told
    assert set(SYSTEMS) <= set(re.findall(r"\w+", told))


@pytest.mark.parametrize("reader", ["head -n 1", "true"])
def test_a_reader_who_has_seen_enough_is_no_error(reader: str, tmp_path: Path) -> None:
    program = "import sys; from doppel.console.interrupt import one_line; sys.exit(one_line(lambda: print(*range(99999)"
    words = (
        f'"{sys.executable}" -c "{program}, sep=chr(10)) or 0))" 2> "{tmp_path}/told" | {reader}; exit ${{PIPESTATUS}}'
    )
    done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, timeout=60)
    assert (done.returncode, (tmp_path / "told").read_text()) == (128 + signal.SIGPIPE, "")


def test_unknown_command_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trian"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("names", [("pretrain",), ("pretrain", "pretrain_135m"), ("utterance_lm",)])
@pytest.mark.parametrize("overlay", [(), ("lora",)])
def test_shipped_overlays_parse(
    names: tuple[str, ...], overlay: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        data = [] if names[0] == "pretrain" else [f"--data={DATA}", "--data.train_path=embedded:train"]
        cli.main(
            ["fit", *configs(*names), *data, *configs(*(f"overlays/{name}" for name in overlay)), "--print_config"]
        )
    assert done.value.code == 0
    assert "class_path" in capsys.readouterr().out


def test_the_shipped_base_is_found_from_any_folder_and_a_folder_of_ones_own_comes_first(
    tmp_path: Path, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"utterance": f"show event {number}", "parse": "(A)"} for number in range(8)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ["--data", DATA, "--data.init_args.train_path=rows.jsonl", "--data.init_args.is_public=true"]
    once = ["--privacy=null", "--trainer.max_steps=1", "--trainer.logger=false", "--data.init_args.batch_size=2"]
    sizes = []
    for run in ("shipped", "own"):
        if run == "own":
            Path("models").mkdir()
            Path("models/base").symlink_to(tiny_model)
        assert cli.main(["fit", *configs("utterance_lm"), *data, *once, f"--run_dir={run}/fit"]) == 0
        config = yaml.safe_load(Path(run, "fit", "config.yaml").read_text())
        assert config["model"]["init_args"]["base_model"] == "models/base", "as it was given"
        weights = torch.load(last_checkpoint(Path(run, "fit")), weights_only=False)["state_dict"]
        sizes.append(sum(weight.numel() for weight in weights.values()))
    assert sizes[0] > 4_000_000 > sizes[1]


@pytest.mark.parametrize("name", ("fit", "validate", "test", "predict"))
def test_print_config_works_for_every_command_and_can_be_given_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = configs("overlays/sample") if name == "predict" else [f"--data={DATA}", "--data.train_path=embedded:train"]
    printed = []
    for arguments in ([*configs("parse2utterance"), *data], ["--config", str(tmp_path / "printed.yaml")]):
        with pytest.raises(SystemExit) as done:
            cli.main([name, *arguments, "--print_config"])
        assert done.value.code == 0
        printed.append(capsys.readouterr().out)
        (tmp_path / "printed.yaml").write_text(printed[0])
    assert printed[0] == printed[1] and yaml.safe_load(printed[0])["model"]["class_path"]


def test_the_settings_of_trainings_are_read_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What reads them takes a pattern of files; where none fits, Lightning's own hold, and no checkpoint is found."""
    settings = tmp_path / "b[1] *" / "trainer.yaml"
    settings.parent.mkdir()
    settings.write_bytes(DEFAULTS.read_bytes())
    monkeypatch.setattr("commands.lightning.cli.DEFAULTS", settings)
    with pytest.raises(SystemExit):
        cli.main(
            ["fit", *configs("utterance_lm"), f"--data={DATA}", "--data.train_path=embedded:train", "--print_config"]
        )
    assert "callbacks.preemption.Preemption" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["callbacks.preemption.Preemption", "callbacks.wandb_lineage.WandbLineage"])
def test_help_of_a_callback_says_what_its_arguments_do(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["fit", f"--trainer.callbacks.help={path}"])
    printed = capsys.readouterr().out
    arguments = re.findall(r"^  --trainer\.callbacks\.(\w+)", printed, re.M)
    assert arguments and all(re.search(rf"--trainer\.callbacks\.{a}[^(]*\w+ \w+ \w+", printed) for a in arguments)


def test_a_private_fit_leaves_a_checkpoint_and_files_readable_by_the_owner_alone(
    tmp_path: Path,
    small: list[str],
    capsys: pytest.CaptureFixture[str],
    said: list[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    arguments = ["fit", *small, *PRIVATE, "--trainer.max_epochs=1"]
    assert cli.main(arguments) == 0
    run = tmp_path / "run"
    assert (run / "one_stage" / "checkpoints" / "last.ckpt").is_file()
    for path in (run / "ledger.jsonl", run / "one_stage" / "config.yaml"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    capsys.readouterr()
    assert cli.main(["ledger", str(run), "--json"]) == 0
    spent = json.loads(capsys.readouterr().out)
    assert spent["scopes"]["one_stage"]["steps_done"] == 5
    epsilon = spent["scopes"]["one_stage"]["epsilon"]
    assert 0 < epsilon <= 8
    (line,) = [text for text in said if text.startswith("one_stage 5/5 steps ")]
    assert line == f"one_stage 5/5 steps · ε {epsilon:.2f} of 8 · 0:00 left", "nothing of the data"
    assert f"model: {run / 'one_stage' / 'checkpoints' / 'last.ckpt'}" in said
    assert any(text.startswith("PRIVATE, budget 'one_stage': target ε = 8 at δ") for text in said)
    assert any(text.endswith(f"; spent so far ε = {epsilon:.3f}") for text in said)
    assert any(text.startswith("next: python cli.py predict --config ") for text in said)
    assert not any("available: False" in text for text in said)
    assert not any("LeafSpec" in str(warning.message) for warning in recwarn)


def test_a_saved_configuration_starts_the_same_training_in_another_folder_and_null_is_the_run_without_privacy(
    tmp_path: Path, small: list[str], said: list[str]
) -> None:
    stage = tmp_path / "run" / "one_stage"
    assert cli.main(["fit", *small, *PRIVATE, "--trainer.max_epochs=1"]) == 0
    other = tmp_path / "other" / "again"
    again = ["fit", "--config", str(stage / "config.yaml"), "--run_dir", str(other)]
    assert cli.main(again) == 0
    spent = [Ledger(folder.parent / "ledger.jsonl").summary()["mechanisms"] for folder in (stage, other)]
    assert [len(mechanisms) for mechanisms in spent] == [1, 1]
    assert (other / "checkpoints" / "last.ckpt").is_file()
    assert not any("NOT PRIVATE" in text for text in said)
    public = tmp_path / "public" / "again"
    assert cli.main([*again, "--privacy=null", "--not_private=true", "--run_dir", str(public)]) == 0
    assert not (public.parent / "ledger.jsonl").exists()
    assert len([text for text in said if text.startswith("NOT PRIVATE: ")]) == 2, "at the start and at the end"
    assert any(text.startswith("again 5/5 steps · train/loss ") for text in said)


def test_privacy_is_merged_over_files_and_the_command_line_and_data_may_be_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.yaml").write_text(f"class_path: {DATA}\ninit_args:\n  train_path: embedded:train\n")
    (tmp_path / "stage.yaml").write_text("data: data.yaml\nprivacy:\n  epochs: [2, 8]\n  delta: 1.0e-5\n")
    (tmp_path / "later.yaml").write_text("privacy:\n  delta: 1.0e-6\n")
    files = ["--config", str(tmp_path / "stage.yaml"), "--config", str(tmp_path / "later.yaml")]
    with pytest.raises(SystemExit):
        cli.main(["fit", *configs("utterance_lm"), *files, "--privacy.target_epsilon=3", "--print_config"])
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["data"]["init_args"]["train_path"] == "embedded:train"
    assert (config["privacy"]["epochs"], config["privacy"]["delta"], config["privacy"]["target_epsilon"]) == (
        [2.0, 8.0],
        1e-6,
        3.0,
    )
    assert config["trainer"]["log_every_n_steps"] == 10, "trainer.yaml is the default"


def test_lightnings_fast_dev_run_is_refused_in_a_private_stage(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fit", *small, *PRIVATE, "--trainer.fast_dev_run=1"]) == 2
    assert "fast_dev_run" in capsys.readouterr().err
    assert not list(tmp_path.rglob("ledger.jsonl"))


@pytest.mark.parametrize(("overlay", "private"), [((), True), ((), False), (("overlays/profiler",), True)])
def test_two_steps_run_with_and_without_the_profiler(
    tmp_path: Path, small: list[str], overlay: tuple[str, ...], private: bool
) -> None:
    debug = [*configs(*overlay), "--trainer.max_steps=2", "--trainer.max_epochs=1", "--trainer.limit_val_batches=1"]
    assert cli.main(["fit", *small, *(PRIVATE if private else ["--not_private=true"]), *debug]) == 0
    stage = tmp_path / "run" / "one_stage"
    assert bool(list(stage.glob("*.trace.json"))) == bool(overlay)


def test_the_overfit_overlay_learns_its_units_by_heart(tmp_path: Path, small: list[str]) -> None:
    fit = [*small, *configs("overlays/overfit"), "--not_private=true", "--model.init_args.optimizer=torch.optim.AdamW"]
    logger = ["--trainer.logger=lightning.pytorch.loggers.CSVLogger", f"--trainer.logger.init_args.save_dir={tmp_path}"]
    fit += ["--trainer.max_epochs=40", "--trainer.log_every_n_steps=1", "--model.init_args.optimizer.init_args.lr=0.02"]
    assert cli.main(["fit", *fit, *logger]) == 0
    (path,) = tmp_path.rglob("metrics.csv")
    with open(path, encoding="utf-8") as file:
        losses = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("left", ["last", "dangling", "no link", "nothing"])
def test_ckpt_path_last_finds_what_a_kill_left(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    if left != "nothing":
        (folder / "step=10.ckpt").touch()
    if left in ("last", "dangling"):
        (folder / "last.ckpt").symlink_to("step=5.ckpt" if left == "dangling" else "step=10.ckpt")
    found = last_checkpoint(tmp_path)
    assert found == (None if left == "nothing" else str(folder / "last.ckpt"))
    assert found is None or Path(found).resolve().name == "step=10.ckpt"


@pytest.mark.parametrize("kind", ["a file", "a link"])
def test_of_a_checkpoint_that_was_cut_off_the_newest_whole_one_takes_the_place(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for step in (10, 20, 30):
        torch.save({"step": step}, folder / f"step={step}.ckpt")
        os.utime(folder / f"step={step}.ckpt", (step, step))
    cut, last = folder / "step=30.ckpt", folder / "last.ckpt"
    cut.write_bytes(cut.read_bytes()[:-20])
    cut.rename(last) if kind == "a file" else last.symlink_to(cut.name)
    kept = folder / "last.ckpt.damaged"
    for told in ("last.ckpt is damaged, and step=20.ckpt beside it is taken", ""):
        assert torch.load(str(last_checkpoint(tmp_path)))["step"] == 20
        said = capsys.readouterr().out.replace("\n", " ")
        assert told in said and bool(said) == bool(told)
    assert kept.is_file() and not is_zipfile(kept)


def test_a_training_that_nobody_paid_for_begins_anew_where_its_first_checkpoint_was_cut_off(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    torch.save({"step": 3}, folder / "step=3.ckpt")
    (folder / "step=3.ckpt").write_bytes((folder / "step=3.ckpt").read_bytes()[:-20])
    assert last_checkpoint(tmp_path, may_begin_anew=True) is None
    assert last_checkpoint(tmp_path) is not None, "what was paid for is not made again"
    assert last_checkpoint(tmp_path, may_begin_anew=True) is None
    torch.save({"step": 3}, folder / "step=3.ckpt")
    assert last_checkpoint(tmp_path, may_begin_anew=True) is not None


BROKEN = '{"utterance": "hello", "parse": "(Yield (Today))", "unit": "u"}\n{"utterance": \n'
BAD_TREE = '{"utterance": "hello", "parse": "(Yield (Today)", "unit": "u"}\n'
NO_UNIT = '{"utterance": "hello", "parse": "(Yield (Today))"}\n'


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (BROKEN, [], "bad.jsonl:2"),
        (BAD_TREE, [], "bad.jsonl:1"),
        (NO_UNIT, ["--data.init_args.unit=dialogue"], "unit"),
        (None, [], "bad.jsonl"),
        ("", [], "bad.jsonl"),
    ],
)
def test_bad_data_is_a_one_line_error(
    tmp_path: Path,
    small: list[str],
    content: str | None,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_text(content)
    fit = ["fit", *small, "--not_private=true", "--trainer.max_epochs=1"]
    assert cli.main([*fit, f"--data.init_args.train_path={path}", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
    assert "hello" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trainer.gradient_clip_val=1.0"], "gradient_clip_val"),
        (["--data.init_args.sampling=shuffle"], "sampling: poisson"),
        (["--privacy.target_epsilon=1e-9"], "epsilon"),
        (["--trainer.max_epochs=3"], "max_epochs"),
        (["--trainer.max_epochs=null"], "trainer.max_epochs is null: give the number of epochs"),
        (["--trainer.max_epochs=-1"], "trainer.max_epochs is -1: give the number of epochs"),
        (["--model.init_args.base_model=no/such/model"], "no/such/model"),
    ],
)
def test_bad_settings_are_one_line_errors(
    small: list[str], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = ["fit", *small, *PRIVATE, "--trainer.max_epochs=1"]
    assert cli.main([*fit, *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error


LISTED = "[{class_path: callbacks.differential_privacy.DifferentialPrivacy, init_args: {target_epsilon: 3}}]"


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("fit", ["--privacy.target_epsilon=abc"], "privacy.target_epsilon: 'abc'"),
        ("fit", ["--privacy.target_epsilo=3"], "did you mean 'target_epsilon'"),
        ("fit", ["--trainer.max_epochs=abc"], "trainer.max_epochs: 'abc'"),
        ("fit", ["--model.init_args.optimizer=torch.nn.Linear"], "model.optimizer: "),
        ("fit", [f"--trainer.callbacks={LISTED}"], "`privacy`"),
        ("fit", ["--trainer.callbacks.init_args.target_epsilon=3"], "--privacy.target_epsilon"),
        ("fit", ["--run_dir=/proc/run/stage"], "run_dir /proc/run/stage"),
        ("fit", ["--ckpt_path=none.ckpt"], "none.ckpt"),
        ("predict", [], "--config configs/overlays/sample.yaml"),
    ],
)
def test_the_true_reason_is_one_line(
    small: list[str], command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, *small, *arguments]) == 2
    error = capsys.readouterr().err
    (line,) = [line for line in error.splitlines() if line.startswith("error: ")]
    assert message in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_not_there_is_one_line(small: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit", *small, "--trainer.accelerator=gpu"]) == 2
    assert "error: trainer.accelerator is gpu" in capsys.readouterr().err


def test_a_logger_without_a_folder_writes_into_the_run_folder(tmp_path: Path, small: list[str]) -> None:
    fit = ["fit", *small, "--not_private=true", "--trainer.max_steps=1", "--trainer.log_every_n_steps=1"]
    assert cli.main([*fit, "--trainer.logger=lightning.pytorch.loggers.CSVLogger"]) == 0
    assert list((tmp_path / "run" / "one_stage").rglob("metrics.csv"))


def test_bf16_on_a_device_without_it_is_refused(
    small: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_70", "sm_80"])
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    fit = ["fit", *small, *PRIVATE, "--trainer.precision=bf16-mixed"]
    assert cli.main([*fit, "--trainer.accelerator=auto"]) == 2
    refusal = capsys.readouterr().err
    assert all(name in refusal for name in ("Tesla V100", "bf16-mixed", "trainer.precision", "auto"))


def test_a_training_goes_on_where_another_precision_is_fast(
    tmp_path: Path, small: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The precision that was chosen is said and saved, and is no part of what a resumed run must share."""
    fit = ["fit", *small, *PRIVATE, "--trainer.max_epochs=1", "--ckpt_path=last", "--trainer.precision=auto"]
    for steps, found, chosen in ((1, "", "32-true"), (2, "avx512_bf16", "bf16-mixed")):
        monkeypatch.setattr(hardware, "cpu_bf16", lambda found=found: found)
        assert cli.main([*fit, f"--trainer.max_steps={steps}"]) == 0
        assert any(message.startswith(f"precision: {chosen}, for this CPU") for message in said)
        saved = yaml.safe_load((tmp_path / "run" / "one_stage" / "config.yaml").read_text())
        assert saved["trainer"]["precision"] == chosen


def test_a_model_with_an_unsupported_layer_is_refused_by_name(
    tmp_path: Path, small: list[str], tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer, MambaConfig, MambaForCausalLM

    folder = tmp_path / "mamba"
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.save_pretrained(folder)
    config = MambaConfig(vocab_size=len(tokenizer), hidden_size=16, state_size=4, num_hidden_layers=1)
    MambaForCausalLM(config).save_pretrained(folder)
    fit = ["fit", *small, *PRIVATE, "--trainer.max_epochs=1"]
    assert cli.main([*fit, f"--model.init_args.base_model={folder}", "--model.init_args.max_length=64"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert "Conv1d" in error or "mixer" in error
