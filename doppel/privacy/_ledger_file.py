"""The ledger's JSON lines: reading them, whole or torn, and appending to them. What they mean for a budget is in
`doppel.privacy.ledger`.

Each line ends with its *chain*: the SHA-256 of the chain before it and of every byte since. So a line that was changed,
removed, added or moved is seen by whoever reads the lines after it. Lines that are missing at the end take with them
the releases that they named, which nothing vouches for then. No secret is involved: whoever may write the file can
write another one."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from doppel.errors import UserError
from doppel.privacy.accounting import Mechanism
from doppel.privacy.plan import PrivacyBudget

VERSION = 3
#: Before a line's chain, and its length with what follows.
_CHAIN, _SEAL = b', "chain": "', 64 + len('"}')
#: A torn line that spends nothing: one that was cut behind its type. A hole of zeros or what is of two lines is none.
_FREE = re.compile(rb'\{"v": 3, "type": "(?:release|caveat)", (?:(?!"type")[ -~])*')
#: One that may hold some of the numbers that it was about to release.
_TORN = re.compile(rb'\{"v": 3, "type": "release", "mechanism": ("(?:[^"\\]|\\.)*"), "steps": \d+, "content": (.*)')
#: Types of line of version 2 that say nothing of what was spent.
_OF_VERSION_2 = ("ledger", "weights", "copy", "repair")


class LedgerError(UserError):
    """The ledger cannot be read, locked or written, or is asked for something that contradicts it."""


class BudgetExceededError(LedgerError):
    """The next step would pass the scope's target epsilon; nothing was written and the step must not run."""


@dataclass(frozen=True)
class Released:
    """What a mechanism has given away.

    Attributes:
        steps: Steps of the mechanism that it has.
        sha256: Of the file that was released, such as a checkpoint; None for numbers.
        content: The released numbers themselves; None for a file.
        torn: What stands of the numbers in a line that a crash cut; None for others.
    """

    steps: int
    sha256: str | None = None
    content: Mapping[str, Any] | None = None
    torn: str | None = None


