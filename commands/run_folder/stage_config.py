"""The configuration of one training or sampling, as it ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppel.errors import UserError
from doppel.settings.yaml_files import read_yaml

if TYPE_CHECKING:
    from doppel.privacy.spec import PrivacyArguments


@dataclass(frozen=True)
class StageConfig:
    """The configuration of one training or sampling, as it ran."""

    content: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, name: str = "config.yaml") -> StageConfig:
        """Read the ``config.yaml`` of a stage that trained, or the ``predict.yaml`` of one that sampled.

        Raises:
            UserError: There is none, or one of a training has lost its end, where the data stand.
        """
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: give the folder of a stage that ran")
        content = read_yaml(folder / name)
        if name == "config.yaml" and "data" not in content:
            raise UserError("has no data, so that its end is lost: put back a copy", about=folder / name)
        return cls(content)

    @property
    def model(self) -> dict[str, Any]:
        """Arguments of the model."""
        return _arguments(self.content.get("model"))

    @property
    def data(self) -> dict[str, Any]:
        """Arguments of the data module."""
        return _arguments(self.content.get("data"))

    @property
    def privacy(self) -> PrivacyArguments | None:
        """Arguments of DP-SGD; None for a training that is not private."""
        from doppel.privacy.spec import PrivacyArguments

        given = self.content.get("privacy")
        if given is None:
            return None
        known = {field.name for field in fields(PrivacyArguments)}
        return PrivacyArguments(**{name: value for name, value in given.items() if name in known})

    def of_trainer(self, name: str, kind: str = "") -> list[dict[str, Any]]:
        """Return arguments of the ``callbacks`` or the ``logger`` whose class is called ``…kind``."""
        found = (self.content.get("trainer") or {}).get(name) or []
        entries = [entry for entry in (found if isinstance(found, list) else [found]) if isinstance(entry, dict)]
        return [_arguments(entry) for entry in entries if str(entry.get("class_path")).endswith(kind)]


def _arguments(part: Any) -> dict[str, Any]:
    """``init_args`` of a class in a configuration."""
    return (part.get("init_args") or {}) if isinstance(part, dict) else {}
