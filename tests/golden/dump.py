"""``python -m tests.golden.dump --update`` writes what the goldens compare anew; ``git diff`` says what moved."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.golden import model_loops
from tests.golden.batches import batches
from tests.golden.experiments import steps
from tests.golden.trainings import goldens
from tests.golden.values import grammar, machine, noise_multipliers

STEPS = Path(__file__).with_name("steps.yaml")
VALUES = Path(__file__).with_name("values.json")


def read(path: Path) -> dict[str, Any]:
    """The goldens of a file, by dotted name; empty if there are none yet."""
    return dict(_flat(json.loads(path.read_text(encoding="utf-8")))) if path.exists() else {}


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line for each golden that differs, is gone or is new."""
    both = [f"changed: {name}" for name in old if name in new and old[name] != new[name]]
    return [*both, *(f"gone: {name}" for name in old if name not in new), *(f"new: {n}" for n in new if n not in old)]


def values() -> dict[str, Any]:
    """All but the experiments."""
    content: dict[str, Any] = {"machine": machine(), "grammar": grammar(), "accountants": noise_multipliers()}
    with tempfile.TemporaryDirectory() as folder:
        content["batches"] = batches(Path(folder))
    content["models"] = {"features": model_loops.features(), "words": model_loops.words()}
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            found = goldens(Path(folder), ranks)
        content[f"{ranks} ranks"] = {"floats": found.floats, "ledgers": found.ledgers}
    return content


def _flat(content: Mapping[str, Any], lead: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{lead}{name}/")
        else:
            yield lead + name, value


def update() -> None:
    """Write the goldens anew and say which values changed."""
    STEPS.write_text(steps(), encoding="utf-8")
    content = values()
    for line in changed(read(VALUES), dict(_flat(content))) or ["nothing changed"]:
        sys.stdout.write(f"{VALUES.name}: {line}\n")
    VALUES.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.golden.dump", description=__doc__)
    parser.add_argument("--update", action="store_true", required=True)
    parser.parse_args()
    update()
