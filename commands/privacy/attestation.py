"""Whether the ledger of a run covers what was sampled there; every checkpoint of the samples is opened, once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from commands.pipeline.manifest import Entry
from commands.pipeline.run_record import RunRecord
from commands.pipeline.stage_config import StageConfig
from commands.pipeline.steps import RELEASED
from commands.pipeline.systems import system
from commands.pipeline.yaml_files import public_names
from doppel.errors import UserError
from doppel.evolution.budget import KIND as VOTES
from doppel.evolution.budget import digest_of
from doppel.files import read_json_lines
from doppel.privacy.checkpoint import privacy_state, read_stored, weights_fingerprint
from doppel.privacy.ledger import Ledger

FILE_NAME = "ledger.jsonl"
#: The command that lets samples evolve by private votes.
EVOLVE = "evolve"
#: Commands that count private text, as mechanisms of the scope of what they write.
COUNTS = ("histogram", "attributes", "rows", "calibrate")


@dataclass(frozen=True)
class Opened:
    """A checkpoint that was read.

    Attributes:
        content: All of it; the weights stay on disk until they are used. None where it cannot be read.
        state: Its state of a private training; None for one without privacy.
        error: Why it cannot be read.
    """

    content: Mapping[str, Any] | None
    state: Mapping[str, Any] | None
    error: str | None = None

    @cached_property
    def weights(self) -> str:
        """Fingerprint of its weights, computed at the first call."""
        return weights_fingerprint((self.content or {}).get("state_dict", {}))


@dataclass
class Attestation:
    """What the ledger of a run says of the samples that the run's manifest names.

    Formal guarantees:
        Samples are covered if the chain of files back from them ends, on every branch, in a checkpoint whose steps
        the ledger has paid for in the scope of the samples, in files that no private one was read for, or in shares
        that a histogram of that scope has paid for. Samples that evolved by votes are covered if the ledger has noted
        them, and every round of votes behind them, in that scope. What is behind a paid checkpoint needs no look:
        sampling and all after it is post-processing.

    Args:
        record: The run.
        archived: Scopes of which an earlier report vouched: their checkpoints need not be there any more.
    """

    record: RunRecord
    archived: Collection[str] = ()
    _opened: dict[Path, Opened] = field(default_factory=dict, repr=False)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the run, which may not be there."""
        return Ledger(self.record.folder / FILE_NAME)

    def open(self, path: Path) -> Opened:
        """A checkpoint, read at the first call."""
        path = path.resolve()
        if path not in self._opened:
            try:
                content = read_stored(path)
                self._opened[path] = Opened(content, privacy_state(content))
            except UserError as error:
                self._opened[path] = Opened(None, None, str(error).replace(f"{self.record.folder.resolve()}/", ""))
        return self._opened[path]

    def summary(self, systems: Collection[str] = ()) -> dict[str, Any] | None:
        """Summary of the ledger, in which a scope is void where the ledger does not cover what was sampled.

        Args:
            systems: Those that something is to be said of: void where no step has made samples of one.

        Returns:
            As :meth:`~doppel.privacy.ledger.Ledger.summary`; None where there is no ledger.

        Raises:
            UserError: The ledger or the manifest is damaged.
        """
        return self.ledger.summary(self.unvouched(systems)) if self.ledger.exists() else None

    def unvouched(self, systems: Collection[str] = ()) -> dict[str, list[str]]:
        """Scope → why nobody can vouch for what was sampled in it; ``systems`` as of :meth:`summary`."""
        found: dict[str, list[str]] = {}
        for made in self.record.manifest.released():
            found.setdefault(made.scope or made.path, []).extend(f"{made.path} {why}" for why in self._gaps(made))
        for name in systems:
            scope = system(name).scope
            if scope not in self.archived and name not in self.record.manifest.samples():
                text = f"no step of this run has made samples of {name}, so that nothing tells what they came from"
                found.setdefault(scope, []).append(text)
        return {scope: list(dict.fromkeys(texts)) for scope, texts in found.items() if texts}

    def uncovered(self) -> list[Entry]:
        """Files for people that were made of private text and that no scope has paid for, directly or not.

        Such are metrics that compare with private text, and what a model tells that learnt from it without privacy.
        The page is one only if figures of that kind were asked for.
        """
        manifest, found = self.record.manifest, []
        for made in manifest.files.values():
            is_page = made.role == "report" and made.path.endswith(".html")
            if made.role in ("private", "checkpoint", *RELEASED) or (is_page and "--private" not in made.command):
                continue
            if any(self._tells_unpaid(entry) for entry in self._unpaid(made)):
                found.append(made)
        return found

    def _tells_unpaid(self, entry: Entry) -> bool:
        is_private = bool(entry.private_inputs) or entry.is_sealed
        if entry.verb == EVOLVE:
            return is_private and not self._has_voted(entry.scope)
        return is_private and not self._has_counted(entry)

    def _unpaid(self, made: Entry) -> list[Entry]:
        """A file and all that it was made of, but for the checkpoints that a scope pays for and what is behind them."""
        waiting, found = [made.path], {}
        while waiting:
            entry = self.record.manifest.files.get(waiting.pop(0))
            if entry is not None and entry.path not in found and not (entry.role == "checkpoint" and entry.scope):
                found[entry.path] = entry
                waiting += entry.inputs
        return list(found.values())

    def _has_counted(self, entry: Entry) -> bool:
        """Whether a file was made by a step that counts, in whose scope a histogram or marginals have been paid for.

        No other step is paid for by them: whatever else reads private text, and trains nothing, pays nothing.
        """
        if entry.verb not in COUNTS or entry.scope is None:
            return False
        from doppel.privacy.histogram import KIND  # need torch, which no --help waits for
        from doppel.tables.marginals import KIND as MARGINALS

        return any(self.ledger.has_spent(entry.scope, kind) for kind in (KIND, MARGINALS))

    def _has_voted(self, scope: str | None) -> bool:
        """Whether a round of votes has been paid for in a scope."""
        return scope is not None and self.ledger.exists() and self.ledger.has_spent(scope, VOTES)

    def _gaps(self, made: Entry) -> list[str]:
        """Why the ledger does not cover a release, in words that follow its name."""
        manifest, waiting = self.record.manifest, [made.path]
        found: list[str] = []
        seen: set[str] = set()
        is_paid = False
        while waiting:
            entry = manifest.files.get(waiting.pop(0))
            if entry is None or entry.path in seen:
                continue
            seen.add(entry.path)
            is_private = bool(entry.private_inputs) or entry.is_sealed
            if entry.verb == EVOLVE:
                is_paid = True
                found += self._evolved(entry, made.scope)
                continue
            if entry.role == "checkpoint" and (entry.scope is not None or is_private):
                is_paid = True
                found += filter(None, [self._gap(entry, made.scope)])
                continue
            if is_private and (entry.scope != made.scope or not self._has_counted(entry)):
                private = ", ".join(public_names(entry.private_inputs)) or entry.path
                found.append(
                    f"was made of private text ({private}) by {entry.step}, and the ledger holds no histogram of "
                    f"this step that {made.scope} has paid for"
                )
            waiting += entry.inputs
        if not is_paid:
            found.append(f"was sampled from weights that the manifest does not name: {made.step} read none of this run")
        return found

    def _evolved(self, entry: Entry, scope: str | None) -> list[str]:
        """Why the ledger does not cover what evolved by votes."""
        if entry.scope != scope or not self._has_voted(scope):
            return [f"evolved by votes of {entry.step}, of which the ledger holds none that {scope} has paid for"]
        noted = self.ledger.noted_in(str(scope))
        votes = [self.record.manifest.path(own) for own in self.record.manifest.find("metrics", step=entry.step)]
        paths = [path for path in votes if path.suffix == ".jsonl" and path.is_file()]
        records = [record for path in paths for _, record in read_json_lines(path)]
        found = [] if entry.sha256 in noted else ["is not what the ledger has noted of the last round"]
        if not records or any(digest_of(record) not in noted for record in records):
            found.append(f"evolved by other votes than those that the ledger says were released in {scope}")
        return found

    def _gap(self, made: Entry, scope: str | None) -> str | None:
        """Why the ledger does not cover a checkpoint; None if it does."""
        path = self.record.manifest.path(made)
        if not path.is_file():
            return None if scope in self.archived else f"was sampled from {made.path}, which is gone"
        opened = self.open(path)
        if opened.error is not None:
            return f"was sampled from {made.path}: {opened.error}"
        if opened.state is None:
            return f"was sampled from {made.path}, which was trained without privacy"
        if opened.state["scope"] != scope:
            return f"was sampled from {made.path}, whose steps scope {opened.state['scope']!r} has paid for"
        gap = self.ledger.gap(opened.state, opened.weights)
        if gap is not None:
            return f"was sampled from {made.path}: {gap}"
        seeds = _fixed_seeds(path.parent.parent)
        if seeds and not self.ledger.voids(opened.state["scope"]):  # which the ledger would say
            return f"was sampled from {made.path}, which was trained with a fixed {' and '.join(seeds)}"
        return None


