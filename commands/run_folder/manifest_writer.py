"""Who enters files into ``RUN/manifest.json``: a run when it begins, and each step when it has ended well."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from commands.run_folder.manifest import KEYED, VERSION, Entry, Manifest, digest_of, told_by_ledger
from commands.run_folder.ownership import has_begun, hold
from commands.run_folder.steps import GIVEN, Step
from datamodules.reading.files import file_digest
from doppel.console.ledger import FILE_NAME
from doppel.errors import UserError
from doppel.files import sha256_of, write_json, write_text
from doppel.privacy.fingerprint import key_path, keyed_fingerprint
from doppel.privacy.ledger import Ledger
from doppel.run_folder import MANIFEST

_PATIENCE = 120  # seconds: jobs of one run may end at the same time


def lay_out(run: Path) -> None:
    """Begin the manifest of a run before its first step; it marks the folder (:func:`~doppel.run_folder.run_of`)."""
    with _held(run):
        if Manifest.read(run).version != VERSION:
            _write(run, {})


def refuse_old(run: Path) -> None:
    """Refuse to go on with a run whose files lie where a former version placed them, or whose manifest is gone.

    Raises:
        UserError: They do, or it is.
    """
    version = Manifest.read(run).version
    if version is None:
        raise UserError(
            f"{run / MANIFEST} is gone, which tells what the steps of this run have made and what was charged for it: "
            "restore it, or give another RUN_DIR, which spends on top of what this run has spent"
        )
    if version != VERSION:
        raise UserError(
            f"{run} was begun by a former version of Doppel, whose files lie elsewhere: page, verify and export read "
            "it; to go on, check out the commit in its experiment.yaml, or give another RUN_DIR, which spends on top "
            "of what this run has spent"
        )


def refuse_lost_ledger(run: Path) -> None:
    """Refuse to go on with a run whose ledger does not tell of what its manifest says was paid.

    Formal guarantees:
        A step that has ended names in the manifest what paid for it. A ledger without a step of that is another one, or
        none: a training that it pays for would spend a whole budget again on the same people.

    Raises:
        UserError: It does not.
    """
    ledger = Ledger(run / FILE_NAME)
    for name in {name for entry in Manifest.read(run).files.values() for name in entry.mechanisms}:
        scope, _, stage = name.rpartition("/")
        known = ledger.mechanisms.get(ledger.mechanism_id(scope, stage))
        if known is None or not known.done_steps:
            raise UserError(
                f"the manifest beside it names {name}, which was charged for files of this run, and the ledger has no "
                "step of it: restore the ledger; another RUN_DIR spends on top of what this run has spent",
                about=run / FILE_NAME,
            )


def refuse_other_data(run: Path, waiting: Iterable[Step]) -> None:
    """Refuse to charge a run for a private file that is another one than steps before were charged for, or have read.

    No statement holds of mechanisms that read different rows under one N, and what they release could not be vouched
    for any more, with all that was charged. And where a step has written the rows anew (parts, parses), a training
    would read those that were taken out of the file since; but a budget that has been charged for them goes on with
    them, for these it has paid. Compared are keyed digests.

    Args:
        run: The run folder.
        waiting: Steps that are not done.

    Raises:
        UserError: A file has changed.
    """
    files = Manifest.read(run).files
    charged = [entry for entry in files.values() if entry.mechanisms]
    ledger = Ledger(run / FILE_NAME)
    for step in waiting:
        is_paid = any(ledger.spent(name.split("/", 1)[0]) for name in step.mechanisms)
        for path in step.protected if step.mechanisms and not is_paid else ():
            for source, entry in _read_before(_input(path, run), files):
                file = Path(source)
                if file.is_file() and _told(file_digest(file).hex(), True) != entry.inputs[source]:
                    raise UserError(
                        f"{source} has changed since {entry.step} of this run wrote {entry.path} of it, and "
                        f"{step.name} would be charged for what it was. Restore the file, and on another machine the "
                        f"key of fingerprints ({key_path()}); other rows need another RUN_DIR, which spends on top of "
                        "what this run has spent"
                    )
        for path in step.protected if step.mechanisms else ():
            place = _input(path, run)
            known = {entry.inputs[place]: entry.step for entry in charged if place in entry.private_inputs}
            if known and (run / place).is_file() and _told(file_digest(run / place).hex(), True) not in known:
                raise UserError(
                    f"{path} has changed since {next(iter(known.values()))} of this run read it, and {step.name} would "
                    "be charged for it as it is now: no ε would hold of both. Restore the file, and on another machine "
                    f"the key of fingerprints ({key_path()}). Where it is lost, a model that is trained can be had and "
                    f"sampled by itself (`python cli.py export {run}/SYSTEM/STAGE OUT`); other rows need another "
                    "RUN_DIR, which spends on top of what this run has spent"
                )


def _read_before(place: str, files: Mapping[str, Entry]) -> Iterator[tuple[str, Entry]]:
    """The user's private files that a file of the run was made of, each with the entry of what was made of it."""
    if (entry := files.get(place)) is None:
        return
    for source in entry.private_inputs:
        if os.path.isabs(source):
            yield source, entry
        elif source != place:
            yield from _read_before(source, files)


def declare(step: Step, run: Path) -> None:
    """Write down what a step will read and leave, for whoever executes it: ``RUN/configs/NAME.json``."""
    content = {
        "command": [_place(word, run) for word in step.words(run) if word != "step"],
        "writes": [vars(file) for file in step.writes],
        "reads": step.reads,
        "protected": step.protected,
        "mechanisms": step.mechanisms,
    }
    write_json(declaration(run, step.name), content)


