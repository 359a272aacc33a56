"""The ledger's JSON lines: reading them, whole or torn, and appending to them. What they mean for a budget is in
`doppel.privacy.ledger`."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from doppel.errors import UserError
from doppel.privacy.accounting import Accountant
from doppel.privacy.mechanism import Mechanism

VERSION = 1


class LedgerError(UserError):
    """The ledger cannot be read, locked or written, or is asked for something that contradicts it. One
    line."""


@dataclass(frozen=True)
class Promise:
    """What a scope may spend."""

    target_epsilon: float
    delta: float
    accountant: Accountant
    unit: str


@dataclass
class MechanismRecord:
    """One `mechanism` line and the steps spent on it.

    Attributes:
        id: `scope/stage`.
        scope: The released system that it belongs to.
        stage: Its name there.
        fields: Every other recorded field.
        done_steps: Steps on file, those charged for torn lines included.
    """

    id: str
    scope: str
    stage: str
    fields: dict[str, Any]
    done_steps: int = 0

    @property
    def planned_steps(self) -> int:
        """Steps that the stage declared."""
        return int(self.fields["planned_steps"])

    @property
    def key(self) -> tuple[float, float]:
        """(q, sigma): steps of equal keys are interchangeable to every accountant."""
        return float(self.fields["sample_rate"]), float(self.fields["noise_multiplier"])

    def mechanism(self, steps: int | None = None) -> Mechanism:
        """What was spent so far, or so many `steps`."""
        return Mechanism(*self.key, self.done_steps if steps is None else steps)


class LedgerFile:
    """What the file says (`refresh` reads what was appended since), and the only way to append to it.

    A line without its newline, or one that is no JSON, is *torn*: a crash cut it. From the moment it is seen, it is
    charged one step of the mechanism that it names, or of every mechanism if it names none. (A spend is one step and
    returns only once its line is on disk, so the step of a torn line never ran; but a disk may lose what it
    acknowledged.) The next writer settles the charge with a `repair` line. A torn line that is not followed by one
    means that the file was damaged or edited, and is an error.

    Args:
        path: The ledger file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.promises: dict[str, Promise] = {}
        self.mechanisms: dict[str, MechanismRecord] = {}
        self.caveats: dict[str, list[tuple[str, bool]]] = {}
        self._offset = 0
        self._line = 0
        self._broken: list[bytes] = []  # torn lines that wait for their repair
        self._tail = b""  # what follows the last newline: torn, or being written
        self._damage: LedgerError | None = None

    def of_scope(self, scope: str | None) -> list[MechanismRecord]:
        """Mechanisms of a scope in the order of their opening; of all scopes if None."""
        return [record for record in self.mechanisms.values() if scope is None or record.scope == scope]

    def refresh(self) -> None:
        """Read the lines appended since the last call.

        Raises:
            LedgerError: If the file shrank, or a line is damaged, contradictory or of another version.
        """
        if self._damage is not None:
            raise self._damage
        try:
            with open(self.path, "rb") as file:
                file.seek(0, os.SEEK_END)
                if file.tell() < self._offset:
                    raise LedgerError(
                        f"{self.path}: the file became shorter while in use: restore it; it is append-only."
                    )
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            if self._offset:
                raise LedgerError(f"{self.path}: the file vanished while in use: restore it.") from None
            return
        except OSError as error:
            raise LedgerError(f"{self.path}: {error.strerror or error}.") from error
        self._charge(self._torn_charges(), sign=-1)
        *lines, self._tail = data.split(b"\n")
        self._offset += len(data) - len(self._tail)
        for line in lines:
            self._line += 1
            if line:
                self._read_line(line)
        self._charge(self._torn_charges())

    def _torn_charges(self) -> dict[str, int]:
        charges = dict.fromkeys(self.mechanisms, 0)
        for torn in filter(None, (*self._broken, self._tail)):
            named = [name for name in self.mechanisms if json.dumps(name).encode() in torn]
            for name in named or self.mechanisms:
                charges[name] += 1
        return charges

    @contextlib.contextmanager
    def locked(self, timeout: float) -> Iterator[None]:
        """Hold the lock, with the books up to date and torn lines settled.

        Args:
            timeout: Seconds to wait for another process.

        Raises:
            LedgerError: If the lock stays taken, or the file cannot be read or written.
        """
        try:
            _make_private(self.path.parent)
            with FileLock(f"{self.path}.lock", timeout=timeout, mode=0o600):
                self.refresh()
                if self._broken or self._tail:
                    self.append({"type": "repair", "charged": self._torn_charges()})
                yield
        except Timeout:
            raise LedgerError(
                f"{self.path}: another process has held the lock for {timeout:g} s: find and end it, or "
                "raise lock_timeout."
            ) from None
        except OSError as error:
            raise LedgerError(
                f"{self.path}: {error.strerror or error}: the ledger must be writable before a private step may run."
            ) from error

    def append(self, record: dict[str, Any]) -> None:
        """Write one line, with the time, and return once it is on disk. The lock must be held."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        data = (json.dumps({**record, "time": now}) + "\n").encode()
        if self._tail:
            data = b"\n" + data
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError("the disk took only part of a line")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:  # the name of a new file must reach the disk too
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self.refresh()

    def _read_line(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            self._broken.append(line)
            return
        if self._broken and record.get("type") != "repair":
            raise self._damaged("the line before it is damaged and was never settled")
        try:
            self._apply(record)
        except LedgerError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._damaged("a field is missing or has the wrong type") from None

    def _apply(self, record: dict[str, Any]) -> None:
        match record.pop("type", None):
            case "budget":
                if record["version"] != VERSION:
                    raise self._damaged(f"it has version {record['version']}, this program reads version {VERSION}")
                self.promises[record["scope"]] = Promise(
                    **{field.name: record[field.name] for field in fields(Promise)}
                )
            case "mechanism":
                found = MechanismRecord(record.pop("id"), record.pop("scope"), record.pop("stage"), record)
                found.mechanism()
                if found.id in self.mechanisms or found.scope not in self.promises or found.planned_steps < 1:
                    raise self._damaged("it contradicts earlier lines")
                self.mechanisms[found.id] = found
            case "spend":  # of one step; files written by hand may have more
                if int(record["steps"]) < 1:
                    raise self._damaged("it spends less than one step")
                self._charge({record["mechanism"]: int(record["steps"])})
            case "caveat":
                caveat = (str(record["text"]), bool(record["voids"]))
                known = self.caveats.setdefault(record["scope"], [])
                known.extend([] if caveat in known else [caveat])
            case "repair":
                charged = {name: int(steps) for name, steps in record["charged"].items()}
                if min(charged.values(), default=0) < 0:
                    raise self._damaged("it takes steps back")
                self._charge(charged)
                self._broken = []
            case other:
                raise self._damaged(f"its type {other!r} is unknown")

    def _charge(self, charges: dict[str, int], sign: int = 1) -> None:
        for mechanism_id, steps in charges.items():
            self.mechanisms[mechanism_id].done_steps += sign * steps

    def _damaged(self, why: str) -> LedgerError:
        self._damage = LedgerError(
            f"{self.path}, line {self._line}: cannot be read: {why}. Restore the file from a copy."
        )
        return self._damage


def _make_private(folder: Path) -> None:
    """Create a folder and its missing parents, readable by their owner alone."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
