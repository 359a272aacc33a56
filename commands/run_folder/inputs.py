"""Copies of the public files that a run was started with, for when these are gone or others in their place."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from doppel.errors import UserError
from doppel.files import whole_file

#: Folder of the copies in the run folder.
INPUTS = "inputs"
#: Fields of an experiment that name a public file: those of which a run has one content, and those that a page reads.
_BOUND, _OF_PAGE = ("reference", "labels"), ("names", "supported")


def keep(run: Path, experiment: Mapping[str, Any], is_anew: bool) -> None:
    """Copy the files that an experiment names to ``RUN/inputs/FIELD/NAME``: as they are now, if nothing has begun yet.

    Of those that a page reads the newest is kept.

    Formal guarantees:
        The files are declared public, and a run refuses before this those that say what a private one does.
    """
    for field in (*_BOUND, *_OF_PAGE):
        named = experiment.get(field)
        if not isinstance(named, str) or not Path(named).is_file():
            continue
        copy = _place(run, field, named)
        if not copy.exists() or ((is_anew or field in _OF_PAGE) and not filecmp.cmp(named, copy, shallow=False)):
            with open(named, "rb") as file, whole_file(copy) as out:
                shutil.copyfileobj(file, out)


def copies(run: Path, experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that name a file which is gone, and of which the run has a copy: where that is."""
    named = {field: experiment.get(field) for field in (*_BOUND, *_OF_PAGE)}
    gone = {field: path for field, path in named.items() if isinstance(path, str) and not Path(path).exists()}
    places = {field: _place(run, field, path) for field, path in gone.items()}
    return {field: str(place) for field, place in places.items() if place.is_file()}


def moved(run: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that name another file than they did, with the content that the run has kept."""
    found = {}
    for field in _BOUND:
        was, now = old.get(field), new.get(field)
        if isinstance(was, str) and isinstance(now, str) and was != now and _is_kept(run, field, was, now):
            found[field] = now
    return found


def refuse_lost(run: Path, experiment: Mapping[str, Any], reads: Collection[str]) -> None:
    """Refuse to go on where a file that steps still read is gone, or another one than the run was started with.

    Raises:
        UserError: One is; it names the copy.
    """
    for field in _BOUND:
        named = str(experiment.get(field))
        if named not in reads or not _place(run, field, named).is_file() or _is_kept(run, field, named, named):
            continue
        how = "has changed since the run began" if Path(named).exists() else "is gone"
        raise UserError(
            f"{field} is {named}, which {how}: restore it, or give --set {field}={_place(run, field, named)}, the copy "
            "that the run has kept"
        )


def _place(run: Path, field: str, named: str) -> Path:
    return run / INPUTS / field / Path(named).name


def _is_kept(run: Path, field: str, was: str, now: str) -> bool:
    """Whether a file has the content of the copy of what was named before."""
    copy = _place(run, field, was)
    return copy.is_file() and Path(now).is_file() and filecmp.cmp(copy, now, shallow=False)
