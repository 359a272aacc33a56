"""An experiment's file: read with what it is based on, and written."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from commands.pipeline.checks import check
from commands.pipeline.evolution_settings import Evolution
from commands.pipeline.settings import SECTIONS, Adaptation, Attributes, Calibration, Experiment, Topics
from commands.pipeline.systems import USUAL
from commands.pipeline.yaml_files import ROOT, absolute, build, fill_in, listed, merge, read_yaml
from datamodules.redaction import Redaction
from doppel.errors import UserError

EXPERIMENTS = ROOT / "configs" / "experiments"
#: Fields whose keys are those of other places, which check them.
_MAPPINGS = (*SECTIONS, "stages", "variants", "at_epsilon", "overrides", "epochs", "environment")


def load(path: Path, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Read an experiment.

    Args:
        path: Its file, such as ``configs/experiments/quickstart.yaml``, or a run's ``experiment.yaml``.
        changes: Fields in place of the file's, by dotted name: ``{"epsilon": 3, "data.batch_size": 64}``. Sections win
            over all that the file says of single stages and systems.

    Returns:
        The experiment, with ``base`` and ``at_epsilon`` worked in, variables filled in, and absolute paths.

    Raises:
        UserError: The file, or one that it is based on, is not an experiment.
    """
    content = merge({"name": path.stem}, _read(path, ()))
    nested: dict[str, Any] = {}
    for key, value in (changes or {}).items():
        words = key.split(".")
        if words[0] in SECTIONS and words[1:2] == ["init_args"]:  # as `fit` calls it
            del words[1]
        for word in reversed(["overrides", *words] if words[0] in SECTIONS else words):
            value = {word: value}
        nested = merge(nested, value)
    epsilon = nested.get("epsilon", content.get("epsilon", 8.0))
    for key, fields in (content.pop("at_epsilon", None) or {}).items():
        if _number(key, path) == _number(epsilon, path):
            content = merge(content, fields or {})
    content = merge(content, nested)
    if "epsilon" in content:
        content["epsilon"] = _number(content["epsilon"], path)
    named = {**(content.pop("environment", None) or {})}
    content["environment"] = {name: os.environ.get(name, value) for name, value in named.items()}
    if content.get("systems") is not None:
        content["systems"] = [name.strip() for names in listed(content["systems"]) for name in str(names).split(",")]
    filled = absolute(fill_in(content, {**os.environ, **content["environment"]}, str(path)))
    values = build(Experiment, filled, path, _MAPPINGS, said=nested)
    values["systems"] = values["systems"] or list(USUAL)
    parts: dict[str, Callable[[Any], Any]] = {
        "adaptation": lambda read: Adaptation(**vars(read)),
        "calibration": lambda read: Calibration(**vars(read)),
        "topics": lambda read: Topics(**vars(read)),
        "attributes": lambda read: Attributes(**vars(read)),
        "evolution": Evolution.of,
        "redact": lambda read: Redaction(**vars(read)),
    }
    for key, part in parts.items():
        if values[key] is not None:
            try:
                values[key] = part(values[key])
            except UserError as error:
                raise UserError(str(error), about=path) from None
    experiment = Experiment(**values)
    check(experiment, path)
    return experiment


def shipped(name: str) -> Path:
    """The file of a shipped experiment."""
    return EXPERIMENTS / f"{name}.yaml"


def save(experiment: Experiment, path: Path) -> None:
    """Write an experiment as :func:`load` reads it."""
    text = yaml.safe_dump(experiment.as_dict(), sort_keys=False, allow_unicode=True, width=120)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A file on top of its base."""
    if not path.is_file():
        raise UserError(f"there is no experiment {path}: give a file such as configs/experiments/quickstart.yaml")
    if path in seen:
        raise UserError(f"{path} is based on itself")
    content = read_yaml(path)
    files = [path.parent / f"{base}.yaml" for base in listed(content.pop("base", []))]
    bases = [_read(file if file.is_file() else shipped(file.stem), (*seen, path)) for file in files]
    return merge(*bases, content)


def _number(value: Any, path: Path) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number > 0:
        raise UserError(f"epsilon is {value} ({path}): give a number above 0, or inf")
    return number
