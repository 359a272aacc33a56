"""Every setting of the reference, with another value of its type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commands.run.experiment.settings import FACTS
from docs.reference import SECTIONS

#: Of a mapping or of a class: another value than what the finished run has.
OTHERS: dict[str, Any] = {
    "evolution.wording": {"random": "A request:", "vary": "A request: {begin}"},
    "evolution.limits": {"max_calls": 9},
    "systems": ["labels", "one_stage"],
    "overlays": ["configs/overlays/lora.yaml"],
    "topics.texts": "samples",
    "resampling.of": "votes",
    "columns": {"text": "utterance"},
    "lora": {"rank": 4, "alpha": 8.0},
    "data.redact": {"patterns": ["email"]},
    "optimizer": {"lr": 0.5},
    "supported": ["Music"],
    "names": {"Find": "look for"},
    "accountant": "pld",
    "label_words": {"talk": "to say"},
}


def keys() -> Iterator[tuple[str, Any, Any]]:
    """Every key of the reference, by dotted name, with its annotation and its default."""
    for title, kind in SECTIONS.items():
        above = "" if title == "Experiment" else f"{title}."
        for name, parameter in inspect.signature(kind).parameters.items() if title != "SLURM site" else ():
            if not (above == "" and FACTS.at(name).keys):  # whose keys have a section of their own
                yield f"{above}{name}", str(parameter.annotation), parameter.default


def other(key: str, kind: str, default: Any, folder: Path) -> Any:
    """Another value of a type."""
    if (given := OTHERS.get(key, OTHERS.get(key.rpartition(".")[2]))) is not None:
        return given
    if "Literal" in kind or "Accountant" in kind:
        words = [word for word in re.findall(r"'(\w+)'", kind) if word != default]
        return words[-1] if words else "other"
    if kind.startswith("dict"):
        return {"one_stage": 7}
    if "bool" in kind:
        return not default
    if "float" in kind or "int" in kind:
        return 7 if default in (None, inspect.Parameter.empty) or default != default else default + 1
    if FACTS.below(key).path:
        (folder / "other.txt").write_text("other\n")
        return str(folder / "other.txt")
    return "other"
