"""Goldens of what is read of a file and of the batches made of it: whole numbers and texts, alike on all machines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.golden import entrances
from tests.tiny_model import write_model

_SEED = 7
#: Name → source and target of the text format, whether its prompt names the target, and whether slots stand for names.
_FORMATS: dict[str, tuple[str | None, str, bool, bool]] = {
    "p(x)": (None, "utterance", False, False),
    "p(y), named, slots": (None, "parse", True, True),
    "p(x|y), named": ("parse", "utterance", True, False),
    "p(x|label)": ("label", "utterance", False, False),
}


def batches(folder: Path) -> dict[str, str]:
    """Hashes of rows as they are read, and of the training and validation batches of every unit, format and rank.

    Args:
        folder: An empty folder, for the files.
    """
    turns = list(entrances.generated(240, _SEED, 1.0))
    tables, dialogues = folder / "rows.jsonl", folder / "dialogues.jsonl"
    rows = [
        {"utterance": said, "parse": tree, "unit": unit, "label": domain, "stars": number % 5 + 1.0}
        for number, (said, tree, unit, domain) in enumerate(turns)
    ]
    tables.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    dialogues.write_text("".join(f"{json.dumps(d)}\n" for d in _dialogues(rows)), encoding="utf-8")
    write_model(folder / "model")
    found = {}
    for name, path in {"rows": tables, "dialogues": dialogues}.items():
        for unit in ("utterance", "dialogue"):
            found[f"{name} by {unit}"] = _hash(entrances.read(path, unit))
    columns = {"label": ["label", "stars"]}
    found["rows with two labels"] = _hash(entrances.read(tables, "user", columns))
    for name, given in _FORMATS.items():
        for unit in ("utterance", "dialogue"):
            for rank, world_size in ((0, 1), (1, 2)):
                with patch.dict("os.environ", PL_GLOBAL_SEED=str(_SEED)):
                    made = entrances.batches(tables, folder / "model", given, unit, _SEED, rank, world_size)
                    found[f"{name} by {unit}, rank {rank} of {world_size}"] = _hash(made)
    return found


def _dialogues(rows: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        said = {"user_utterance": {"original_text": row["utterance"]}, "lispress": row["parse"]}
        found.setdefault(row["unit"], []).append({**said, "tags": {"domain": row["label"]}})
    return ({"dialogue_id": name, "turns": turns} for name, turns in found.items())


def _hash(values: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(f"{json.dumps(value)}\n".encode())
    return digest.hexdigest()
