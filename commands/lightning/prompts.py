"""Whether what ``predict`` is asked with may stand in what it writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from commands.run_folder.manifest import Manifest
from commands.run_folder.private_files import of_runs
from commands.run_folder.steps import RELEASED, Role
from datamodules.guards.overlap import Source, refuse_private
from datamodules.private_data import is_disclosable
from datamodules.reading.columns import Columns, reference_columns
from doppel.errors import DataError, UserError
from doppel.files import read_json_lines
from doppel.lispress import is_valid
from doppel.run_folder import MANIFEST, run_of

#: Roles of lines that a model wrote, or that were drawn from such or by released shares.
PROMPTS: tuple[Role, ...] = ("prompts", "candidates", "pool", *RELEASED)


def check_prompts(model: Any, data: Any, private: Callable[[], Iterable[Source]]) -> None:
    """Refuse prompts that are neither public nor a release, before a model samples anything.

    Formal guarantees:
        A language model writes its prompt beside what it samples. A prompt that is as a step of a run has made it was
        released by that run: text for it is post-processing of two releases, under the ε of both runs. A prompt
        declared public costs nothing, and is taken unless its file says what a private one of the model's run says
        (:func:`~datamodules.guards.overlap.overlapping`), trees without a text included; labels alone are not
        noticed. No other one is taken. The run is found by the ``manifest.json`` above the file. What a parser
        annotates is as private as its utterances, and :class:`~callbacks.synthetic_writer.SyntheticWriter` keeps silent
        about it, unless they are a release or the public part of a split (``is_released``).

    Args:
        model: What predicts.
        data: Its data module.
        private: Finds the files that the model learnt from, or that the run protects.

    Raises:
        UserError: A prompt would be neither; the message says why, and what to do.
    """
    prompts, utterances = getattr(data, "prompts_path", None), getattr(data, "path", None)
    roles = PROMPTS if prompts is not None else (*PROMPTS, "data")
    path = prompts if prompts is not None else utterances
    why = f"a {type(data).__name__} reads it" if path is None else why_not_released(str(path), roles)
    if why is None:
        data.is_released = True
    elif path is not None and getattr(data, "is_public", False):
        name = "data.path" if prompts is None else "data.prompts_path"
        refuse_private_lines(name, str(path), getattr(data, "columns", None), private())
    if is_disclosable(data) or (prompts is None and not hasattr(model, "sampling")):
        return
    raise UserError(
        f"these prompts would stand in what is written, and nothing says that they are a release: {why}. Give the "
        "prompts of a run as its step made them, such as RUN/two_stage/trees.jsonl; or, where anybody may see them, "
        "add --data.init_args.is_public=true",
        about="" if path is None else path,
    )


def check_trees(run: Path, path: Path, is_public: bool) -> int:
    """Return the number of trees in a file, which anybody may see or which a step of this run has made.

    Formal guarantees:
        A tree stands beside the utterance that is written for it. As of any prompt
        (:func:`check_prompts`) it is one that a step of this run has made and that is as the step made it,
        or one that is declared public, of a file that does not say what a private one says. What another run has
        released is covered by that run's ε too, which the card of this one does not state: it is taken only where it is
        declared public.

    Raises:
        UserError: They are neither, or not trees; the message says which line.
    """
    if not path.is_file():
        raise DataError(f'there is no file {path}: give JSON lines with "parse"')
    why = why_not_released(str(path), PROMPTS)
    if why is None and not path.resolve().is_relative_to(run):
        why = "another run has released them, whose ε this run's card would not count"
    if why is not None and not is_public:
        raise UserError(
            f"trees stand beside what is written for them, and nothing says that these may be seen: {why}. Give trees "
            "of this run, such as RUN/two_stage/trees.jsonl; or, where anybody may see them, add --public",
            about=path,
        )
    if why is not None:
        refuse_private_lines("--trees", str(path), None, of_runs(run))
    lines = list(read_json_lines(path))
    for number, line in lines:
        if not isinstance(line.get("parse"), str) or not is_valid(line["parse"]):
            raise DataError('no tree in Lispress under "parse"', about=f"{path}:{number}")
    if not lines:
        raise DataError(f"{path} holds no tree")
    return len(lines)


def refuse_private_lines(name: str, path: str, columns: Columns | None, private: Iterable[Source]) -> None:
    """Refuse a file of lines that is declared public and is a private one, in whatever form.

    Raises:
        UserError: It is.
    """
    try:
        refuse_private([(name, path, reference_columns(columns))], private)
    except DataError:  # of labels alone; what cannot be read is named when it is
        return


def why_not_released(path: str, roles: tuple[Role, ...]) -> str | None:
    """Return why a file is no release of a run; None where it is."""
    file = Path(path).resolve()
    run = run_of(file)
    if not (run / MANIFEST).is_file() or not file.is_file():
        return f"no {MANIFEST} of a run stands above it"
    try:
        manifest = Manifest.read(run)
    except UserError as error:
        return str(error)
    entry = manifest.files.get(os.path.relpath(file, run))
    if entry is None:
        return f"no step of {run} has made it"
    if entry.is_private or entry.role not in roles:
        return f"{entry.step} made it as {entry.role!r}"
    return None if manifest.is_as_made(entry) else f"it was changed after {entry.step} made it"
