"""Which files an experiment or a run protects, and of which a parser learnt."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from commands.run_folder.places import absolute
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.sections import read_experiment
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.steps import PRIVATE_PARTS
from datamodules.guards.overlap import Named, Source
from datamodules.reading.columns import Columns, ReferenceColumns, reference_columns
from datamodules.reading.embedded import is_embedded
from datamodules.reading.files import expand_path
from doppel.console.ledger import FILE_NAME
from doppel.run_folder import MANIFEST, of_stages
from doppel.settings.facts import Fact
from doppel.settings.yaml_files import merge

_MARKS = ("experiment.yaml", FILE_NAME, MANIFEST)


def of_experiment(experiment: Mapping[str, Any]) -> list[Source]:
    """Return the private files of an experiment: what its systems train on, or what an adaptation splits."""
    data = experiment.get("data") or {}
    if experiment.get("adaptation"):
        return [(experiment["adaptation"]["train"], Columns.from_config(data))]
    parts = [*(experiment.get("variants") or {}).values(), *(experiment.get("stages") or {}).values()]
    own = [part.get("data") or {} for part in parts]
    return _distinct(source for section in ({}, *own) for source in _of_data(merge(data, section)))


def of_runs(*places: Path | None, if_private: bool = False) -> list[Source]:
    """Return the private files of the runs in which some files or folders lie.

    A run names its private files twice: in ``experiment.yaml``, which has the user's own path also where a step writes
    trees for it and the trainings read what that wrote, and in the configuration of each training. Of an adaptation it
    is the private part of its split: the others were cut off the same file, and are not private.

    Args:
        places: Files, which need not be there, or folders, of a training or of runs; None is passed over.
        if_private: Pass over runs that were started without privacy.
    """
    found: list[Source] = []
    for folder in dict.fromkeys(folder for place in places if place for folder in [*run_folders(place), place]):
        if if_private and not all(RunFolder(run).is_private for run in run_folders(folder)):
            continue
        if (folder / "experiment.yaml").is_file():
            experiment = read_experiment(folder / "experiment.yaml")
            part = folder / "data" / f"{PRIVATE_PARTS[0]}.jsonl"
            is_split = experiment.get("adaptation") is not None and part.is_file()
            found += [(str(part), None)] if is_split else of_experiment(experiment)
        for config in (folder / "config.yaml", *of_stages(folder, "config.yaml")):
            found += _of_data(StageConfig.read(config.parent).data) if config.is_file() else []
    return _distinct((absolute(path, Fact(path=True)), columns) for path, columns in found)


def learnt_from(option: str, trained: str | Path | None) -> Iterator[Named]:
    """Yield the existing files that a model learnt from without privacy, and those of the one that it started from.

    They have to be public: what it learnt would go into what a parser chooses or counts, or into what starts from the
    weights, and no ε would hold. A private training has its own ledger, and is passed over. The model is given by its
    checkpoint, RUN/parser/checkpoints/last.ckpt, or by its folder.
    """
    for path, columns in _learnt(trained):
        if os.path.exists(expand_path(path)):
            yield f"what {option}={trained} learnt from", path, columns


def _learnt(trained: str | Path | None) -> Iterator[tuple[str, Columns]]:
    """As :func:`learnt_from`, also files that are gone."""
    seen, start = set[Path](), expand_path(str(trained or ""))
    while start and (place := Path(start).resolve()) not in seen:
        seen.add(place)
        folder = place if place.is_dir() else place.parents[1]
        if not (folder / "config.yaml").is_file():
            return
        config = StageConfig.read(folder)
        columns = ReferenceColumns.from_config(config.data)
        paths = [*(config.data.get("train_paths") or ()), config.data.get("train_path")]
        for path in paths if config.content.get("privacy") is None else ():
            if path is not None:
                yield path, columns
        start = expand_path(str(config.model.get("init_weights") or ""))


def learnt_by_parser(experiment: Mapping[str, Any]) -> list[str]:
    """Return the private files of an experiment that the parser of its evaluation learnt from without privacy.

    What such a parser writes depends on private text, and no mechanism was charged for that: so steps that ask it read
    these files, as the manifest has it, and no budget covers what they leave. Compared are paths; of a file that says
    the same in another form a run is refused before it starts.
    """
    private = {_real(path): path for path, _ in of_experiment(experiment)}
    learnt = (_real(path) for path, _ in _learnt(experiment.get("parser")))
    return list(dict.fromkeys(private[path] for path in learnt if path in private))


def run_folders(place: Path) -> list[Path]:
    """Return the run folders that hold a place, itself included."""
    real = place.resolve()
    return [folder for folder in (real, *real.parents) if any((folder / mark).is_file() for mark in _MARKS)]


def _real(path: str) -> str:
    return os.path.realpath(os.path.expanduser(os.path.expandvars(path)))


def _of_data(data: Mapping[str, Any]) -> list[Source]:
    """Of a data module that trains, by its arguments: what it reads and is not declared public."""
    if data.get("is_public") or not data.get("train_path"):
        return []
    columns = Columns.from_config(data)
    found: list[Source] = [(data["train_path"], columns)]
    for name in ("val", "test"):
        if data.get(f"{name}_path") and not data.get(f"{name}_is_public"):
            found.append((data[f"{name}_path"], reference_columns(columns)))
    return found


def _distinct(sources: Iterable[Source]) -> list[Source]:
    """Each source once, without the embedded grammar."""
    found = {(path, columns and columns.key): (path, columns) for path, columns in sources if not is_embedded(path)}
    return list(found.values())