def taken_as_given(bases: Iterable[str | None], versions: Iterable[str | None]) -> list[str]:
    """What no card checks, in words that follow "not checked".

    Args:
        bases: Base models of the trainings, and generators of texts.
        versions: Commits of the code that ran.
    """
    named = ", ".join(dict.fromkeys("/".join(name.split("/")[-2:]) for name in bases if name))
    code = ", ".join(dict.fromkeys(name for name in versions if name))
    return [
        "that all lines of one person are one unit of the private file",
        f"that the base model ({named or 'not named'}) and its tokenizer are public",
        f"that the code which ran ({code or 'of unknown version'}) is Doppel's as it was published, with the settings "
        "on file",
        "that nobody forged all files of the run so that they fit one another",
    ]


def attested(record: RunRecord, systems: Collection[str] = (), archived: Collection[str] = ()) -> dict[str, Any] | None:
    """Summary of a run's ledger, see :meth:`Attestation.summary`."""
    return Attestation(record, archived).summary(systems)


def _fixed_seeds(stage: Path) -> list[str]:
    if not (stage / "config.yaml").is_file():
        return []
    config = StageConfig.read(stage)
    seeds = {
        "privacy.seed": None if config.privacy is None else config.privacy.seed,
        "data.sampling_seed": config.data.get("sampling_seed"),
    }
    return [name for name, seed in seeds.items() if seed is not None]
