"""The attacker reads the disk of the machine, but for the run folder: a training and a sampling leave nothing there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SECRETS = [f"quetzalcoatl{number}" for number in range(60)]


def call(words: list[str], folder: Path) -> None:
    """``python cli.py WORDS`` in a process whose home and scratch folders are in ``folder``."""
    for name in ("home", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "OMP_NUM_THREADS")}
    own = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-B", str(ROOT / "cli.py"), *words]
    done = subprocess.run(command, cwd=folder, env=kept | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_nothing_private_is_left_outside_of_the_run_folder(tiny_model: str, tmp_path: Path) -> None:
    outside, private = tmp_path / "outside", tmp_path / "private.jsonl"
    outside.mkdir()
    private.write_text(
        "".join(json.dumps({"utterance": f"call {secret}", "unit": secret}) + "\n" for secret in SECRETS)
    )
    run, config = tmp_path / "run" / "one_stage", ["--config", str(ROOT / "configs" / "utterance_lm.yaml")]
    model = [f"--model.init_args.base_model={tiny_model}", "--trainer.accelerator=cpu", "--trainer.logger=false"]
    data = ["--data=datamodules.dialogue_data_module.DialogueDataModule", f"--data.init_args.train_path={private}"]
    data += [f"--data.init_args.val_path={private}", "--data.init_args.batch_size=12"]
    privacy = ["--privacy.target_epsilon=8", "--privacy.accountant=rdp", "--privacy.epochs=[1]", "--privacy.scope=one"]
    call(["fit", *config, *model, *data, *privacy, "--trainer.max_epochs=1", f"--run_dir={run}"], outside)
    prompts = ["--data=datamodules.prompt_data_module.PromptDataModule", "--data.init_args.num_samples=2"]
    sample = [
        "--config",
        str(ROOT / "configs" / "overlays" / "sample.yaml"),
        "--ckpt_path",
        str(run / "checkpoints" / "last.ckpt"),
    ]
    written = tmp_path / "run" / "synthetic.jsonl"
    arguments = f"{{output_path: {written}, stage: predict}}"
    writer = f"{{class_path: callbacks.synthetic_writer.SyntheticWriter, init_args: {arguments}}}"
    words = [*config, *sample, *model, *prompts, "--trainer.callbacks", f"[{writer}]"]
    words += ["--model.init_args.sampling={redraws: null}"]  # noise decides what a model of a few steps writes
    call(["predict", *words, f"--run_dir={tmp_path / 'run' / 'sample_one_stage'}"], outside)
    assert (run / "checkpoints" / "last.ckpt").is_file() and written.is_file()

    left = [path for path in outside.rglob("*") if path.is_file()]
    names = {str(path.relative_to(outside)) for path in left if "matplotlib" not in path.parts}  # the machine's fonts
    own = {f"home/.config/doppel/{name}" for name in ("key", "key.lock", "key.ledgers", "key.ledgers.lock")}
    assert names <= own, names
    content = b"".join(path.read_bytes() for path in left)
    assert not any(secret.encode() in content for secret in ["call", *SECRETS])
