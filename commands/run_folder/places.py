"""Where the code lies, and which paths of settings are meant from where."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppel.settings.facts import Fact

ROOT = Path(__file__).resolve().parents[2]
#: Where commands run: where relative paths that are not in the caller's folder start, also for code that was copied
#: into a run folder.
PLACE = Path.cwd() if (ROOT / "COMMIT").is_file() else ROOT


def absolute(value: Any, fact: Fact) -> Any:
    """Make paths of settings absolute: from the caller's folder, or else from :data:`PLACE`.

    So what is checked here is what a step reads, whatever folder it runs in.
    """
    if isinstance(value, Mapping):
        return {name: absolute(inner, fact.at(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return value if fact.alone and len(value) > 1 else [absolute(inner, fact) for inner in value]
    if not isinstance(value, str) or not value or not fact.path or value in fact.words:
        return value
    named = os.path.expandvars(os.path.expanduser(value))
    is_there = os.path.isfile if fact.alone else os.path.exists
    return next((path for path in (os.path.abspath(named), str(PLACE / named)) if is_there(path)), value)


def public_names(value: Any) -> Any:
    """Shorten paths of settings for any reader: to what stands below the project's folder, or to the name."""
    if isinstance(value, Mapping):
        return {name: public_names(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [public_names(inner) for inner in value]
    if not isinstance(value, str) or not os.path.isabs(value):
        return value
    return os.path.relpath(value, PLACE) if value.startswith(f"{PLACE}{os.sep}") else os.path.basename(value)
