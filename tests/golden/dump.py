"""Writes what the goldens compare.

python -m tests.golden.dump OUT_DIR    a YAML file for each stage of each experiment, and values.json, so that
                                       `diff -r` shows what changed between two commits
python -m tests.golden.dump --update   new goldens; prints which ones changed
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.golden import model_loops
from tests.golden.batches import batches
from tests.golden.experiments import CONFIG, GRAPH, all_stages, digests
from tests.golden.trainings import goldens
from tests.golden.values import grammar, machine, noise_multipliers

CONFIGS = Path(__file__).with_name("configs.json")
GRAPHS = Path(__file__).with_name("graph.json")
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


def _nested(keys: Iterable[str]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, digest in digests(keys).items():
        experiment, epsilon, stage = name.split("/")
        nested.setdefault(experiment, {}).setdefault(epsilon, {})[stage] = digest
    return nested


def update() -> None:
    """Write the goldens anew and say which ones changed."""
    for path, content in ((CONFIGS, _nested(CONFIG)), (GRAPHS, _nested(GRAPH)), (VALUES, values())):
        for line in changed(read(path), dict(_flat(content))) or ["nothing changed"]:
            sys.stdout.write(f"{path.name}: {line}\n")
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def dump(out: Path) -> None:
    """Write everything in full."""
    names = []
    for name, stage in all_stages().items():
        path = out / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(stage, allow_unicode=True, width=120), encoding="utf-8")
        names.append(name)
    (out / "order.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    text = json.dumps(values(), indent=1, ensure_ascii=False)
    (out / "values.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.golden.dump", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("out", nargs="?", type=Path, metavar="OUT_DIR")
    what.add_argument("--update", action="store_true")
    given = parser.parse_args()
    if given.update:
        update()
    else:
        dump(given.out)
