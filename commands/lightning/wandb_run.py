"""What a training or a sampling tells Weights & Biases of itself when its run begins: nothing of private rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from commands.run_folder.run_folder import RunFolder
from doppel.run_folder import run_of

#: Settings that are told, by section; others may name files, or rows.
_TOLD = {
    "model": ("base_model", "dtype", "lora", "max_length", "dropout", "init", "cuda_graphs", "sampling"),
    "data": ("batch_size", "max_tokens_per_micro_batch", "unit", "num_samples"),
    "trainer": ("precision", "devices", "num_nodes", "strategy", "max_epochs", "max_steps"),
}


def about_run(config: Any, run_dir: Path) -> dict[str, Any]:
    """Return arguments of ``wandb.init``: group, job type, tags and configuration.

    Formal guarantees:
        What is told was settled before a private row was read: settings of a list, no path, and no count of rows.

    Args:
        config: Of the command.
        run_dir: Folder of the stage.
    """
    run = run_of(run_dir).absolute()
    record = RunFolder(run)
    system = run_dir.absolute().relative_to(run).parts[0]
    privacy = config.get("privacy")
    epsilon = None if privacy is None else privacy.get("target_epsilon")
    of_run = {key: record.experiment.get(key) for key in ("name", "commit")}
    return {
        "group": record.group,
        "job_type": run_dir.name,
        "resume": "allow",
        "tags": [*filter(None, [of_run["name"], system]), "no privacy" if epsilon is None else f"epsilon={epsilon:g}"],
        "config": {
            "experiment": of_run["name"],
            "commit": (of_run["commit"] or [None])[-1],
            "point": _without_paths(record.experiment.get("point") or {}),
            "system": system,
            "stage": run_dir.name,
            "seed": config.get("seed_everything"),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            **{name: value for section, names in _TOLD.items() for name, value in _of(config, section, names).items()},
        },
    }


def _of(config: Any, section: str, names: tuple[str, ...]) -> dict[str, Any]:
    given = config.get(section)
    values = given if section == "trainer" else (given or {}).get("init_args") or {}
    told = {name: _plain(values.get(name)) for name in names if values.get(name) is not None}
    if told.get("base_model") is not None:
        told["base_model"] = os.path.basename(str(told["base_model"]).rstrip(os.sep))
    return _without_paths(told)


def _plain(value: Any) -> Any:
    return value.as_dict() if hasattr(value, "as_dict") else value


def _without_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of which none is a path."""
    kept: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            kept[name] = _without_paths(value)
        elif not (name.endswith("path") or os.sep in str(value)):
            kept[name] = value
    return kept
