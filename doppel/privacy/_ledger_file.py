"""Reading the ledger's JSON lines, whole or torn. Writing, locking and refusing are in
`doppel.privacy.ledger`."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from doppel.errors import UserError
from doppel.privacy.accounting import Mechanism

VERSION = 1
_BUDGET_FIELDS = ("target_epsilon", "delta", "accountant", "unit")
_SPEND_ID = re.compile(r'^\{"type": "spend", "mechanism": ("(?:[^"\\]|\\.)*")')
_SPEND_STEPS = re.compile(r'^\{"type": "spend", "mechanism": "(?:[^"\\]|\\.)*", "steps": (\d+),')
_OTHER_TYPE = re.compile(r'^\{"type": "(?:b|m|r|c)')


class LedgerError(UserError):
    """The ledger cannot be read, locked or written, or is asked for something that contradicts it. One
    line."""


@dataclass
class MechanismRecord:
    """One `mechanism` line and the steps spent on it.

    Attributes:
        id: `scope/stage`.
        scope: The released system that it belongs to.
        stage: Its name there.
        fields: Every other recorded field.
        done_steps: Steps on file, torn ones included once settled.
        largest_block: Largest number of steps spent at once: the most that a torn line can have meant.
    """

    id: str
    scope: str
    stage: str
    fields: dict[str, Any]
    done_steps: int = 0
    largest_block: int = 1

    @property
    def sample_rate(self) -> float:
        """q."""
        return float(self.fields["sample_rate"])

    @property
    def noise_multiplier(self) -> float:
        """sigma."""
        return float(self.fields["noise_multiplier"])

    @property
    def planned_steps(self) -> int:
        """Steps that the stage declared."""
        return int(self.fields["planned_steps"])

    @property
    def key(self) -> tuple[float, float]:
        """(q, sigma): steps of equal keys are interchangeable to every accountant."""
        return self.sample_rate, self.noise_multiplier

    def mechanism(self) -> Mechanism:
        """What was spent so far."""
        return Mechanism(self.sample_rate, self.noise_multiplier, self.done_steps)


class LedgerFile:
    """What the file says (`refresh` reads what was appended since), and the only way to append to it.

    A line that is no JSON is *torn*: a crash cut it. It counts from the moment it is seen (see
    `torn_charges`), and the next writer settles it for good with a `repair` line. A torn line that is not
    followed by one means that the file was damaged or edited, and is an error.

    Args:
        path: The ledger file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.budgets: dict[str, dict[str, Any]] = {}
        self.mechanisms: dict[str, MechanismRecord] = {}
        self.caveats: dict[str, list[tuple[str, bool]]] = {}
        self._offset = 0
        self._line = 0
        self._broken: list[str] = []
        self._torn: list[str] = []
        self._ends_mid_line = False
        self._provisional: dict[str, int] = {}
        self._damage: LedgerError | None = None

    def of_scope(self, scope: str | None) -> list[MechanismRecord]:
        """Mechanisms of a scope in the order of their opening; of all scopes if None."""
        return [record for record in self.mechanisms.values() if scope is None or record.scope == scope]

    def totals(self, scope: str) -> dict[tuple[float, float], int]:
        """Steps spent in a scope, per (q, sigma)."""
        totals: dict[tuple[float, float], int] = {}
        for record in self.of_scope(scope):
            totals[record.key] = totals.get(record.key, 0) + record.done_steps
        return totals

    def refresh(self) -> None:
        """Read the lines appended since the last call.

        Raises:
            LedgerError: If the file shrank, or a line is damaged, contradictory or of another version.
        """
        if self._damage is not None:
            raise self._damage
        try:
            with open(self.path, "rb") as file:
                file.seek(0, 2)
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
        self._charge(self._provisional, -1)
        end = data.rfind(b"\n") + 1
        tail = data[end:].decode(errors="replace")
        if _is_record(tail):  # only the newline was lost
            end, tail = len(data), ""
        for raw in data[:end].splitlines():
            self._line += 1
            if raw:
                self._read_line(raw.decode(errors="replace"))
        if data:
            self._ends_mid_line = not data.endswith(b"\n")
        self._offset += end
        self._torn = self._broken + ([tail] if tail else [])
        self._provisional = torn_charges(self._torn, self.mechanisms)
        self._charge(self._provisional, 1)

    @contextlib.contextmanager
    def locked(self, timeout: float) -> Iterator[None]:
        """Hold the lock, with the books up to date and a torn last line settled.

        Args:
            timeout: Seconds to wait for another process.

        Raises:
            LedgerError: If the lock stays taken, or the file cannot be read or written.
        """
        try:
            _make_private(self.path.parent)
            with FileLock(f"{self.path}.lock", timeout=timeout, mode=0o600):
                self.refresh()
                if self._torn:
                    self.append({"type": "repair", "charged": torn_charges(self._torn, self.mechanisms)})
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
        if self._ends_mid_line:
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

    def _read_line(self, line: str) -> None:
        if not _is_record(line):
            self._broken.append(line)
            return
        record = json.loads(line)
        if self._broken and record.get("type") != "repair":
            raise self._damaged("the line before it is damaged and was never settled")
        try:
            self._apply(record)
        except LedgerError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._damaged("a field is missing or has the wrong type") from None

    def _apply(self, record: dict[str, Any]) -> None:
        record = dict(record)
        match record.pop("type", None):
            case "budget":
                if record["version"] != VERSION:
                    raise self._damaged(f"it has version {record['version']}, this program reads version {VERSION}")
                self.budgets[record["scope"]] = {name: record[name] for name in _BUDGET_FIELDS}
            case "mechanism":
                mechanism = MechanismRecord(record.pop("id"), record.pop("scope"), record.pop("stage"), record)
                mechanism.mechanism()
                if (
                    mechanism.id in self.mechanisms
                    or mechanism.scope not in self.budgets
                    or mechanism.planned_steps < 1
                ):
                    raise self._damaged("it contradicts earlier lines")
                self.mechanisms[mechanism.id] = mechanism
            case "spend":
                steps, mechanism = int(record["steps"]), self.mechanisms[record["mechanism"]]
                if steps < 1:
                    raise self._damaged("it spends less than one step")
                mechanism.done_steps += steps
                mechanism.largest_block = max(mechanism.largest_block, steps)
            case "caveat":
                caveat = (str(record["text"]), bool(record["voids"]))
                known = self.caveats.setdefault(record["scope"], [])
                known.extend([] if caveat in known else [caveat])
            case "repair":
                charged = {name: int(steps) for name, steps in record["charged"].items()}
                if min(charged.values(), default=0) < 0:
                    raise self._damaged("it takes steps back")
                self._charge(charged, 1)
                self._broken = []
            case other:
                raise self._damaged(f"its type {other!r} is unknown")

    def _charge(self, charges: dict[str, int], sign: int) -> None:
        for mechanism_id, steps in charges.items():
            self.mechanisms[mechanism_id].done_steps += sign * steps

    def _damaged(self, why: str) -> LedgerError:
        self._damage = LedgerError(
            f"{self.path}, line {self._line}: cannot be read: {why}. Restore the file from a copy."
        )
        return self._damage


def torn_charges(fragments: list[str], mechanisms: dict[str, MechanismRecord]) -> dict[str, int]:
    """Steps to count for lines cut by a crash.

    A spend returns only once its line is on disk, so the step of a torn line never ran; it is counted all the
    same, for a disk may lose what it acknowledged. Where the fragment shows the mechanism and its steps,
    those are charged; where the steps are cut off, the mechanism's largest block so far; where the mechanism
    is cut off too, every mechanism is charged its largest block. Fragments of other line types cost nothing.
    """
    charges: dict[str, int] = {}
    for fragment in fragments:
        if not fragment or _OTHER_TYPE.match(fragment):
            continue
        found, counted = _SPEND_ID.match(fragment), _SPEND_STEPS.match(fragment)
        name = json.loads(found.group(1)) if found else None
        for record in [mechanisms[name]] if name in mechanisms else mechanisms.values():
            steps = int(counted.group(1)) if counted else record.largest_block
            charges[record.id] = charges.get(record.id, 0) + steps
    return charges


def _is_record(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _make_private(folder: Path) -> None:
    """Create a folder and its missing parents, readable by their owner alone."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
