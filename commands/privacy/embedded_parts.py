"""What models make of texts, a part at a time, and kept until what a step makes of it is written."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from commands.run_folder.steps import EMBEDDED
from datamodules.reading.files import content_digest
from doppel.console.parent import end_with
from doppel.console.say import say
from doppel.console.tasks import claimed, have_helpers, local_number, tell, told
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


def in_parts(texts: Sequence[str], form: Callable[[], str], folder: Path, read: Read) -> NDArray[Any]:
    """Return vectors of private texts, [texts, D], or their trees, [texts]; parts are kept in FOLDER/.embedded.

    So a step that is stopped goes on with what is missing; :func:`forget_embedded` removes them. Equal texts are read
    once, and texts of like length together. Several parts are read by as many processes as there are cores, but by one
    where there is a GPU, in each task of the step (:mod:`doppel.console.tasks`).

    Formal guarantees:
        Where a vector, or tree, is a function of its own text and of ``form`` alone, to the last bit, neither where
        parts end, nor which process or task reads them, nor which an earlier start has left changes anything. Only
        this process reads rows, opens a ledger, pays and draws: the other processes and tasks get texts and give their
        vectors, so however many there are, and whichever of them are killed, the step is charged once. Texts reach
        them in files in FOLDER/.embedded that are gone when this returns. All files there are private, for their
        owner alone; their names are keyed. A task whose machine has another form reads nothing.

    Args:
        texts: Texts.
        form: Tells what they depend on beside the text: parts of another one are not taken.
        folder: Of the step.
        read: Returns them of some texts, each independently of the others. Both are functions that another process can
            import, where there are more than 4,096 texts.

    Raises:
        UserError: A process that reads parts was killed.
    """
    if not texts:
        return read(texts)
    distinct, own = sorted(set(texts), key=lambda text: (len(text), text)), form()
    parts: dict[Path, Sequence[str]] = {}
    for start in range(0, len(distinct), _PART):
        some = distinct[start : start + _PART]
        parts[folder / EMBEDDED / f"{keyed_fingerprint(_digest([own, *some]))}.npy"] = some
    missing = [(file, some) for file, some in parts.items() if not file.is_file()]
    if missing:
        (folder / EMBEDDED).mkdir(mode=0o700, parents=True, exist_ok=True)
    if missing and not have_helpers() and min(_num_processes(), len(missing)) == 1:
        for file, some in missing:
            _write(file, some, read)
    elif missing:
        _read_together(Work(form, own, read, [file for file, _ in missing]), dict(missing))
    place_of = {text: place for place, text in enumerate(distinct)}
    return np.concatenate([np.load(file) for file in parts])[[place_of[text] for text in texts]]


def work() -> None:
    """Read private texts for the first task of a step of several tasks, until it has ended.

    Nothing is printed or counted of them. What this task does not do, the first one does.
    """
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(local_number() % torch.cuda.device_count())
    for file in told():
        try:
            asked: Work = pickle.loads(file.read_bytes())
        except FileNotFoundError:  # done, and gone
            continue
        if asked.form() == asked.told:
            _read_here(asked)
        else:
            say("   this task's machine or models are not those of the first: it reads nothing")


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
                _write(file, some, lambda some: reader.read(some, bar=False).numpy())
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


def _write(file: Path, texts: Sequence[str], read: Read) -> None:
    vectors = read(texts)
    with whole_file(file) as part:
        np.save(part, vectors)


class Work(NamedTuple):
    """Parts that are missing, for processes and tasks to share.

    Attributes:
        form: Tells what vectors depend on beside the text.
        told: What it told the first task.
        read: Returns vectors of texts.
        files: Where vectors go; the texts of each are beside it (:func:`_texts_of`).
    """

    form: Callable[[], str]
    told: str
    read: Read
    files: Sequence[Path]


def _read_together(work: Work, texts: Mapping[Path, Sequence[str]]) -> None:
    """Have parts read by all processes and tasks that there are; what one of these leaves when it is killed, too."""
    asked = work.files[0].with_name(".work")
    try:
        for file in work.files:
            with whole_file(_texts_of(file)) as given:
                given.write(json.dumps(texts[file]).encode())
        if have_helpers():
            with whole_file(asked) as given:
                pickle.dump(work, given)
            tell(asked)
        _read_here(work)
        _take(work, until_done=True)
    finally:
        for file in (asked, *map(_texts_of, work.files)):
            file.unlink(missing_ok=True)


def _texts_of(file: Path) -> Path:
    """Where the texts of a part are; hidden, for they are nothing that a requeued step could show for its time."""
    return file.with_name(f".{file.stem}.texts")


def _take(work: Work, until_done: bool = False) -> None:
    """Read the parts that no other process has claimed, the longest texts first.

    Args:
        work: The parts.
        until_done: Wait for the others' parts, and read those of a process that ends before.
    """
    left = list(work.files)
    while left:
        for file in reversed(left):
            with claimed(_texts_of(file)) as texts:
                if texts is not None and not file.is_file():
                    _write(file, json.load(texts), work.read)
        left = [file for file in left if until_done and not file.is_file() and _texts_of(file).is_file()]
        time.sleep(0.2 if left else 0)


def _read_here(work: Work) -> None:
    """Read parts by as many processes as this task has cores; none of them outlives this call, whatever ends it."""
    number = min(_num_processes(), len(work.files))
    if number == 1:
        _take(work)
        return
    context = multiprocessing.get_context("spawn")
    readers = [context.Process(target=_take_as_child, args=(os.getpid(), work)) for _ in range(number)]
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


def _take_as_child(parent: int, work: Work) -> None:
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is answered by the parent, in one line
    _take(work)
