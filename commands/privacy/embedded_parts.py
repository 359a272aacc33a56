"""What models make of texts, a part at a time, and kept until what a step makes of it is written."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from commands.run_folder.steps import EMBEDDED
from datamodules.reading.files import content_digest
from doppel.console.parent import end_with
from doppel.errors import UserError
from doppel.files import whole_file, write_json
from doppel.privacy.fingerprint import keyed_fingerprint

if TYPE_CHECKING:
    from torch import Tensor

    from doppel.models.text_reader import Keep, TextReader

Value = TypeVar("Value")
Read = Callable[[Sequence[str]], NDArray[Any]]
#: Private texts whose vectors are written together: half a minute of one core.
_PART = 4096
#: Other texts, which a larger model may read, at least.
_BATCHES = 512


def in_parts(texts: Sequence[str], form: str, folder: Path, read: Read) -> NDArray[Any]:
    """Return vectors of private texts, [texts, D], or their trees, [texts]; parts are kept in FOLDER/.embedded.

    So a step that is stopped goes on with what is missing; :func:`forget_embedded` removes them. Equal texts are read
    once, and texts of like length together. Several parts are read by as many processes as there are cores, but by one
    where there is a GPU.

    Formal guarantees:
        Where a vector, or tree, is a function of its own text and of ``form`` alone, to the last bit, neither where
        parts end, nor which process reads them, nor which an earlier start has left changes anything. The files are
        private, for their owner alone; their names are keyed. Texts reach other processes through a pipe.

    Args:
        texts: Texts.
        form: What they depend on beside the text: parts of another one are not taken.
        folder: Of the step.
        read: Returns them of some texts, each independently of the others; a function that another process can import,
            where there are more than 4,096 texts.

    Raises:
        UserError: A process that reads parts was killed.
    """
    if not texts:
        return read(texts)
    distinct = sorted(set(texts), key=lambda text: (len(text), text))
    parts = {}
    for start in range(0, len(distinct), _PART):
        some = distinct[start : start + _PART]
        parts[folder / EMBEDDED / f"{keyed_fingerprint(_digest([form, *some]))}.npy"] = some
    missing = [(file, some) for file, some in parts.items() if not file.is_file()]
    if missing:
        (folder / EMBEDDED).mkdir(mode=0o700, parents=True, exist_ok=True)
    number = min(_num_processes(), len(missing))
    if number > 1:
        _read_by(number, missing, read)
    else:
        _write(missing, read)
    place_of = {text: place for place, text in enumerate(distinct)}
    return np.concatenate([np.load(file) for file in parts])[[place_of[text] for text in texts]]


def keep_beside(out: Path) -> Keep:
    """Return how models read public texts and samples of a step: what they have read stays in parts beside its output.

    A step that is stopped goes on with what is missing; :func:`forget_embedded` removes them. Parts are whole batches,
    so no bit of a vector tells whether the step was stopped.

    Args:
        out: What the step writes; parts are kept in its folder, in .embedded/NAME.
    """
    folder = out.parent / EMBEDDED / out.name

    def read(reader: TextReader, texts: Sequence[str]) -> Tensor:
        import torch

        vectors = np.empty((0, 0), np.float32)
        for places in reader.whole_batches(texts, _BATCHES):
            some = [texts[place] for place in places]
            file = folder / f"{_digest([reader.form_of_batches(), *some])}.npy"  # names tell no more than the vectors
            if not file.is_file():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _write([(file, some)], lambda some: reader.read(some, bar=False).numpy())
            part = np.load(file)
            vectors = vectors if len(vectors) else np.empty((len(texts), part.shape[1]), part.dtype)
            vectors[places] = part
        return torch.from_numpy(vectors)

    return read


def kept(out: Path | None, told: Sequence[object], make: Callable[[], Value]) -> Value:
    """Return what a step makes of public texts and samples; it stays beside its output as :func:`keep_beside` says.

    Args:
        out: What the step writes; None keeps nothing.
        told: All that the value depends on.
        make: Makes the value, which JSON can hold, where no earlier start has.
    """
    if out is None:
        return make()
    file = out.parent / EMBEDDED / out.name / f"{_digest(told)}.json"
    if not file.is_file():
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(file, make())
    value: Value = json.loads(file.read_text(encoding="utf-8"))
    return value


def trees_of(parser: Path, texts: Sequence[str], out: Path | None) -> dict[str, tuple[str, float]]:
    """Return a parser's tree of each public text or sample, and its nats an action.

    Parts stay beside an output as :func:`keep_beside` says; they are whole batches, too.

    Args:
        parser: Checkpoint.
        texts: Texts; equal ones are parsed once.
        out: What the step writes; None keeps nothing.

    Raises:
        UserError: The parser cannot be loaded.
    """
    import torch
    from tqdm.auto import tqdm

    from doppel.models.text_reader import computed_by
    from lightning_modules.semantic_parser import load_parser

    loaded, read = load_parser(parser), dict[str, tuple[str, float]]()
    ordered = sorted(dict.fromkeys(texts), key=len)  # as its batches are
    size = -(-_BATCHES // loaded.max_rows) * loaded.max_rows
    form = [content_digest(str(parser)), loaded.max_rows, torch.get_num_threads(), *computed_by(loaded.device)]
    with tqdm(total=len(ordered), desc="parsing", unit="utterance", disable=None) as bar:
        for start in range(0, len(ordered), size):
            some = ordered[start : start + size]
            found = kept(out, [*form, *some], partial(loaded.annotate_with_scores, some))
            read |= {text: (tree, nats) for text, (tree, nats) in zip(some, found, strict=True)}
            bar.update(len(some))
    return read


def forget_embedded(folder: Path, name: str = "") -> None:
    """Remove vectors of private texts, once what was counted of them is released; or those of an output's, by its name.

    Those of one output are in a folder of their own, so that two steps may write in one folder at a time.
    """
    shutil.rmtree(folder / EMBEDDED / name, ignore_errors=True)
    with suppress(OSError):  # another step's are there, or there were none
        (folder / EMBEDDED).rmdir()


def _digest(told: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _num_processes() -> int:
    """Cores that a job has asked for, or that this process may use; a GPU takes one process."""
    import torch

    if torch.cuda.is_available():
        return 1
    is_linux = hasattr(os, "sched_getaffinity")
    return int(os.environ.get("SLURM_CPUS_PER_TASK") or (len(os.sched_getaffinity(0)) if is_linux else 1))


def _write(parts: Sequence[tuple[Path, Sequence[str]]], read: Read) -> None:
    for file, some in parts:
        vectors = read(some)
        with whole_file(file) as part:
            np.save(part, vectors)


def _read_by(number: int, parts: Sequence[tuple[Path, Sequence[str]]], read: Read) -> None:
    """Have processes of their own read parts; none of them outlives this call, whatever ends it."""
    context = multiprocessing.get_context("spawn")
    shares = [parts[first::number] for first in range(number)]
    readers = [context.Process(target=_read_as_child, args=(os.getpid(), share, read)) for share in shares]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        for reader in readers:
            if reader.is_alive():
                reader.kill()
                reader.join()
    if any(reader.exitcode for reader in readers):
        raise UserError(
            f"one of {number} processes that read private texts has ended (exit status "
            f"{', '.join(str(reader.exitcode) for reader in readers)}), perhaps for want of memory: ask for more "
            "(tool_mem) or for fewer cores (tool_cpus); the same command goes on with what is missing"
        )


def _read_as_child(parent: int, parts: Sequence[tuple[Path, Sequence[str]]], read: Read) -> None:
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is answered by the parent, in one line
    _write(parts, read)
