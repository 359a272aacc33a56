"""A run folder, for those who read it: what was started, what its steps have made, and its report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from commands.run_folder.inputs import copies
from commands.run_folder.manifest import Entry, Manifest
from commands.run_folder.places import PLACE, public_names
from commands.run_folder.sections import of_system, read_experiment
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.systems import system
from doppel.console.ledger import FILE_NAME
from doppel.errors import UserError
from doppel.files import kind_of
from doppel.run_folder import MANIFEST
from doppel.settings.yaml_files import flat, listed, read_yaml

_MARKS = {"report.json", FILE_NAME, "experiment.yaml", MANIFEST}
#: In the folder of an audit from its first moment on.
AUDIT_SETTINGS = "audit_settings.json"
#: Sections of an experiment that its trainings depend on; ``variants`` count for their own system.
_TRAINING = ("epochs", "trainer", "model", "data", "privacy", "stages", "overlays", "exact_histogram")


@dataclass(frozen=True)
class RunFolder:
    """A run folder; nothing in it need be there."""

    folder: Path

    @staticmethod
    def find(root: Path) -> Iterator[RunFolder]:
        """Yield every run at or below a folder, by name; an audit has a ledger of its own, and is no run.

        Raises:
            UserError: ``root`` is no folder.
        """
        if not root.is_dir():
            raise UserError(f"{root} is no folder: give the folder that holds the runs")
        for folder, subfolders, files in os.walk(root):
            subfolders[:] = sorted(set(subfolders) - {"code"})  # what the jobs of a run execute
            if _MARKS & set(files) and AUDIT_SETTINGS not in files:
                yield RunFolder(Path(folder))

    @cached_property
    def manifest(self) -> Manifest:
        """What the steps have made."""
        return Manifest.read(self.folder)

    @cached_property
    def experiment(self) -> Mapping[str, Any]:
        """The experiment that was started, by the names of :class:`~commands.run.experiment.experiment.Experiment`.

        Public files that are gone are the copies that the run has kept.
        """
        path = self.folder / "experiment.yaml"
        told = read_experiment(path) if path.is_file() else {}
        return told | copies(self.folder, told)

    @property
    def group(self) -> str:
        """By what its runs of Weights & Biases belong together: EXPERIMENT/RUN, of a point of a grid GRID/POINT."""
        folder = self.folder.resolve()
        first = folder.parent.name if self.experiment.get("point") else self.experiment.get("name")
        return (f"{first}/{folder.name}" if first else folder.name)[-128:]

    @property
    def reference(self) -> str | None:
        """Public file that the experiment names, with which samples are compared."""
        return self.experiment.get("reference") or self.experiment.get("compared_with")

    @property
    def is_private(self) -> bool:
        """Whether the run was to be private; a run that does not say was."""
        return self.experiment.get("epsilon") != math.inf

    @property
    def parser(self) -> str | None:
        """Checkpoint of the parser that annotated for the evaluation, and its digest; for a report."""
        words = (public_names(self.experiment.get("parser")), self.experiment.get("parser_digest"))
        return " ".join(str(word) for word in words if word) or None

    def without_folders(self, text: str) -> str:
        """Return a text for any reader: each path of the run, and of its experiment's files, becomes a name."""
        words = (word for value in flat(self.experiment).values() for word in listed(value))
        paths = {word for word in words if isinstance(word, str) and os.path.isabs(word)}
        for path in sorted(paths, key=len, reverse=True):
            text = text.replace(path, public_names(path))
        return text.replace(f"{self.folder.resolve()}/", "").replace(f"{PLACE}/", "")

    @cached_property
    def trainings(self) -> list[StageConfig]:
        """Configurations of the language models that were trained, those of the main system first."""
        made = [entry for entry in self.manifest.find("checkpoint") if entry.budget is not None]
        made.sort(key=lambda entry: not system(entry.budget or "").is_main)
        folders = [self.folder / entry.folder for entry in made if entry.folder is not None]
        return [StageConfig.read(folder) for folder in folders if (folder / "config.yaml").is_file()]

    def settings_of(self, made: Entry) -> Mapping[str, Any]:
        """Return the options of the step that made a file, by those of its command; none where they are lost."""
        with contextlib.suppress(UserError):
            return read_yaml(self.folder / "configs" / f"{made.step}.yaml")
        return {}

    @property
    def redactions(self) -> list[Mapping[str, Any]]:
        """What was hidden of private rows before they were learnt from, as the experiment or a training says."""
        given = [self.experiment.get("redact"), *(config.data.get("redact") for config in self.trainings)]
        return [redact for redact in given if redact]

    def settings(self, of: str) -> dict[str, Any]:
        """Return the settings of a system's trainings, by dotted key, without the files, which are digested."""
        experiment = of_system(self.experiment, of)
        told = flat(public_names({key: experiment.get(key) or {} for key in _TRAINING}))
        return {key: value for key, value in told.items() if not (key.startswith("data.") and key.endswith("_path"))}

    def training_settings(self, of: str, beside: Iterable[RunFolder] = ()) -> str:
        """Return the settings of a system's trainings in short: equal settings have equal texts.

        Args:
            of: The system.
            beside: Runs of the same page or table; a setting that one of them has otherwise is told in full.
        """
        told = self.settings(of)
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
        others = [run.settings(of) for run in beside if run.experiment.get("name") == self.experiment.get("name")]
        varied = {key: told.get(key) for other in others for key in {*told, *other} if other.get(key) != told.get(key)}
        return "; ".join([*(f"{key} {varied[key]}" for key in sorted(varied)), f"settings {digest}"])

    def synthetic(self, of: str) -> Path | None:
        """Return the file of a system's samples; None where no step has made any."""
        made = self.manifest.samples().get(of)
        return None if made is None else self.manifest.path(made)

    def split(self) -> dict[str, Any] | None:
        """Return how the data of an adaptation were split; None for other runs.

        Raises:
            UserError: The file that says so is not what its step made.
        """
        made = [entry for entry in self.manifest.find("data", verb="partition") if entry.path.endswith(".json")]
        for why in self.manifest.changes(made[0].path) if made else ():
            raise UserError(why)
        return read_json(self.manifest.path(made[0])) if made else None

    def report(self) -> dict[str, Any] | None:
        """Return the content of ``report.json``; None where the run did not come so far.

        Raises:
            UserError: It is not what ``python cli.py report`` made.
        """
        path = self.folder / "report.json"
        for why in self.manifest.changes(path.name, may_be_gone=True) if path.name in self.manifest.files else ():
            raise UserError(f"{why}: nothing is read from it")
        return read_json(path) if path.exists() else None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run.

    Raises:
        UserError: It holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name} is no JSON ({error}): put back a copy, or make it again") from error
    if not isinstance(content, dict):
        raise UserError(
            f"{path.name} holds {kind_of(content)}, not keys with values: put back a copy, or make it again"
        )
    return content
