"""``RUN/manifest.json``: every file of a run, what made it, of which files, and which mechanism paid for that."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from commands.run_folder.inputs import INPUTS
from commands.run_folder.places import public_names
from commands.run_folder.steps import RELEASED, Role
from doppel.console.ledger import FILE_NAME
from doppel.errors import UserError
from doppel.files import sha256_of
from doppel.run_folder import MANIFEST

#: What people read of a run.
REPORTS = ("report.json", "report.html")
#: The samples of the main system, under the name that users know.
SYNTHETIC = "synthetic.jsonl"
VERSION = 3
_READ = (2, VERSION)  # in which the files of systems lay beside one another, and in which each system has a folder
KEYED = "keyed:"  # begins the digest of a private file


@dataclass(frozen=True)
class Entry:
    """A file that a step of the run has made.

    Attributes:
        path: Its place in the run folder.
        role: What it is, see :class:`~commands.run_folder.steps.File`.
        system: Whose it is; None for one of the whole run.
        budget: The ledger's scope that pays for it; None where nothing private is in it, or nothing pays.
        step: What made it.
        command: The words after ``cli.py``; paths in the run folder by their place there.
        sha256: Of its content; of a private file ``keyed:`` and its keyed digest.
        inputs: Digest of each file that the step read: a path in the run folder, or an absolute one. None where there
            was no file of that name. Of the ledger, under its name: :func:`told_by_ledger`.
        reads_private: Whether one of these holds private text.
        mechanisms: BUDGET/STAGE of the ledger that paid for what the step learnt or counted of private text.
    """

    path: str
    role: Role
    system: str | None
    budget: str | None
    step: str
    command: Sequence[str]
    sha256: str
    inputs: Mapping[str, str | None]
    reads_private: bool
    mechanisms: Sequence[str]

    @property
    def verb(self) -> str:
        """The command that made it, such as ``predict``."""
        return self.command[0]

    @property
    def folder(self) -> str | None:
        """Folder of the training or sampling that made it; None for other commands."""
        words = self.command
        return words[words.index("--run_dir") + 1] if "--run_dir" in words else None

    @property
    def is_private(self) -> bool:
        """Whether it holds private text, so that its content is never hashed in the open."""
        return self.sha256.startswith(KEYED)

    @property
    def private_inputs(self) -> list[str]:
        """What its step read of private text."""
        return [path for path, digest in self.inputs.items() if (digest or "").startswith(KEYED)]


@dataclass
class Manifest:
    """What the steps of a run have made.

    Whoever vouches for a file of a run, shows it or hands it on, finds it here by its role and its system, and follows
    it back to the checkpoints that it came from. What is not here was made by no step and is not released.

    *What this can show.* A file that was changed, copied or exchanged after its step has another digest. A file that
    was made of others than those which are there now is stale. *What it cannot show:* whoever may write every file of
    the run can write a manifest that fits them.

    Attributes:
        folder: The run folder.
        files: Entry of each file, by its place in the folder.
        version: Of the layout of the folder; None where there is no manifest.
    """

    folder: Path
    files: Mapping[str, Entry]
    version: int | None = VERSION
    _digests: dict[str, str | None] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a run; one without files where no step has ended.

        Raises:
            UserError: It cannot be read.
        """
        path = folder / MANIFEST
        if not path.exists():
            return cls(folder, {}, None)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["version"] not in _READ:
                raise UserError(f"{path} has version {content['version']}, this program reads {VERSION}")
            files = {name: Entry(name, **fields) for name, fields in content["files"].items()}
            return cls(folder, files, content["version"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = "it is empty" if not path.stat().st_size else str(error)
            raise UserError(
                f"{path} cannot be read as a manifest ({why}), so nothing vouches for what the steps of this run have "
                "made: put back a copy of it, or give another RUN_DIR, which spends on top of what this run has spent"
            ) from None

    def find(self, role: Role | None = None, system: str | None = None, verb: str | None = None) -> list[Entry]:
        """Return the entries that match all criteria, in the order in which they were made."""
        wanted = {"role": role, "system": system, "verb": verb}
        asked = {name: value for name, value in wanted.items() if value is not None}
        return [e for e in self.files.values() if all(getattr(e, name) == value for name, value in asked.items())]

    def samples(self) -> dict[str, Entry]:
        """Return what each system has written: its release that was chosen from no other release."""
        found = {}
        for entry in self.find("release"):
            is_first = all(made.role not in RELEASED for made in self.upstream(entry.path) if made.path != entry.path)
            if is_first and entry.system is not None:
                found[entry.system] = entry
        return found

    def released(self) -> list[Entry]:
        """Return all samples that the run hands out: its own, and what was sampled later."""
        return [entry for entry in self.files.values() if entry.role in RELEASED]

    def upstream(self, path: str, through_private: bool = True) -> list[Entry]:
        """Return the entry of a file, and those of all files that it was made of, directly or not; each once.

        Private files that a step has made, and what these were made of, may be left out.
        """
        found: dict[str, Entry] = {}
        waiting = [path]
        while waiting:
            entry = self.files.get(waiting.pop(0))
            if entry is not None and entry.path not in found:
                found[entry.path] = entry
                waiting += [name for name in entry.inputs if through_private or name not in entry.private_inputs]
        return list(found.values())

    def drawn_from(self, entry: Entry) -> Entry | None:
        """Return the over-sample, candidates or samples whose lines a step drew or chose; None where it did not."""
        inputs = [self.files[path] for path in entry.inputs if path in self.files]
        return next((made for made in inputs if made.role in ("pool", "candidates", *RELEASED)), None)

    def path(self, entry: Entry) -> Path:
        """Return the path of a file."""
        return self.folder / entry.path

    def is_as_made(self, entry: Entry) -> bool:
        """Return whether a file is there and has the content that its step gave it; a private file is not looked at."""
        return entry.is_private or self._digest(str(self.path(entry))) == entry.sha256

    def synthetic(self) -> Entry | None:
        """Return the samples that ``synthetic.jsonl``, a link to some or a copy, has the content of; None of none."""
        digest = self._digest(str(self.folder / SYNTHETIC))
        return next((made for made in self.samples().values() if made.sha256 == digest), None)

    def changes(self, path: str, may_be_gone: bool = False) -> list[str]:
        """Return why a file is not what its step made, or was made of others than those that are there now; in words.

        A file that was deleted since may be passed over.
        """
        entry, found = self.files[path], []
        is_there = self.path(entry).exists()
        if not self.is_as_made(entry) and (is_there or not may_be_gone):
            how = "was changed after" if is_there else "is not in the run folder since"
            again = f", or delete what is left of it and RUN/.done/{entry.step}, and give the command of the run again"
            found.append(f"{path} {how} {entry.step} made it: put back a copy{'' if entry.mechanisms else again}")
        for name, digest in entry.inputs.items():
            other = self.files.get(name)
            if other is not None and other.sha256 != digest:
                again = f"delete it and RUN/.done/{entry.step}, and give the command of the run again"
                if entry.role == "report":
                    again = "give python cli.py report RUN again"
                found.append(
                    f"{path} was made of another {name} than the one that {other.step} has made since: {again}"
                )
            elif other is None and digest is not None and name != FILE_NAME and not _is_given(name):
                found.append(f"{path} was made of {name}, which no step of this run has made")
        return found

    def stale_inputs(self, *paths: str, may_be_gone: bool = False) -> list[str]:
        """Return which files in the chains of some files have changed since others were made of them, in words.

        Private files are not opened: their recorded digests are compared with one another. The files are in their
        chains themselves; others, which they were made of, may have been deleted since, where that is said.
        """
        found: list[str] = []
        read: dict[str, str | None] = {}
        for entry in {entry.path: entry for path in paths for entry in self.upstream(path)}.values():
            found += self.changes(entry.path, may_be_gone and entry.path not in paths)
            for name, digest in entry.inputs.items():
                if name in self.files or not _is_given(name):
                    continue
                is_open = digest is not None and not digest.startswith(KEYED)
                if digest != read.setdefault(name, digest):
                    found.append(
                        f"{public_names(name)} was another file when {entry.step} read it than when another step did"
                    )
                elif is_open and self._digest(str(self.folder / name)) not in (None, digest):
                    found.append(f"{public_names(name)}, of which {entry.path} was made, is another file now")
        return list(dict.fromkeys(found))

    def unknown(self) -> list[str]:
        """Return what else lies in the run folder, which no step has made, whatever its ending or place.

        A folder without any file of a step stands for all that is in it; the record itself is left out.
        """
        folders = {folder for path in self.files for folder in PurePosixPath(path).parents} | {PurePosixPath()}
        linked = {self.path(entry).resolve() for entry in self.files.values()}
        places: Counter[PurePosixPath] = Counter()
        only: dict[PurePosixPath, PurePosixPath] = {}
        for file in sorted(self.folder.rglob("*")):
            path = PurePosixPath(file.relative_to(self.folder))
            is_folder = file.is_dir() and not file.is_symlink()
            is_known = str(path) in self.files or str(path) in _RECORD or file.resolve() in linked
            if is_folder or is_known or not file.exists():  # the last is a link to what is still to be made
                continue
            place = next((folder for folder in reversed(path.parents) if folder not in folders), path)
            places[place] += 1
            only[place] = path
        return [str(only[place]) if num == 1 else f"{place}/ ({num} files)" for place, num in places.items()]

    def _digest(self, path: str) -> str | None:
        if path not in self._digests:
            self._digests[path] = digest_of(Path(path))
        return self._digests[path]


#: What vouches for the files of a run, and is none of them.
_RECORD = {FILE_NAME, f"{FILE_NAME}.lock", MANIFEST, f".{MANIFEST}.lock", "privacy_card.json", "privacy_card.txt"}


def _is_given(name: str) -> bool:
    """Whether an input is no file of a step: one from elsewhere, or the run's copy of one."""
    return os.path.isabs(name) or name.startswith(f"{INPUTS}/")


def told_by_ledger(statement: str) -> str:
    """Return the digest of what a ledger states of the run, which a report quotes: another one after a later system."""
    return hashlib.sha256(statement.encode()).hexdigest()


def digest_of(path: Path) -> str | None:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files; None where there is neither."""
    if path.is_file():
        return sha256_of(path)
    if not path.is_dir():
        return None
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{file.relative_to(path)} {digest_of(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