def enter(run: Path, name: str) -> None:
    """Enter what a step has left, once it has ended well, in place of what an earlier pass of it left.

    Jobs of one run may call this at the same time, on several nodes: a lock orders them, and the file is replaced as a
    whole. A step that declared nothing enters nothing. A sampling leaves a finished file as it is: its entry stays too,
    with the inputs that it was made of.

    Formal guarantees:
        The digest of a private file is keyed (:func:`doppel.privacy.fingerprint.keyed_fingerprint`), whether the step
        names it as such or another step has made it as one. No size, number of lines or other figure of any file is
        noted.

    Raises:
        UserError: The manifest cannot be read, or another process holds it.
    """
    path = declaration(run, name)
    if not path.is_file():
        return
    told = json.loads(path.read_text(encoding="utf-8"))
    made = {file["path"]: file for file in told["writes"] if (run / file["path"]).is_file()}
    digests = {path: sha256_of(run / path) for path in made}
    read: dict[str, str | None] = {}
    hidden = set()
    for path in told["reads"]:
        place = _input(path, run)
        if path in told["protected"]:
            hidden.add(place)
        if place in hidden and (run / place).is_file():
            read[place] = file_digest(run / place).hex()  # a private file is opened once by the process of all steps
        else:
            read[place] = digest_of(run / place) if os.path.isabs(place) or (run / place).exists() else None
    with _held(run):
        before = Manifest.read(run).files
        files = {path: entry for path, entry in before.items() if entry.step != name}
        hidden |= {path for path, entry in files.items() if entry.is_private}
        hidden |= {path for entry in before.values() for path in entry.private_inputs}
        own = {
            "step": name,
            "command": told["command"],
            "inputs": {path: _told(digest, path in hidden) for path, digest in read.items()},
            "reads_private": not hidden.isdisjoint(read),
            "mechanisms": told["mechanisms"],
        }
        for path, file in made.items():
            entry = Entry(**file, **own, sha256=str(_told(digests[path], file["role"] == "private")))
            old = before.get(path)
            is_kept = old is not None and old.verb == entry.verb == "predict" and old.sha256 == entry.sha256
            files[path] = old if old is not None and is_kept else entry
        _write(run, files)


def enter_rows(run: Path, text: str) -> Path:
    """Keep private rows that a program gave a run, as JSON lines, and return their file, for its owner alone.

    Formal guarantees:
        A run that has begun keeps the rows that it has: the fingerprint of their file stands in its ledger.

    Raises:
        UserError: It was begun with others, or another process works in it.
    """
    digest = str(_told(hashlib.sha256(text.encode()).hexdigest(), is_private=True))
    with hold(run), _held(run):
        files = dict(Manifest.read(run).files)
        is_begun = has_begun(run)
        if is_begun and (GIVEN not in files or files[GIVEN].sha256 != digest):
            raise UserError(
                f"{run} was started with other rows than these (data): give the same ones, or another run_dir, which "
                "spends on top of what this run has spent"
            )
        if not is_begun or not (run / GIVEN).exists():
            write_text(run / GIVEN, text)
            files[GIVEN] = Entry(GIVEN, "private", None, None, "run", ("run",), digest, {}, True, ())
            _write(run, files)
    return run / GIVEN


def enter_report(run: Path, files: Iterable[str], command: Sequence[str], statement: str | None) -> None:
    """Enter files that people read of a run, by their place, which a command has made of all that steps have left.

    They quote what the ledger states of the run, if anything: where it states something else later, they are stale.
    """
    quoted = {} if statement is None else {FILE_NAME: told_by_ledger(statement)}
    with _held(run):
        entries = dict(Manifest.read(run).files)
        shown = [made for made in entries.values() if made.role not in ("report", "private", "checkpoint")]
        for path in files:
            entries[path] = Entry(
                path,
                role="report",
                system=None,
                budget=None,
                step=command[0],
                command=command,
                sha256=sha256_of(run / path),
                inputs=quoted | {made.path: made.sha256 for made in shown},
                reads_private=False,
                mechanisms=(),
            )
        _write(run, entries)


@contextmanager
def _held(run: Path) -> Iterator[None]:
    """Hold the manifest of a run."""
    try:
        with FileLock(run / f".{MANIFEST}.lock", mode=0o600).acquire(timeout=_PATIENCE):
            yield
    except Timeout:
        raise UserError(
            f"{run / MANIFEST} is held by another process for {_PATIENCE} s: give the command again"
        ) from None


def _write(run: Path, files: Mapping[str, Entry]) -> None:
    content = {path: {k: v for k, v in vars(entry).items() if k != "path"} for path, entry in files.items()}
    write_json(run / MANIFEST, {"version": VERSION, "files": content})


def declaration(run: Path, name: str) -> Path:
    """Return the path of the record of what a step reads and leaves."""
    return run / "configs" / f"{name}.json"


def _place(word: str, run: Path) -> str:
    """A path in the run folder by its place there; other words as they are."""
    return "." if word == str(run) else word.removeprefix(f"{run}/")


def _input(path: str, run: Path) -> str:
    """A file of the run by its place there, another one by its absolute path, and what is no file by its name."""
    path = _place(path, run)
    if not os.path.isabs(path) and (run / path).exists():
        return path
    expanded = os.path.abspath(os.path.expanduser(os.path.expandvars(path)))
    return expanded if os.path.exists(expanded) else path


def _told(digest: str | None, is_private: bool) -> str | None:
    return f"{KEYED}{keyed_fingerprint(digest)}" if digest is not None and is_private else digest
