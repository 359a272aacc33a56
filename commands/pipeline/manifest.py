"""``RUN/manifest.json``: every file of a run, what made it, and of which files."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from filelock import FileLock, Timeout

from commands.pipeline.steps import RELEASED, Role, Step
from commands.pipeline.yaml_files import public_names
from datamodules.sources import file_digest
from doppel.errors import UserError
from doppel.files import write_json
from doppel.privacy.fingerprint import keyed_fingerprint

FILE = "manifest.json"
#: What people read of a run.
REPORTS = ("report.json", "report.html")
_VERSION = 1
_SEALED = "sealed:"  # begins the digest of a private file
_PATIENCE = 120  # seconds: jobs of one run may end at the same time


class ManifestError(UserError):
    """A manifest that cannot be read or written."""


@dataclass(frozen=True)
class Entry:
    """A file that a step of the run has made.

    Attributes:
        path: Its place in the run folder.
        role: What it is, see :class:`~commands.pipeline.steps.File`.
        system: Whose it is; None for one of the whole run.
        scope: Scope of the ledger that pays for it; None where nothing private is in it, or nothing pays.
        step: What made it.
        command: The words after ``cli.py``; paths in the run folder by their place there.
        sha256: Of its content; of a private file ``sealed:`` and a keyed digest.
        inputs: Digest of each file that the step read: a path in the run folder, or an absolute one. None where there
            was no file of that name.
    """

    path: str
    role: Role
    system: str | None
    scope: str | None
    step: str
    command: tuple[str, ...]
    sha256: str
    inputs: Mapping[str, str | None]

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
    def is_sealed(self) -> bool:
        """Whether it holds private text, so that its content is never hashed in the open."""
        return self.sha256.startswith(_SEALED)

    @property
    def private_inputs(self) -> list[str]:
        """What its step read of private text."""
        return [path for path, digest in self.inputs.items() if (digest or "").startswith(_SEALED)]


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
    """

    folder: Path
    files: Mapping[str, Entry]
    _digests: dict[str, str | None] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a run; one without files where no step has ended.

        Raises:
            ManifestError: It cannot be read.
        """
        path = folder / FILE
        if not path.exists():
            return cls(folder, {})
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["version"] != _VERSION:
                raise ManifestError(f"{path} has version {content['version']}, this program reads {_VERSION}")
            return cls(folder, {name: _entry(name, **fields) for name, fields in content["files"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"{path} cannot be read as a manifest ({error}): delete no entry by hand") from None

    def find(
        self, role: Role | None = None, system: str | None = None, verb: str | None = None, step: str | None = None
    ) -> list[Entry]:
        """Entries with all that is asked for, in the order in which they were made."""
        wanted = {"role": role, "system": system, "verb": verb, "step": step}
        asked = {name: value for name, value in wanted.items() if value is not None}
        return [e for e in self.files.values() if all(getattr(e, name) == value for name, value in asked.items())]

    def samples(self) -> dict[str, Entry]:
        """What each system has written: its release that was chosen from no other release."""
        found = {}
        for entry in self.find("release"):
            is_first = all(made.role not in RELEASED for made in self.upstream(entry.path) if made.path != entry.path)
            if is_first and entry.system is not None:
                found[entry.system] = entry
        return found

    def released(self) -> list[Entry]:
        """All samples that the run hands out: its own, and what was sampled later."""
        return [entry for entry in self.files.values() if entry.role in RELEASED]

    def upstream(self, path: str) -> list[Entry]:
        """The entry of a file, and those of all files that it was made of, directly or not; each once."""
        found: dict[str, Entry] = {}
        waiting = [path]
        while waiting:
            entry = self.files.get(waiting.pop(0))
            if entry is not None and entry.path not in found:
                found[entry.path] = entry
                waiting += entry.inputs
        return list(found.values())

    def drawn_from(self, entry: Entry) -> Entry | None:
        """The over-sample, candidates or samples whose lines a step drew or chose; None where it did not."""
        inputs = [self.files[path] for path in entry.inputs if path in self.files]
        return next((made for made in inputs if made.role in ("pool", "candidates", *RELEASED)), None)

    def contradictions(self, entry: Entry) -> list[str]:
        """In what an entry is not what its step declared before it ran, in words; a report is made by hand, too."""
        if entry.role == "report":
            return []
        path = declaration(self.folder, entry.step)
        if not path.is_file():
            return [f"{entry.path}: nothing tells what {entry.step} was to make, for configs/ has no {path.name}"]
        told = json.loads(path.read_text(encoding="utf-8"))
        declared: dict[str, Any] = next((file for file in told["writes"] if file["path"] == entry.path), {})
        found = {name: getattr(entry, name) for name in ("role", "system", "scope")}
        wrong = [
            f"{entry.path}: its {name} is {value}, but {entry.step} declared {declared.get(name)}"
            for name, value in found.items()
            if value != declared.get(name)
        ]
        if list(entry.command) != told["command"]:
            wrong.append(f"{entry.path}: its command is not that of {entry.step}")
        read = {os.path.basename(name) if os.path.isabs(name) else name for name in entry.inputs}
        named = {_place(name, self.folder.resolve()) for name in told["reads"]}
        if not all(name in read or os.path.basename(name) in read for name in named) or len(read) > len(named):
            wrong.append(f"{entry.path}: it was not made of what {entry.step} declared to read")
        return wrong

    def path(self, entry: Entry) -> Path:
        """Where a file is."""
        return self.folder / entry.path

    def is_as_made(self, entry: Entry) -> bool:
        """Whether a file is there and has the content that its step gave it; a private file is not looked at."""
        return entry.is_sealed or self._digest(str(self.path(entry))) == entry.sha256

    def changes(self, path: str, may_be_gone: bool = False) -> list[str]:
        """Why a file is not what its step made, or was made of others than those that are there now; in words.

        Args:
            path: Its place in the run folder.
            may_be_gone: Whether a file that was deleted since is passed over.
        """
        entry, found = self.files[path], []
        is_there = self.path(entry).exists()
        if not self.is_as_made(entry) and (is_there or not may_be_gone):
            how = "was changed after" if is_there else "is not in the run folder since"
            found.append(f"{path} {how} {entry.step} made it")
        for name, digest in entry.inputs.items():
            other = self.files.get(name)
            if other is not None and other.sha256 != digest:
                again = f"delete it and RUN/.done/{entry.step}, and give the command of the run again"
                if entry.role == "report":
                    again = f"give python cli.py {entry.verb} RUN again"
                found.append(
                    f"{path} was made of another {name} than the one that {other.step} has made since: {again}"
                )
        return found

    def breaks(self, path: str | None = None, may_be_gone: bool = False, but: Collection[str] = ()) -> list[str]:
        """Where the chain from a file back to all that it was made of is not whole, in words; nothing where it is.

        Private files are not opened: their recorded digests are compared with one another.

        Args:
            path: The file; None: every file that a step has made.
            may_be_gone: Whether files that it was made of may have been deleted since.
            but: Files that are passed over.
        """
        found: list[str] = []
        read: dict[str, str | None] = {}
        entries = self.files.values() if path is None else self.upstream(path)
        for entry in (entry for entry in entries if entry.path not in but):
            found += self.changes(entry.path, may_be_gone and entry.path != path)
            for name, digest in entry.inputs.items():
                told = public_names(name)
                if not os.path.isabs(name) and digest is not None and name not in self.files:
                    found.append(f"{entry.path} was made of {name}, which no step of this run has made")
                elif os.path.isabs(name) and digest != read.setdefault(name, digest):
                    found.append(
                        f"{public_names(name)} was another file when {entry.step} read it than when another step did"
                    )
                elif os.path.isabs(name) and self._is_another_now(name, digest):
                    found.append(f"{told}, of which {entry.path} was made, is another file now")
        return list(dict.fromkeys(found))

    def unmade(self) -> list[str]:
        """Lines and numbers in the run folder that no step made: what was copied there, or written by hand.

        Tables and JSON lines anywhere, metrics where those of a run are, and its report.
        """
        found = []
        for folder, subfolders, files in os.walk(self.folder):
            subfolders[:] = sorted(set(subfolders) - _NOT_RESULTS)
            for name in sorted(files):
                path = os.path.relpath(os.path.join(folder, name), self.folder)
                kind = name.lower().removesuffix(".gz").removesuffix(".zip").rpartition(".")[2]
                is_result = kind in _LINES or path in REPORTS or (kind == "json" and path.split("/")[0] in _METRICS)
                if is_result and name != "ledger.jsonl" and path not in self.files:
                    found.append(path)
        return found

    def unknown(self) -> list[str]:
        """All other files that no step made, whatever their ending or place, but for what a run itself keeps there."""
        found, unmade = [], {*self.unmade(), *self.files}
        for file in sorted(self.folder.rglob("*")):
            path = file.relative_to(self.folder).as_posix()
            if file.is_file() and path not in unmade and not _OWN.fullmatch(path):
                found.append(path)
        return found

    def _is_another_now(self, path: str, digest: str | None) -> bool:
        """Whether a public file outside of the run has changed; one that is gone is not said to have."""
        if digest is None or digest.startswith(_SEALED):
            return False
        now = self._digest(path)
        return now is not None and now != digest

    def _digest(self, path: str) -> str | None:
        if path not in self._digests:
            self._digests[path] = _digest(Path(path))
        return self._digests[path]


#: Folders of a run that hold what ran, and logs.
_NOT_RESULTS = {"code", "configs", "slurm", "wandb", "audit"}
#: Kinds of files that hold lines.
_LINES = {"jsonl", "ndjson", "csv", "tsv", "parquet", "arrow"}
#: What a run keeps beside the files of its steps: records, settings, code, logs and checkpoints.
_OWN = re.compile(
    r"ledger\.jsonl(\.head|\.lock)?|experiment\.yaml|(\.?manifest|report|privacy_card)\.(json|html|txt)(\.lock)?"
    r"|\.done/[^/.]+|code/.+|configs/[^/]+\.(yaml|json)|slurm/[^/]+\.(out|job)|(.+/)?\.(lock|failed)|(.+/)?wandb_id"
    r"|[^/]+/(config|predict)\.yaml|([^/]+/)?wandb/(.*/)?(offline-)?run-.+|([^/]+/)?wandb/debug[^/]*|.+\.ckpt"
)
#: Folders of metrics.
_METRICS = {"evaluation", "parser_metrics"}


def declare(step: Step, run: Path) -> None:
    """Write down what a step will read and leave, for whoever executes it: ``RUN/configs/NAME.json``."""
    write_json(declaration(run, step.name), _declared(step, run))


def is_declared(step: Step, run: Path) -> bool:
    """Whether this very step was written down."""
    path = declaration(run, step.name)
    return path.is_file() and json.loads(path.read_text(encoding="utf-8")) == json.loads(
        json.dumps(_declared(step, run))
    )


def _declared(step: Step, run: Path) -> dict[str, Any]:
    return {
        "command": [_place(word, run) for word in step.argv],
        "writes": [vars(file) for file in step.writes],
        "reads": step.reads,
        "protected": step.protected,
    }


def enter(run: Path, name: str) -> None:
    """Enter what a step has left, once it has ended well, in place of what an earlier pass of it left.

    Jobs of one run may call this at the same time, on several nodes: a lock orders them, and the file is replaced as a
    whole. A step that declared nothing enters nothing. A sampling leaves a finished file as it is: its entry stays too,
    with the inputs that it was made of.

    Formal guarantees:
        The digest of a private file is keyed (:func:`doppel.privacy.fingerprint.keyed_fingerprint`), whether the step
        names it as such or another step has made it as one. No size, number of lines or other figure of any file is
        noted.

    Args:
        run: The run folder.
        name: The step.

    Raises:
        ManifestError: The manifest cannot be read, or another process holds it.
    """
    path = declaration(run, name)
    if not path.is_file():
        return
    told = json.loads(path.read_text(encoding="utf-8"))
    made = {file["path"]: file for file in told["writes"] if (run / file["path"]).is_file()}
    digests = {path: _digest(run / path) for path in made}
    read: dict[str, str | None] = {}
    hidden = set()
    for path in told["reads"]:
        place = _input(path, run)
        if path in told["protected"]:
            hidden.add(place)
        if place in hidden and (run / place).is_file():
            read[place] = file_digest(run / place).hex()  # a private file is opened once by the process of all steps
        else:
            read[place] = _digest(run / place) if os.path.isabs(place) or (run / place).exists() else None
    with _held(run):
        before = Manifest.read(run).files
        files = {path: entry for path, entry in before.items() if entry.step != name}
        hidden |= {path for path, entry in files.items() if entry.is_sealed}
        hidden |= {p for entry in before.values() for p, d in entry.inputs.items() if (d or "").startswith(_SEALED)}
        inputs = {path: _told(digest, path in hidden) for path, digest in read.items()}
        for path, file in made.items():
            own = {"step": name, "command": told["command"], "inputs": inputs}
            own["sha256"] = _told(digests[path], file["role"] == "private")
            entry = _entry(path, **{key: file[key] for key in ("role", "system", "scope")}, **own)
            old = before.get(path)
            is_kept = old is not None and old.verb == entry.verb == "predict" and old.sha256 == entry.sha256
            files[path] = old if old is not None and is_kept else entry
        _write(run, files)


def enter_report(run: Path, files: Iterable[str], command: Sequence[str]) -> None:
    """Enter what people read of a run, which a command has made of all that the steps have left.

    Args:
        run: The run folder.
        files: Files that the command wrote there, by their place.
        command: Its words after ``cli.py``.

    Raises:
        ManifestError: The manifest cannot be read, or another process holds it.
    """
    with _held(run):
        entries = dict(Manifest.read(run).files)
        shown = [made for made in entries.values() if made.role not in ("report", "private", "checkpoint")]
        inputs = {made.path: made.sha256 for made in shown}
        fields = {"role": "report", "system": None, "scope": None, "step": command[0], "command": command}
        for path in files:
            entries[path] = _entry(path, **fields, sha256=_digest(run / path), inputs=inputs)
        _write(run, entries)


@contextmanager
def _held(run: Path) -> Iterator[None]:
    """Hold the manifest of a run."""
    try:
        with FileLock(run / f".{FILE}.lock", mode=0o600).acquire(timeout=_PATIENCE):
            yield
    except Timeout:
        raise ManifestError(
            f"{run / FILE} is held by another process for {_PATIENCE} s: give the command again"
        ) from None


def _write(run: Path, files: Mapping[str, Entry]) -> None:
    content = {path: {k: v for k, v in vars(entry).items() if k != "path"} for path, entry in files.items()}
    write_json(run / FILE, {"version": _VERSION, "files": content})


def declaration(run: Path, name: str) -> Path:
    """Where it is written down what a step reads and leaves."""
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


def _digest(path: Path) -> str | None:
    """SHA-256 of a file, or of the names and contents of a folder's files; None where there is neither."""
    if path.is_file():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if not path.is_dir():
        return None
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{file.relative_to(path)} {_digest(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _told(digest: str | None, is_private: bool) -> str | None:
    return f"{_SEALED}{keyed_fingerprint(digest)}" if digest is not None and is_private else digest


def _entry(path: str, **fields: Any) -> Entry:
    """An entry, if it is one."""
    entry = Entry(path, **{**fields, "command": tuple(fields["command"])})
    texts = (entry.step, entry.sha256, *entry.command)
    if os.path.isabs(path) or ".." in Path(path).parts:
        raise ValueError(f"{path} is not in the run folder")
    if entry.role not in get_args(Role) or not entry.command or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"the entry of {path} is not whole")
    return entry
