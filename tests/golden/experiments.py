"""What every stage of every experiment runs, reads and writes, at several ε."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from tests.golden import entrances

#: What variables of the experiments stand for, whatever the shell says.
_VARIABLES = {name: name for name in ("DOPPEL_DATA", "PREPARED", "PUBLIC")}
#: What a stage runs; and its place among the others, which stays where it is run in another way.
CONFIG = ("name", "kind", "needs", "argv", "config")
GRAPH = ("name", "kind", "needs", "reads", "writes", "protected", "mechanisms")
_EPSILONS = (3.0, 8.0, 16.0, math.inf)
FILE = Path(__file__).with_name("experiments.yaml")
_ROOMS = ("callbacks.", "commands.", "datamodules.", "doppel.", "lightning_modules.")


@cache
def all_stages() -> dict[str, dict[str, Any]]:
    """``EXPERIMENT/epsE/STAGE`` → all of the stage, in order, without what the place of the checkout decides."""
    return dict(_stages())


def _stages() -> Iterator[tuple[str, dict[str, Any]]]:
    with mock.patch.dict(os.environ, _VARIABLES):
        for golden, given in yaml.safe_load(FILE.read_text(encoding="utf-8")).items():
            name, changes = given.get("file", golden), {"seed": 1, **given.get("set", {})}
            for epsilon in given.get("epsilon", _EPSILONS):
                listed = entrances.stages(name, {**changes, "epsilon": epsilon}, Path("RUN"))
                for stage in listed:
                    yield f"{golden}/eps{epsilon:g}/{stage['name']}", _plain(stage)


def _plain(value: Any) -> Any:
    """A value as YAML writes it; a class by its own name, a path from the root of the repository."""
    if isinstance(value, dict):
        return {key: _class(v) if key == "class_path" else _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.replace(f"{entrances.ROOT}/", "") if isinstance(value, str) else value


def _class(path: str) -> str:
    """A class of the project may move from file to file."""
    return path.rsplit(".", 1)[-1] if path.startswith(_ROOMS) else path


def digests(keys: Iterable[str]) -> dict[str, str]:
    """A short hash of these parts of every stage."""
    return {name: _digest({key: stage[key] for key in keys}) for name, stage in all_stages().items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:12]
