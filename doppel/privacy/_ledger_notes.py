"""Which ledgers of this machine hold what was spent on the same data: notes beside the key of fingerprints.

``<key>.ledgers`` has one JSON line for each budget that has paid for a step: the keyed fingerprints of the data and of
their file, the path of the ledger, the scope, its target epsilon, and the random id that its run has there. No count of
rows is in it, nor anything that was computed of them. It is only ever appended to, under a lock; a torn line says
nothing. Data of one file are the same people, whichever rows and columns of it a run has read.

Formal guarantees:
    A ledger bounds what its own steps release. What others have released of the same people adds to that, and no ledger
    knows of another one. Before a budget pays for its first step, its line is here; so of all budgets that have paid
    on this machine, under this key, each is found again: in its ledger, wherever that was moved to beside others that
    are known, or by its name, as one whose ledger is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from doppel.privacy._ledger_file import LedgerError, LedgerFile, make_private
from doppel.privacy.fingerprint import key_path


@dataclass(frozen=True)
class Note:
    """A line: a budget that has paid for a step on some data.

    Attributes:
        data: Keyed fingerprint of the data.
        ledger: Path of its ledger.
        scope: Its name there.
        target_epsilon: What it may spend.
        run: Random id of its run there; "" of one that an earlier version has begun.
        file: Keyed fingerprint of the whole file that the data are of; "" where nobody said it.
    """

    data: str
    ledger: str
    scope: str
    target_epsilon: float
    run: str
    file: str = ""

    @property
    def name(self) -> str:
        """The run and the budget, for readers who need not know the folders of the machine."""
        return f"{Path(self.ledger).parent.name}/{self.scope}"


@dataclass(frozen=True)
class Known:
    """What is known of the data of one ledger.

    Attributes:
        files: Ledgers, read to their end, that one first; a copy and what it was copied from count once.
        gone: Budgets whose ledger cannot be read any more.
        of_file: Keyed fingerprint of data → that of the file that they are of, where a note tells it.
    """

    files: tuple[LedgerFile, ...]
    gone: tuple[Note, ...] = ()
    of_file: Mapping[str, str] = field(default_factory=dict)


def notes_path() -> Path:
    """Return the path of the notes."""
    return key_path().with_name(f"{key_path().name}.ledgers")


@contextlib.contextmanager
def locked(timeout: float) -> Iterator[None]:
    """Hold the notes, so that of two runs that begin on the same data one knows of the other.

    Raises:
        OSError: The folder cannot be written to, or the lock stays taken.
    """
    path = notes_path()
    make_private(path.parent)
    try:
        with FileLock(f"{path}.lock", timeout=timeout, mode=0o600):
            yield
    except Timeout as error:
        raise OSError(f"another process has held {path}.lock for {timeout:g} s") from error


def write(note: Note) -> None:
    """Append a note that is not there, and return once it is on disk; the lock must be held.

    Raises:
        OSError: It cannot be written.
    """
    if note in _read():
        return
    path = notes_path()
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = (b"\n" if is_torn else b"") + json.dumps(vars(note)).encode() + b"\n"
        if os.write(descriptor, line) != len(line):
            raise OSError("the disk took only part of a line")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def has_paid(ledger: Path, prefix: str) -> bool:
    """Return whether a note tells of a run that has paid.

    Args:
        ledger: That it has, or had.
        prefix: Of its scopes there, which no other run has; "" of a ledger of its own.
    """
    here = os.path.realpath(ledger)
    return any(note.scope.startswith(prefix) and (prefix or note.ledger == here) for note in _read())


def find_known(own: LedgerFile, fingerprints: Collection[str] = (), files: Collection[str] = ()) -> Known:
    """Find the ledgers that share data, or a file of data, with one.

    Args:
        own: That one, read to its end.
        fingerprints: Keyed ones of its data; those of all its mechanisms count beside them.
        files: Keyed ones of the files of its data; those that notes of its data tell count beside them.
    """
    mine = {*fingerprints, *(str(record.fields["data_fingerprint"]) for record in own.mechanisms.values())}
    noted = _read()
    mine |= {*files, *(note.file for note in noted if note.file and note.data in mine)}  # all of a file is one of data
    notes = [note for note in noted if note.data in mine or note.file in mine]
    here = os.path.realpath(own.path)
    found = [own]
    for path in dict.fromkeys(note.ledger for note in notes):
        if path == here:
            continue
        other = LedgerFile(Path(path), own.lock_timeout)
        with contextlib.suppress(LedgerError):
            other.refresh()
            found += [other] if other.promises else []
    ids = {run for file in found for run in file.ids.values()}
    paths = {os.path.realpath(file.path) for file in found}
    gone = [note for note in notes if (note.run not in ids if note.run else note.ledger not in paths)]
    gone_once = {(note.run or note.ledger, note.scope): note for note in gone}
    return Known(_distinct(found), tuple(gone_once.values()), {own.data: own.file for own in noted if own.file})


def _distinct(files: list[LedgerFile]) -> tuple[LedgerFile, ...]:
    """Leave out each ledger that another one is a copy of or goes on with; the first one stays.

    Two copies that both went on share their first steps, and count twice: that errs on the safe side.
    """
    kept = files[:1]
    for file in files[1:]:
        if not any(is_begun_by(own, file) for own in kept):
            kept = [*kept[:1], *(own for own in kept[1:] if not is_begun_by(file, own)), file]
    return tuple(kept)


def is_begun_by(long: LedgerFile, short: LedgerFile) -> bool:
    """Return whether a ledger is another one, or a copy of it that went on: it holds all that the other one says."""
    is_related = not set(long.ids.values()).isdisjoint(short.ids.values())
    return is_related and long.path.read_bytes().startswith(short.path.read_bytes())


def _read() -> list[Note]:
    """The notes, in order; none where there is no file, or none that can be read."""
    try:
        lines = notes_path().read_bytes().split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):  # torn
            found.append(Note(**json.loads(line)))
    return found
