"""The command that samples from a training that no run made."""

from __future__ import annotations

import os
from pathlib import Path

from commands.run_folder.places import ROOT
from doppel.run_folder import run_of
from doppel.settings.yaml_files import read_yaml


def predict_command(stage: Path, writes_texts: bool = True) -> str:
    """Say how to sample from a stage by hand: into a folder beside its run, whose own files steps alone have made.

    Args:
        stage: Folder of the training, with its config.yaml.
        writes_texts: Whether the model writes texts; else it is a parser, which reads given utterances.
    """
    run = run_of(stage)
    out = run.with_name(f"{run.name}-samples")
    overlay = ROOT / "configs" / "overlays" / ("sample.yaml" if writes_texts else "annotate.yaml")
    words = ["python cli.py predict --config", f"{stage / 'config.yaml'}", "--config", _short(overlay), "--ckpt_path"]
    words += [f"{stage / 'checkpoints' / 'last.ckpt'}", "--run_dir", f"{out / stage.name}"]
    words += ["--trainer.callbacks.init_args.output_path", f"{out / stage.name}.jsonl"]
    source = ((read_yaml(stage / "config.yaml").get("model") or {}).get("init_args") or {}).get("source")
    if writes_texts and source is not None:  # which nothing but a file can give
        words += ["--data.init_args.prompts_path", f"{source.upper()}S.jsonl", "--data.init_args.is_public true"]
    if not writes_texts:
        words += ["--data.init_args.path", "UTTERANCES.jsonl"]
    return " ".join(words)


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