@dataclass
class MechanismRecord:
    """One `mechanism` line, and what was spent on it and released by it.

    Attributes:
        id: `scope/stage`, behind the run's name in a ledger of many runs.
        scope: The budget that pays for it.
        stage: Its name there.
        fields: Every other recorded field.
        done_steps: Steps on file, those charged for torn lines included.
        torn_lines: Numbers of these lines.
        releases: In their order.
    """

    id: str
    scope: str
    stage: str
    fields: dict[str, Any]
    done_steps: int = 0
    torn_lines: list[int] = field(default_factory=list)
    releases: list[Released] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What the mechanism is."""
        return str(self.fields["kind"])

    @property
    def planned_steps(self) -> int:
        """Steps that the stage declared."""
        return int(self.fields["planned_steps"])

    @property
    def key(self) -> tuple[float, float]:
        """(q, sigma): steps of equal keys are interchangeable to every accountant."""
        return float(self.fields["sample_rate"]), float(self.fields["noise_multiplier"])

    @property
    def is_overdrawn(self) -> bool:
        """Whether its releases say that together they have cost more (`mu_squared`) than one Gaussian release of it."""
        squares = sum(own.content.get("mu_squared", 0.0) for own in self.releases if own.content is not None)
        return bool(squares > (1 + 1e-9) / self.key[1] ** 2)

    def mechanism(self, steps: int | None = None) -> Mechanism:
        """Return what was spent so far, or so many `steps`."""
        return Mechanism(*self.key, self.done_steps if steps is None else steps)

    @property
    def promised(self) -> Mechanism:
        """What it costs at most once it has begun: all its planned steps, wherever it stops; nothing before."""
        return self.mechanism(max(self.done_steps, self.planned_steps) if self.done_steps else 0)


class LedgerFile:
    """What the file says (`refresh` reads what was appended since), and the only way to append to it.

    A line without its newline, or one that is no JSON, is *torn*: a crash cut it. It stays, and is charged one step of
    the mechanism that it names, or of every mechanism before it if it names none, at every reading. (A step runs only
    once its line is on disk, so the step of a torn line never ran; but a disk may lose what it acknowledged.) Of what
    is whole up to where it was cut, the beginning tells the type, and a release or a caveat spends nothing: neither is
    charged. Else a crash while the last checkpoint of a training is recorded would take its budget past the target. A
    release whose numbers are cut is kept as such (`Released.torn`), for whoever draws them to pay for.

    Args:
        path: The ledger file; it need not exist yet.
        lock_timeout: Seconds to wait for another process.

    Attributes:
        promises: Scope → what it may spend.
        mechanisms: Id → its record.
        caveats: Scope → what its epsilon does not cover, and whether that voids it.
        ids: Scope → the random id of its run, which a copy of the file keeps.
    """

    def __init__(self, path: Path, lock_timeout: float) -> None:
        self.path = path
        self._place = path.absolute()  # a process that changes its folder goes on with this file
        self.lock_timeout = lock_timeout
        self.promises: dict[str, PrivacyBudget] = {}
        self.mechanisms: dict[str, MechanismRecord] = {}
        self.caveats: dict[str, list[tuple[str, bool]]] = {}
        self.ids: dict[str, str] = {}
        self._version: int | None = None
        self._since = hashlib.sha256()  # of the last chain and every byte since
        self._offset = 0
        self._line = 0
        self._tail: bytes = b""  # what follows the last newline: torn, or being written
        self._charged: list[MechanismRecord] = []  # for the tail, until it is read again
        self._cut: MechanismRecord | None = None  # whose numbers the tail cuts, likewise
        self._damage: LedgerError | None = None

    def of_scope(self, scope: str) -> list[MechanismRecord]:
        """Return the mechanisms of a scope in the order of their opening."""
        return [record for record in self.mechanisms.values() if record.scope == scope]

    def spent(self, *scopes: str) -> list[Mechanism]:
        """Return what was spent in scopes."""
        return [record.mechanism() for scope in scopes for record in self.of_scope(scope)]

    def has_begun(self, scope: str) -> bool:
        """Return whether a scope has spent a step."""
        return any(record.done_steps for record in self.of_scope(scope))

    def promise(self, scope: str) -> PrivacyBudget:
        """Return the budget of a scope.

        Raises:
            LedgerError: There is no such scope.
        """
        if scope not in self.promises:
            known = ", ".join(self.promises) or "none"
            raise LedgerError(f"no budget {scope!r}; the ledger has: {known}.", about=self.path)
        return self.promises[scope]

    def mechanism(self, mechanism_id: str) -> MechanismRecord:
        """Return a mechanism that was opened.

        Raises:
            LedgerError: There is no such mechanism.
        """
        if mechanism_id not in self.mechanisms:
            raise LedgerError(f"no mechanism {mechanism_id!r}: open it before spending.", about=self.path)
        return self.mechanisms[mechanism_id]

    def refresh(self) -> None:
        """Read the lines appended since the last call.

        Raises:
            LedgerError: The file shrank, or a line is damaged, contradictory or of an unknown version.
        """
        if self._damage is not None:
            raise self._damage
        try:
            with open(self._place, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(self._offset)
                data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            size, data = 0, b""
        except OSError as error:
            raise LedgerError(f"{error.strerror or error}.", about=self.path) from error
        if size < self._offset:
            raise LedgerError("the file was cut or removed while in use: restore it from a copy.", about=self.path)
        self._uncharge()
        *lines, self._tail = data.split(b"\n")
        self._offset += len(data) - len(self._tail)
        for line in lines:
            self._line += 1
            if line:
                self._read_line(line)
        self._cut = None  # of lines that are ended
        self._charged = self._charge(self._tail, self._line + 1) if self._tail else []

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, with the books up to date and a torn line ended.

        Raises:
            LedgerError: The lock stays taken, or the file cannot be read or written, or is of an earlier version.
        """
        try:
            make_private(self._place.parent)
            with FileLock(f"{self._place}.lock", timeout=self.lock_timeout, mode=0o600):
                self.refresh()
                if self._version == 2:
                    raise LedgerError(
                        "an earlier version of Doppel began it, and this one can only show it (python cli.py ledger): "
                        "finish the run with that version, or begin another one.",
                        about=self.path,
                    )
                if self._tail:  # a line that lacks its end alone is whole with it
                    self._write(b"\n")
                yield
        except Timeout:
            raise LedgerError(
                f"another process has held the lock for {self.lock_timeout:g} s: find and end it, or raise "
                "lock_timeout.",
                about=self.path,
            ) from None
        except OSError as error:
            raise LedgerError(
                f"{error.strerror or error}: the ledger must be writable before a private step may run.",
                about=self.path,
            ) from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line, with the time and its chain, and return once it is on disk. The lock must be held."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        body = json.dumps({"v": VERSION, **record, "time": now}).encode()[:-1]
        self._write(body + _CHAIN + f'{self._chain_of(body)}"}}\n'.encode())

    def caveat(self, scope: str, text: str, voids: bool) -> None:
        """Append a caveat that is not there. The lock must be held."""
        if (text, voids) not in self.caveats.get(scope, []):
            self.append({"type": "caveat", "scope": scope, "text": text, "voids": voids})

    def exists(self) -> bool:
        """Return whether the file is there."""
        return self._place.exists()

    def _write(self, data: bytes) -> None:
        is_new = not self.exists()
        descriptor = os.open(self._place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError("the disk took only part of a line")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:  # the name of a new file must reach the disk too
            folder = os.open(self._place.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        self.refresh()

    def _chain_of(self, body: bytes) -> str:
        """The chain of the line that follows; ``body`` is what stands before it there."""
        digest = self._since.copy()
        digest.update(body)
        return digest.hexdigest()

    def _read_line(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            self._charge(line, self._line)
            self._since.update(line + b"\n")
            return
        self._follow_chain(line, record.pop("chain", None))
        record.pop("time", None)
        try:
            self._apply(record)
        except LedgerError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._damaged("a field is missing or has the wrong type") from None

    def _follow_chain(self, line: bytes, chain: str | None) -> None:
        if chain is None:
            raise self._damaged("it was not written by this program, for it has no chain")
        if chain != self._chain_of(line[: -len(_CHAIN) - _SEAL]):
            raise self._damaged(
                "its chain is broken: this line was changed, or lines before it were changed or removed"
            )
        self._since = hashlib.sha256(chain.encode())

    def _apply(self, record: dict[str, Any]) -> None:
        kind, version = record.pop("type"), record.pop("v", 2)
        if version not in (2, VERSION) or version != (self._version or version):
            raise self._damaged(f"it has version {version}, this program writes version {VERSION}")
        self._version = version
        match kind:
            case "budget":
                declared = self.of_scope(record["scope"])
                if self.has_begun(record["scope"]):
                    raise self._damaged("it changes what a budget may spend that has spent some of it")
                for known in declared:
                    del self.mechanisms[known.id]
                terms = {own.name: record[own.name] for own in fields(PrivacyBudget)}
                self.promises[record["scope"]] = PrivacyBudget(**terms)
                self.ids |= {record["scope"]: str(record["run"])} if "run" in record else {}
            case "mechanism":
                record["planned_steps"] -= record.pop("reserve", 0)  # which an earlier version counted among them
                opened = MechanismRecord(record.pop("id"), record.pop("scope"), record.pop("stage"), record)
                opened.mechanism()
                before = self.mechanisms.get(opened.id)
                is_other = before is not None and (before.done_steps > 0 or before.scope != opened.scope)
                if is_other or opened.scope not in self.promises or opened.planned_steps < 1:
                    raise self._damaged("it contradicts earlier lines")
                self.mechanisms[opened.id] = opened
            case "spend":
                known = self.mechanisms[record["mechanism"]]
                if int(record["steps"]) < 1:
                    raise self._damaged("it spends less than one step")
                known.done_steps += int(record["steps"])
                if "content" in record:
                    known.releases.append(Released(known.done_steps, content=dict(record["content"])))
            case "release":
                known, steps = self.mechanisms[record["mechanism"]], int(record["steps"])
                if not 0 < steps <= known.done_steps or ("sha256" in record) == ("content" in record):
                    raise self._damaged("it is of steps that were not spent, or of nothing")
                known.releases.append(Released(steps, record.get("sha256"), record.get("content")))
                if "content" in record and known.is_overdrawn:
                    self._note(known.scope, f"more was released as {known.stage} than was charged", True)
            case "caveat":
                self._note(record["scope"], str(record["text"]), bool(record["voids"]))
            case other if version == 2 and other in _OF_VERSION_2:
                pass
            case other:
                raise self._damaged(f"its type {other!r} is unknown")

    def _note(self, scope: str, text: str, voids: bool) -> None:
        told = self.caveats.setdefault(scope, [])
        if (text, voids) not in told:
            told.append((text, voids))

    def _charge(self, torn: bytes, number: int) -> list[MechanismRecord]:
        """Charge a torn line to the mechanisms that it names, to all that there are if it names none; return these."""
        if _FREE.fullmatch(torn):
            if (cut := _TORN.match(torn)) and (known := self.mechanisms.get(json.loads(cut[1]))) is not None:
                known.releases.append(Released(known.done_steps, torn=cut[2].decode()))
                self._cut = known
            return []
        named = [own for name, own in self.mechanisms.items() if json.dumps(name).encode() in torn]
        charged = named or list(self.mechanisms.values())
        for record in charged:
            record.done_steps += 1
            record.torn_lines.append(number)
        return charged

    def _uncharge(self) -> None:
        """Take back what the tail was charged with: it is read again, whole or torn."""
        for record in self._charged:
            record.done_steps -= 1
            record.torn_lines.pop()
        self._charged = []
        if self._cut is not None:
            self._cut.releases.pop()
        self._cut = None

    def _damaged(self, why: str) -> LedgerError:
        """An error that asking again does not end."""
        where = f"{self.path}, line {self._line}"
        self._damage = LedgerError(f"cannot be read: {why}. Restore the file from a copy.", about=where)
        return self._damage


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, readable by their owner alone."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
