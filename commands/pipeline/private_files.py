"""Which files an experiment or a run protects, and whether a file that is to be public is one of them in any form."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from commands.pipeline.stage_config import StageConfig
from commands.pipeline.steps import PRIVATE_PARTS
from commands.pipeline.yaml_files import ROOT, merge, read_yaml
from datamodules.columns import Columns, reference_columns
from datamodules.overlap import Source, overlapping
from datamodules.sources import expand_path, is_embedded
from doppel.errors import UserError

_MARKS = ("experiment.yaml", "ledger.jsonl", "manifest.json")


def of_data(data: Mapping[str, Any]) -> list[Source]:
    """Of a data module that trains, by its arguments: what it reads and is not declared public."""
    if data.get("is_public") or not data.get("train_path"):
        return []
    columns = Columns.from_config(data)
    found: list[Source] = [(data["train_path"], columns)]
    for name in ("val", "test"):
        if data.get(f"{name}_path") and not data.get(f"{name}_is_public"):
            found.append((data[f"{name}_path"], reference_columns(columns)))
    return found


def of_experiment(experiment: Mapping[str, Any]) -> list[Source]:
    """Of an experiment, by its fields: what its systems train on, or what an adaptation splits."""
    overrides = (experiment.get("overrides") or {}).get("data") or {}
    data = merge(experiment.get("data") or {}, overrides)
    if experiment.get("adaptation"):
        return [(experiment["adaptation"]["train"], Columns.from_config(data))]
    own = [variant.get("data") or {} for variant in (experiment.get("variants") or {}).values()]
    return _distinct(source for section in ({}, *own) for source in of_data(merge(data, section, overrides)))


def of_runs(*places: Path, if_private: bool = False) -> list[Source]:
    """Of the runs in which some files or folders lie.

    A run names its private files twice: in ``experiment.yaml``, which has the user's own path also where a step writes
    trees for it and the trainings read what that wrote, and in the configuration of each training. Of an adaptation it
    is the private part of its split: the others were cut off the same file, and are not private.

    Args:
        places: Files, which need not be there, or folders.
        if_private: Pass over runs that were started without privacy.
    """
    found: list[Source] = []
    for folder in dict.fromkeys(folder for place in places for folder in run_folders(place)):
        if (folder / "experiment.yaml").is_file():
            experiment = read_yaml(folder / "experiment.yaml")
            if if_private and experiment.get("epsilon") == math.inf:
                continue
            part = folder / "data" / f"{PRIVATE_PARTS[0]}.jsonl"
            is_split = experiment.get("adaptation") is not None and part.is_file()
            found += [(str(part), None)] if is_split else of_experiment(experiment)
        for config in sorted(folder.glob("*/config.yaml")):
            found += of_data(StageConfig.read(config.parent).data)
    return _distinct((_from_here(path), columns) for path, columns in found)


def refuse_parser(parser: Path, private: Iterable[Source], option: str, by_name: bool = False) -> None:
    """Refuse a parser whose run, if it lies beside it, has read a private file; also one that it started from.

    What a parser learnt without privacy would go into what it chooses or counts, and no ε would hold.

    Args:
        parser: Its checkpoint, RUN/parser/checkpoints/last.ckpt.
        private: The private files.
        option: What names the parser.
        by_name: Open no file, and refuse a private one by its path alone.

    Raises:
        UserError: It has.
    """
    private, seen, start = list(private), set[Path](), str(parser)
    while private and start and Path(start).resolve() not in seen:
        seen.add(Path(start).resolve())
        folder = Path(start).resolve().parents[1]
        if not (folder / "config.yaml").is_file():
            return
        config = StageConfig.read(folder)
        for path in config.data.get("train_paths") or ():
            found = _named(path, private)
            if found is None and not by_name and _is_there(path):
                found = overlapping(path, reference_columns(Columns.from_config(config.data)), private)
            if found is not None:
                raise UserError(
                    f"{option} is {parser}, which was trained without privacy on {path}, which says what {found} does; "
                    "this file is protected, and what a parser learnt from it may neither choose nor count: train one "
                    "on other turns"
                )
        start = expand_path(str(config.model.get("init_weights") or ""))


def _named(path: str, private: Iterable[Source]) -> str | None:
    """The private file that a path names, whether or not it is there."""
    real = os.path.realpath(expand_path(path))
    return next((name for name, _ in private if os.path.realpath(expand_path(name)) == real), None)


def _is_there(path: str) -> bool:
    return not is_embedded(path) and os.path.exists(expand_path(path))


def run_folders(place: Path) -> list[Path]:
    """The folders that are runs and hold a place; it may be one itself."""
    real = place.resolve()
    return [folder for folder in (real, *real.parents) if any((folder / mark).is_file() for mark in _MARKS)]


def _from_here(path: str) -> str:
    """A path of a configuration; what is relative there begins where the run began, which usually is the checkout."""
    beside = ROOT / expand_path(path)
    return str(beside) if not os.path.exists(expand_path(path)) and beside.exists() else path


def _distinct(sources: Iterable[Source]) -> list[Source]:
    """Each source once, without the embedded grammar."""
    found = {(path, columns and columns.key): (path, columns) for path, columns in sources if not is_embedded(path)}
    return list(found.values())
