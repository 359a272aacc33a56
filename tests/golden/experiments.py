"""What every step of three experiments runs, reads and writes: of trees, of a table with labels, of an evolution."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from tests.golden import entrances

#: What variables of the experiments stand for, whatever the shell says.
_VARIABLES = {name: name for name in ("DOPPEL_DATA", "PREPARED", "PUBLIC")}
_EXPERIMENTS = Path(__file__).with_name("experiments.yaml")
_ROOMS = ("callbacks.", "commands.", "datamodules.", "doppel.", "lightning_modules.")


def steps() -> str:
    """Experiment → step → all of it but what the place of the checkout decides; YAML, in order."""
    found = {}
    with mock.patch.dict(os.environ, _VARIABLES):
        for golden, given in yaml.safe_load(_EXPERIMENTS.read_text(encoding="utf-8")).items():
            changes = {"seed": 1, "epsilon": given["epsilon"], **given.get("set", {})}
            listed = map(_plain, entrances.stages(given["file"], changes, Path("RUN")))
            found[golden] = {step.pop("name"): step for step in listed}
    return yaml.dump(found, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)


class _Dumper(yaml.SafeDumper):
    """Each value in full, where it is."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


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
