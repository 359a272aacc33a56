"""Sections of an experiment, which hold for every training, for one stage or for one system."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands.runs.yaml_files import Settings, merge, read_yaml

#: Parts of a training's settings, which an experiment may give for all, for one stage and for one system.
SECTIONS = ("trainer", "model", "sampling", "data", "privacy")


def with_sections(experiment: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Return an experiment with sections that win over its own, which are deleted below ``stages``.

    Stages of parsers stay as they are: a parser takes none of the experiment's sections.
    """
    changed = merge(experiment, changes)
    for field in ("stages", "variants"):
        entries = changed.get(field)
        if isinstance(entries, dict):
            changed[field] = {
                name: part if name.startswith("parser") or not isinstance(part, dict) else _without(part, changes)
                for name, part in entries.items()
            }
    return changed


def of_system(experiment: Mapping[str, Any], system: str) -> Settings:
    """Return an experiment as one system has it, with ``variants.SYSTEM`` in its sections."""
    return with_sections({**experiment, "variants": {}}, (experiment.get("variants") or {}).get(system) or {})


def read_experiment(path: Path) -> Settings:
    """Read an experiment as it stands in a file; so runs before version 3 kept what ``--set`` gave: ``overrides``."""
    content = read_yaml(path)
    return with_sections(content, content.pop("overrides", None) or {})


def _without(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """Settings without what changes give anew; a list that is appended to stays."""
    return {
        key: _without(value, changes[key]) if key in changes and not key.endswith("+") else value
        for key, value in settings.items()
        if key not in changes or key.endswith("+") or (isinstance(value, Mapping) and isinstance(changes[key], Mapping))
    }
