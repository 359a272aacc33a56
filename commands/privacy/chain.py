"""Whether a released file is what its steps made, back to the checkpoints that wrote its words: digests and lines."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from commands.pipeline.manifest import Entry, Manifest
from commands.pipeline.run_record import read_json
from commands.pipeline.steps import RELEASED
from doppel.files import read_json_lines

#: Roles of the lines that a model wrote, or that were drawn from such.
TEXTS = (*RELEASED, "candidates", "pool", "prompts")
#: What a command that draws or chooses may add to a line.
_ADDED = {"calibrate": "label", "choose": "template"}


def strangers(manifest: Manifest, made: Entry) -> list[str]:
    """Why a release may hold other lines than its steps have made; who shows its lines leaves it out then.

    Files that it was made of may have been deleted since.
    """
    found = manifest.breaks(made.path, may_be_gone=True)
    for entry in manifest.upstream(made.path):
        if entry.role not in TEXTS or not manifest.path(entry).is_file():
            continue
        if entry.verb == "predict":
            told = sampling_of(manifest, entry)
            found += [] if told is None else _not_written(manifest, entry, told)
        else:
            found += not_drawn(manifest, entry)
    return list(dict.fromkeys(found))


def drawn_by_others(manifest: Manifest, drawn: Entry, weights: Mapping[str, Collection[str]]) -> list[str]:
    """Why what a model wrote is not bound to the weights, the prompts and the grammar that its step declared to read.

    A step takes over what ``predict`` has finished in its place by hand, with whatever it was asked with. The writer
    tells that in ``FILE.metrics.json``.

    Args:
        manifest: Of the run.
        drawn: What was written.
        weights: Checkpoint of the run → fingerprints of its weights, of those that private trainings left.
    """
    told = sampling_of(manifest, drawn)
    if told is None or "weights" not in told:
        return [f"{drawn.path}: nothing tells which weights drew it"]
    wrong = manifest.changes(f"{drawn.path}.metrics.json") + _not_written(manifest, drawn, told)
    asked = [name for name in drawn.inputs if name in manifest.files and manifest.files[name].role in TEXTS]
    given = [name for name in drawn.inputs if os.path.isabs(name)]  # public files, such as trees for `sample --trees`
    if told.get("prompts") not in {*(drawn.inputs[name] for name in [*asked, *given]), *([] if asked else [None])}:
        named = " and ".join(asked) or "none"
        which = "prompts that were declared public" if told.get("prompts_are_declared_public") else "other prompts"
        wrong.append(f"{drawn.path} was sampled with {which} instead of those that {drawn.step} declared: {named}")
    is_known = all(digest is not None or not Path(name).suffix for name, digest in drawn.inputs.items())
    if is_known and not set(told.get("grammar", [])) <= set(drawn.inputs.values()):
        wrong.append(f"{drawn.path} was sampled under a table of a grammar that {drawn.step} did not declare")
    names = [name for name in drawn.inputs if name in manifest.files and manifest.files[name].role == "checkpoint"]
    folder = manifest.folder
    files = [os.path.relpath((folder / name).resolve(), folder.resolve()) for name in names]
    known = [weight for file in files for weight in weights.get(file, ())]
    if known and told["weights"] not in known:
        wrong.append(f"{drawn.path} was drawn by other weights than those of {' and '.join(names)}")
    return wrong


def not_drawn(manifest: Manifest, drawn: Entry) -> list[str]:
    """Why a file was not drawn or chosen from another one, which must have all its lines as they are."""
    source, added = manifest.drawn_from(drawn), _ADDED.get(drawn.verb)
    if source is None or not manifest.path(source).is_file() or not manifest.path(drawn).is_file():
        return []

    def lines(entry: Entry) -> set[tuple[tuple[str, str], ...]]:
        read = (line for _, line in read_json_lines(manifest.path(entry)))
        return {tuple(sorted((k, repr(v)) for k, v in line.items() if k != added)) for line in read}

    if lines(drawn) <= lines(source):
        return []
    return [f"{drawn.path} has lines that {source.path} has not, from which {drawn.step} draws"]


def sampling_of(manifest: Manifest, drawn: Entry) -> dict[str, Any] | None:
    """What a sampling has written down of what it wrote; None where there is no such file."""
    metrics = manifest.files.get(f"{drawn.path}.metrics.json")
    return read_json(manifest.path(metrics)) if metrics is not None and manifest.path(metrics).is_file() else None


def _not_written(manifest: Manifest, drawn: Entry, told: Mapping[str, Any]) -> list[str]:
    if told.get("sha256") == drawn.sha256:
        return []
    return [f"{drawn.path} is not what the sampling wrote that {drawn.path}.metrics.json tells of"]
