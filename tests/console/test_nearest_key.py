"""A wrong key is refused before anything starts, with the nearest key and the file that holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import main

CONFIGS = ["--config", "configs/trainer.yaml", "--config", "configs/utterance_lm.yaml"]
DATA = [
    "--data=datamodules.dialogue_data_module.DialogueDataModule",
    "--data.init_args.train_path=embedded:toy",
    "--trainer.max_steps",
    "1",
]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "trainer:\n  max_epoch: 3\n",
            "there is no option 'trainer.max_epoch' (FILE): did you mean 'trainer.max_epochs'?",
        ),
        ("data:\n  init_args:\n    batchsize: 3\n", "has no argument 'batchsize' (FILE): did you mean 'batch_size'?"),
        (
            "trainer:\n  callbacks+:\n    class_path: callbacks.synthetic_writer.SyntheticWriter\n"
            "    init_args: {log_sample: 3}\n",
            "SyntheticWriter has no argument 'log_sample' (FILE): did you mean 'log_samples'?",
        ),
        (
            "model:\n  init_args:\n    sampling: {redrawz: 3}\n",
            "sampling has no 'redrawz' (FILE): did you mean 'redraws'?",
        ),
        ("zzz: 3\n", "there is no option 'zzz' (FILE)\n"),
        ("return_prediction: true\n", "there is no option 'return_prediction' (FILE)"),
    ],
)
def test_a_typo_in_a_config_starts_no_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    config = tmp_path / "typo.yaml"
    config.write_text(text)
    run = tmp_path / "run" / "stage"
    assert main(["fit", *CONFIGS, *DATA, "--config", str(config), "--run_dir", str(run)]) == 2
    error = capsys.readouterr().err
    assert says.replace("FILE", str(config)) in error
    assert "--help` lists the options" in error and error.count("\n") <= 3
    assert not run.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"seed_everything: -1\n", "seed_everything is -1: give a number from 0 to 4294967295"),
        (b"# all that a full disk left\n", "FILE is empty, where keys with values are read"),
        (b"- 1\n", "FILE holds a list, where keys with values are read"),
        ("trainer: {max_epochs: 3}\n".encode("utf-16"), "FILE is not in UTF-8: save it as UTF-8"),
    ],
)
def test_a_config_that_is_none_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_bytes(content)
    assert main(["fit", *CONFIGS, *DATA, "--config", str(config), "--run_dir", str(tmp_path / "run" / "stage")]) == 2
    error = capsys.readouterr().err
    assert says.replace("FILE", str(config)) in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "option", "nearest"),
    [
        ("fit", "--trainer.max_epoch", "trainer.max_epochs"),
        ("fit", "--model.init_args.lorra", "lora"),
        ("fit", "--modle", "model"),
        ("fit", "--privacy.target_epslon", "target_epsilon"),
        ("predict", "--cpkt_path", "ckpt_path"),
        ("test", "--trainer.max_epoch", "trainer.max_epochs"),
    ],
)
def test_options_are_not_abbreviated_and_typos_of_the_command_line_are_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, option: str, nearest: str
) -> None:
    run = tmp_path / "run" / "stage"
    assert main([command, *CONFIGS, *DATA, option, "3", "--run_dir", str(run)]) == 2
    error = capsys.readouterr().err
    assert f"did you mean {nearest!r}?" in error and f" {command} --help` lists" in error and error.count("\n") == 2
    assert not run.exists()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model.init_args.sampling.redraws", "often", "'often' does not fit: give a whole number, such as 3 or null"),
        ("model.init_args.sampling.top_p", "null", "'null' does not fit: give a number, such as 0.5"),
        ("trainer.max_epochs", "2.5", "'2.5' does not fit: give a whole number, such as 3"),
    ],
)
def test_a_value_of_another_type_is_answered_by_one_that_fits(
    key: str, value: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *CONFIGS, *DATA, f"--{key}={value}", "--run_dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert expected in error and key.rpartition(".")[2] in error


def test_null_is_a_value_of_an_argument_in_a_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """jsonargparse hands it on as the text None."""
    words = ["--model.init_args.sampling.redraws=null", "--run_dir", str(tmp_path), "--print_config"]
    with pytest.raises(SystemExit) as done:
        main(["fit", *CONFIGS, *DATA, *words])
    assert not done.value.code and "redraws: null" in capsys.readouterr().out
