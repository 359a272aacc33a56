"""The ledger's JSON lines: reading them, whole or torn, and appending to them. What they mean for a budget is in
`doppel.privacy.ledger`.

Each line ends with its *chain*: the SHA-256 of the chain before it and of every byte since. So a line that was changed,
removed, added or moved is seen by whoever reads the file, and the newest chain stands for all lines before it: a
checkpoint keeps it (`LedgerFile.anchor`), and so does `<path>.head`, a file of one line that is written anew after each
line of the ledger, so that lines removed from the end are seen too. No secret is involved: whoever may write all these
files can forge them all."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from doppel.errors import UserError
from doppel.privacy._ledger_notes import line_of, note, noted_chain
from doppel.privacy.accounting import Mechanism
from doppel.privacy.spec import PrivacyBudget

VERSION = 2
#: Before a line's chain, and its length with what follows.
_CHAIN, _SEAL = b', "chain": "', 64 + len('"}')


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
        done_steps: Steps on file, those charged for torn lines included.
        weights: (steps, fingerprint) of the weights of every checkpoint that was saved.
        opens: Keys of sealed releases that steps have paid for.
    """

    id: str
    scope: str
    stage: str
    fields: dict[str, Any]
    done_steps: int = 0
    weights: set[tuple[int, str]] = field(default_factory=set)
    opens: list[str] = field(default_factory=list)

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

    The first line names the ledger. Its name and newest chain are noted outside of the run folder as well
    (`doppel.privacy._ledger_notes`). A file without the line that was noted is an older copy: the other one was written
    to. Whoever writes to a copy first gives it a name of its own, by a `copy` line.

    Args:
        path: The ledger file; it need not exist yet.

    Attributes:
        identity: The ledger's name, drawn at random; None for an empty file.
        identities: That name, and those of the ledgers that this one is a copy of.
        chains: Chain of every line, in their order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.promises: dict[str, PrivacyBudget] = {}
        self.mechanisms: dict[str, MechanismRecord] = {}
        self.caveats: dict[str, list[tuple[str, bool]]] = {}
        self.identity: str | None = None
        self.identities: set[str] = set()
        self.chains: dict[str, int] = {}
        self._since = hashlib.sha256()  # of the last chain and every byte since
        self._offset = 0
        self._line = 0
        self._broken: list[bytes] = []  # torn lines that wait for their repair
        self._tail = b""  # what follows the last newline: torn, or being written
        self._damage: LedgerError | None = None

    def of_scope(self, scope: str) -> list[MechanismRecord]:
        """Mechanisms of a scope in the order of their opening."""
        return [record for record in self.mechanisms.values() if record.scope == scope]

    def spent(self, *scopes: str) -> list[Mechanism]:
        """What was spent in scopes."""
        return [record.mechanism() for scope in scopes for record in self.of_scope(scope)]

    def promise(self, scope: str) -> PrivacyBudget:
        """What a scope may spend.

        Raises:
            LedgerError: There is no such scope.
        """
        if scope not in self.promises:
            known = ", ".join(self.promises) or "none"
            raise LedgerError(f"no scope {scope!r}; the ledger has: {known}.", about=self.path)
        return self.promises[scope]

    def mechanism(self, mechanism_id: str) -> MechanismRecord:
        """A mechanism that was opened.

        Raises:
            LedgerError: There is no such mechanism.
        """
        if mechanism_id not in self.mechanisms:
            raise LedgerError(f"no mechanism {mechanism_id!r}: open it before spending.", about=self.path)
        return self.mechanisms[mechanism_id]

    def refresh(self) -> None:
        """Read the lines appended since the last call.

        Raises:
            LedgerError: If the file shrank or lost lines, or a line is damaged, contradictory or of another version.
        """
        if self._damage is not None:
            raise self._damage
        head = self._read_head()  # before the lines, which may grow meanwhile
        try:
            with open(self.path, "rb") as file:
                file.seek(0, os.SEEK_END)
                if file.tell() < self._offset:
                    raise LedgerError(
                        "the file became shorter while in use: restore it; it is append-only.", about=self.path
                    )
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            if self._offset or head:
                known = "while in use" if self._offset else f"but {self.head.name} beside it is not"
                raise LedgerError(
                    f"the file is gone, {known}: what it held was spent, so restore it from a copy.", about=self.path
                ) from None
            return
        except OSError as error:
            raise LedgerError(f"{error.strerror or error}.", about=self.path) from error
        self._charge(self._torn_charges(), sign=-1)
        *lines, self._tail = data.split(b"\n")
        self._offset += len(data) - len(self._tail)
        for line in lines:
            self._line += 1
            if line:
                self._read_line(line)
        self._charge(self._torn_charges())
        if head and head[1] not in self.chains:
            lost = head[0] - len(self.chains)
            what = f"the last {lost} lines are gone" if lost > 0 else "its lines are not those that were written"
            raise self._failed(f"{what} ({self.head.name} says so): restore the file from a copy.", self.path)

    @property
    def head(self) -> Path:
        """The file that holds the number of lines and the newest chain."""
        return self.path.with_name(f"{self.path.name}.head")

    @property
    def anchor(self) -> dict[str, Any]:
        """The ledger as it is now, for whoever wants to find it again: its identity and its newest chain."""
        return {"identity": self.identity, "chain": next(reversed(self.chains), None)}

    def is_outrun(self) -> bool:
        """Whether another copy of this ledger was written to since they parted."""
        if self.identity is None:
            self.refresh()
        noted = noted_chain(self.identity)  # before the lines, which may grow meanwhile
        self.refresh()
        return noted is not None and noted not in self.chains

    def is_noted(self) -> bool:
        """Whether the newest line is noted, so that a copy that is written to will be known for one."""
        return bool(self.chains) and noted_chain(self.identity) == next(reversed(self.chains))

    def _read_head(self) -> tuple[int, str] | None:
        """Number of lines and newest chain; None where there is no such file, or a crash left it empty."""
        try:
            words = self.head.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise LedgerError(f"{self.head} cannot be read ({error}): restore it from a copy.") from error
        if not words:
            return None
        if len(words) != 2 or not words[0].isdigit():
            raise LedgerError(f"{self.head} is damaged: restore it, with the ledger, from a copy.")
        return int(words[0]), words[1]

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
            make_private(self.path.parent)
            with FileLock(f"{self.path}.lock", timeout=timeout, mode=0o600):
                is_copy = self.is_outrun()
                if self._tail:  # a line that lacks its end alone is whole with it; any other is torn
                    self._write(b"\n")
                if self._broken:
                    self.append({"type": "repair", "charged": self._torn_charges()})
                if is_copy:
                    self.append({"type": "copy", "of": self.identity, "identity": secrets.token_hex(16)})
                yield
                if self.identity is not None and not self.is_noted():
                    note(self.identity, len(self.chains), next(reversed(self.chains)))
        except Timeout:
            raise LedgerError(
                f"another process has held the lock for {timeout:g} s: find and end it, or raise lock_timeout.",
                about=self.path,
            ) from None
        except OSError as error:
            raise LedgerError(
                f"{error.strerror or error}: the ledger must be writable before a private step may run.",
                about=self.path,
            ) from error

    def append(self, record: dict[str, Any]) -> None:
        """Write one line, with the time and its chain, and return once it is on disk. The lock must be held."""
        if self.identity is None and record["type"] != "ledger":
            self.append({"type": "ledger", "version": VERSION, "identity": secrets.token_hex(16)})
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        body = json.dumps({**record, "time": now}).encode()[:-1]
        chain = self._chain_of(body)
        self._write(body + _CHAIN + f'{chain}"}}\n'.encode())
        # Not synced, so that a step waits for the disk once: a head that is behind its ledger is right all the same.
        descriptor = os.open(self.head, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line_of(len(self.chains), chain))
        finally:
            os.close(descriptor)

    def _write(self, data: bytes) -> None:
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
            self._broken.append(line)
            self._since.update(line + b"\n")
            return
        if self._broken and record.get("type") not in ("repair", "ledger"):
            raise self._damaged("the line before it is damaged and was never settled")
        self._read_chain(line, record.pop("chain", None))
        if self.identity is None and record.get("type") != "ledger":
            raise self._damaged("the line that names the ledger is missing before it")
        try:
            self._apply(record)
        except LedgerError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._damaged("a field is missing or has the wrong type") from None

    def _read_chain(self, line: bytes, chain: str | None) -> None:
        """Follow the chain by a line, or find it broken."""
        if chain is None:
            raise self._damaged("it was not written by this program, for it has no chain")
        if chain != self._chain_of(line[: -len(_CHAIN) - _SEAL]):
            raise self._damaged(
                "its chain is broken: this line was changed, or lines before it were changed or removed"
            )
        self.chains[chain] = len(self.chains)
        self._since = hashlib.sha256(chain.encode())

    def _apply(self, record: dict[str, Any]) -> None:
        match record.pop("type", None):
            case "ledger":
                if record["version"] != VERSION:
                    raise self._damaged(f"it has version {record['version']}, this program reads version {VERSION}")
                if self.identity is not None or len(self.chains) != 1:
                    raise self._damaged("it names the ledger a second time")
                self._name(record["identity"])
            case "copy":
                if record["of"] != self.identity:
                    raise self._damaged("it is a copy of another ledger")
                self._name(record["identity"])
                text = (
                    f"it goes on from a copy of ledger {record['of']}, and for the same people the losses of both add "
                    "up"
                )
                for scope in self.promises:
                    self.caveats.setdefault(scope, []).append((text, False))
            case "budget":
                if any(known.done_steps for known in self.of_scope(record["scope"])):
                    raise self._damaged("it changes what a scope may spend that has spent some of it")
                for known in self.of_scope(record["scope"]):
                    del self.mechanisms[known.id]
                self.promises[record["scope"]] = PrivacyBudget(
                    **{field.name: record[field.name] for field in fields(PrivacyBudget)}
                )
            case "mechanism":
                opened = MechanismRecord(record.pop("id"), record.pop("scope"), record.pop("stage"), record)
                opened.mechanism()
                before = self.mechanisms.get(opened.id)
                is_other = before is not None and (before.done_steps > 0 or before.scope != opened.scope)
                if is_other or opened.scope not in self.promises or opened.planned_steps < 1:
                    raise self._damaged("it contradicts earlier lines")
                self.mechanisms[opened.id] = opened
            case "spend":
                if int(record["steps"]) < 1:
                    raise self._damaged("it spends less than one step")
                self._charge({record["mechanism"]: int(record["steps"])})
                if "opens" in record:
                    self.mechanisms[record["mechanism"]].opens.append(str(record["opens"]))
            case "weights":
                known, steps = self.mechanisms[record["mechanism"]], int(record["steps"])
                if not 0 < steps <= known.done_steps:
                    raise self._damaged("its weights are of steps that were not spent")
                known.weights.add((steps, str(record["fingerprint"])))
            case "caveat":
                caveat = (str(record["text"]), bool(record["voids"]))
                told = self.caveats.setdefault(record["scope"], [])
                told.extend([] if caveat in told else [caveat])
            case "repair":
                charged = {name: int(steps) for name, steps in record["charged"].items()}
                if min(charged.values(), default=0) < 0:
                    raise self._damaged("it takes steps back")
                self._charge(charged)
                self._broken = []
            case other:
                raise self._damaged(f"its type {other!r} is unknown")

    def _name(self, identity: object) -> None:
        if not str(identity).isalnum():  # it names a file beside the key, which must not lie elsewhere
            raise self._damaged("the ledger's name is none")
        self.identity = str(identity)
        self.identities.add(self.identity)

    def _charge(self, charges: dict[str, int], sign: int = 1) -> None:
        for mechanism_id, steps in charges.items():
            self.mechanisms[mechanism_id].done_steps += sign * steps

    def _damaged(self, why: str) -> LedgerError:
        where = f"{self.path}, line {self._line}"
        return self._failed(f"cannot be read: {why}. Restore the file from a copy.", where)

    def _failed(self, text: str, about: str | Path) -> LedgerError:
        """An error that asking again does not end."""
        self._damage = LedgerError(text, about=about)
        return self._damage


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, readable by their owner alone."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
