"""What a run folder holds. Reports, tables and choices read it here; nobody else parses its files."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from commands.pipeline.experiment import load, shipped
from commands.pipeline.system import candidates_of, pool_of
from commands.pipeline.systems import SYSTEMS, in_order, system
from commands.pipeline.yaml_files import flat, read_yaml
from doppel.errors import UserError

if TYPE_CHECKING:
    from doppel.privacy.spec import PrivacyArguments

_MARKS = {"report.json", "ledger.jsonl", "experiment.yaml", "settings.env"}
#: Sections of an experiment that its trainings depend on; ``variants`` count for their own system.
_TRAINING = ("epochs", "trainer", "model", "data", "privacy", "stages", "overlays", "overrides", "exact_histogram")
#: Sections of an experiment that the draw from an over-sample depends on.
_SHARES = ("calibration", "public_parser", "topics")


@dataclass(frozen=True)
class StageConfig:
    """The configuration of one training or sampling, as it ran."""

    content: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, name: str = "config.yaml") -> StageConfig:
        """Read the ``config.yaml`` of a stage that trained, or the ``predict.yaml`` of one that sampled."""
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: give the folder of a stage that ran")
        return cls(read_yaml(folder / name))

    @property
    def model(self) -> dict[str, Any]:
        """Arguments of the model."""
        return _arguments(self.content.get("model"))

    @property
    def data(self) -> dict[str, Any]:
        """Arguments of the data module."""
        return _arguments(self.content.get("data"))

    @property
    def privacy(self) -> PrivacyArguments | None:
        """Arguments of DP-SGD; None for a training that is not private. Older files hold them in a callback."""
        from doppel.privacy.spec import PrivacyArguments

        given = self.content.get("privacy") or next(iter(self.of_trainer("callbacks", "DifferentialPrivacy")), None)
        if given is None:
            return None
        known = {field.name for field in fields(PrivacyArguments)}
        return PrivacyArguments(**{k: v for k, v in {"target_epsilon": 8.0, **given}.items() if k in known})

    def of_trainer(self, name: str, kind: str = "") -> list[dict[str, Any]]:
        """Arguments of the ``callbacks`` or the ``logger`` whose class is called ``…kind``."""
        found = (self.content.get("trainer") or {}).get(name) or []
        entries = [entry for entry in (found if isinstance(found, list) else [found]) if isinstance(entry, dict)]
        return [_arguments(entry) for entry in entries if str(entry.get("class_path")).endswith(kind)]

    def fingerprint(self) -> str:
        """Fingerprint of the turns that it trained on, taken anew.

        Raises:
            DataError: The file is gone, or a variable in its path is not set.
        """
        from datamodules.columns import Columns
        from datamodules.readers import data_fingerprint, expand_path
        from datamodules.selection import Selection

        selection, columns = Selection.from_config(self.data), Columns.from_config(self.data)
        return data_fingerprint(expand_path(self.data["train_path"]), selection, columns)


@dataclass(frozen=True)
class Pass:
    """One sampling that ran.

    Attributes:
        folder: Its own.
        output: Name of the file that it wrote.
        system: Whose samples, or trees, these are; None where the name tells of no system.
        config: As it ran.
        checkpoint: Whose weights it sampled from; None where it does not say.
    """

    folder: Path
    output: str
    system: str | None
    config: StageConfig
    checkpoint: Path | None


@dataclass(frozen=True)
class RunRecord:
    """A run folder, whether ``cli.py run`` made it or the scripts before it; nothing in it need be there."""

    folder: Path

    @staticmethod
    def find(root: Path) -> Iterator[RunRecord]:
        """Every run at or below a folder, by name.

        Raises:
            UserError: ``root`` is no folder.
        """
        if not root.is_dir():
            raise UserError(f"{root} is no folder: give the folder that holds the runs")
        for folder, subfolders, files in os.walk(root):
            subfolders[:] = sorted(set(subfolders) - {"code"})  # what the jobs of a run execute
            if _MARKS & set(files) or ".done" in subfolders:
                yield RunRecord(Path(folder))

    @cached_property
    def experiment(self) -> Mapping[str, Any]:
        """The experiment that was started, by the names of :class:`~commands.pipeline.experiment.Experiment`."""
        if (self.folder / "experiment.yaml").is_file():
            return read_yaml(self.folder / "experiment.yaml")
        try:
            return _old_experiment(self.folder / "settings.env")
        except (OSError, ValueError) as error:
            raise UserError(f"{self.folder / 'settings.env'} cannot be read: {error}") from error

    @property
    def is_private(self) -> bool:
        """Whether the run was to be private; a run that does not say was."""
        return self.experiment.get("epsilon") != math.inf

    @property
    def parser(self) -> str | None:
        """Checkpoint of the parser that annotated for the evaluation, and its digest."""
        words = (self.experiment.get("parser"), self.experiment.get("parser_digest"))
        return " ".join(str(word) for word in words if word) or None

    @cached_property
    def trainings(self) -> list[StageConfig]:
        """Configurations of the language models that were trained, the tree model first."""
        folders = [path.parent for path in self.folder.glob("*/config.yaml")]
        folders.sort(key=lambda folder: (folder.name != "parse_tree", folder.name))
        return [StageConfig.read(folder) for folder in folders if not folder.name.startswith("parser_")]

    def training_settings(self, of: str) -> str:
        """The settings that the trainings of a system had, in short: equal settings have equal texts."""
        experiment = self.experiment
        if "old" in experiment:
            return str(experiment["old"])
        told = {key: experiment.get(key) for key in _TRAINING} | {"own": (experiment.get("variants") or {}).get(of)}
        told["data"] = {k: v for k, v in (told["data"] or {}).items() if not k.endswith("_path")}  # has a fingerprint
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
        given = {key.rsplit(".", 1)[-1]: value for key, value in flat(experiment.get("overrides") or {}).items()}
        shown = [f"{name} {value}" for name, value in given.items() if not name.endswith("_path")]
        return "; ".join([*shown, f"settings {digest}"])

    def sampling(self, of: str) -> dict[str, dict[str, Any]]:
        """How a system was sampled: file of trees or utterances → arguments of the sampling that wrote it.

        Without seed and ``max_rows``, on which the distribution does not depend.
        """
        found: dict[str, dict[str, Any]] = {}
        for each in self.passes():
            settings = each.config.model.get("sampling") or {}
            found[each.output] = {name: v for name, v in settings.items() if name not in ("seed", "max_rows")}
        sampled = self._sampled(of)
        for name in [name for name in sampled if pool_of(name) in found]:
            told = {key: self.experiment.get(key) for key in _SHARES if key in self.experiment}
            found[name] = found[pool_of(name)] | told
        candidates = candidates_of(sampled[-1])
        if candidates in found:  # of which a parser or an encoder chose
            by = "label_words" if of == "domain" else "public_parser"
            chosen = {name: self.experiment.get(name) for name in ("candidates", by)}
            found[sampled[-1]] = found[candidates] | chosen
        return {name: found[name] for name in sampled if name in found}

    def passes(self) -> list[Pass]:
        """The samplings that ran, of language models; annotations by a parser are none."""
        found = []
        for path in sorted(self.folder.glob("*/predict.yaml")):
            config = StageConfig.read(path.parent, path.name)
            if str((config.content.get("model") or {}).get("class_path")).endswith("SemanticParser"):
                continue
            outputs = (arguments.get("output_path") for arguments in config.of_trainer("callbacks"))
            for output in (Path(output).name for output in outputs if output):
                checkpoint = self._checkpoint(config.content.get("ckpt_path"), path.parent)
                found.append(Pass(path.parent, output, self._writer_of(output), config, checkpoint))
        return found

    def _checkpoint(self, given: str | None, folder: Path) -> Path | None:
        """The file that a ``ckpt_path`` names; the one of that name in this folder where the run was moved."""
        if not given:
            return None
        path = Path(os.path.expandvars(given))
        if given == "last":
            path = folder / "checkpoints" / "last.ckpt"
        own = self.folder.joinpath(*path.parts[-3:])
        return own if own.is_file() and not path.is_file() else path

    def _writer_of(self, output: str) -> str | None:
        """The system whose file it is."""
        for name in dict.fromkeys((*SYSTEMS, *(self.experiment.get("systems") or ()))):
            for file in self._sampled(name):
                if output in (file, pool_of(file), candidates_of(file)):
                    return name
        return None

    def draws(self, of: str) -> dict[str, dict[str, int]]:
        """What a system's models drew: file → number of samples, of texts, of those dropped, by reason, ….

        Older runs dropped nothing and know the samples alone.
        """
        prefixes = ("synthetic/num_", "synthetic/dropped/")
        sampled = {name: (name, pool_of(name), candidates_of(name)) for name in self._sampled(of)}
        found = {
            name: next((told for file in files if (told := _json(self.folder / f"{file}.metrics.json"))), None)
            for name, files in sampled.items()
        }
        return {
            name: {key.removeprefix("synthetic/"): n for key, n in metrics.items() if key.startswith(prefixes)}
            for name, metrics in found.items()
            if metrics is not None
        }

    def _sampled(self, of: str) -> list[str]:
        """Files that a system's models write: trees, if it has them, and samples."""
        known = system(of)
        return [file for file in (known.prompts if known.has_trees else None, known.synthetic) if file]

    def calibration(self, of: str) -> dict[str, Any] | None:
        """How the trees or utterances of a system were drawn from an over-sample; None where they were not."""
        found = (_json(self.folder / f"{name}.calibration.json") for name in self._sampled(of))
        return next(filter(None, found), None)

    def stage_seconds(self) -> dict[str, int]:
        """Seconds of each finished stage, in the order they ended; a mark that was made by hand holds no number."""
        marks = [*self.folder.glob(".done/*"), *self.folder.glob(".adaptation/*")]  # the latter of older runs
        marks.sort(key=lambda file: file.stat().st_mtime)
        return {file.name: int(text) for file in marks if (text := file.read_text().strip()).isdigit()}

    def values(self, kind: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """What was measured of each system, and why the rest is not there.

        Args:
            kind: ``evaluation`` of the samples, or ``parser_metrics`` of the parsers that they taught.
        """
        values, problems = {}, {}
        files = {path.stem: path for path in (self.folder / kind).glob("*.json")}
        for name in in_order(files):
            try:
                values[name] = _json(files[name]) or {}
            except UserError as error:
                problems[name] = f"{kind}/{error}"
        if kind == "evaluation":
            missing = [name for name in self.experiment.get("systems") or () if name not in files]
            problems |= {name: f"half-done: it has no {kind}" for name in missing if system(name).learns}
        return values, problems

    def split(self) -> dict[str, Any] | None:
        """How the data of an adaptation were split; None for other runs."""
        return _json(self.folder / "data" / "partition.json")

    def report(self) -> dict[str, Any] | None:
        """``report.json``; None where the run did not come so far."""
        return _json(self.folder / "report.json")

    def synthetic(self, of: str) -> Path:
        """File of a system's samples, which may not be there."""
        return self.folder / system(of).synthetic

    def wandb(self) -> tuple[Literal["online", "offline"], str] | None:
        """Whether its stages logged to W&B online, and to which project; None: they did not log."""
        online = any(self.folder.glob("*/wandb/run-*"))
        if not online and not any(self.folder.glob("*/wandb/offline-run-*")):
            return None
        loggers = (logger for config in self.trainings for logger in config.of_trainer("logger", "WandbLogger"))
        return "online" if online else "offline", next((str(logger["project"]) for logger in loggers), "doppel")


@cache
def table_of(name: str) -> str | None:
    """The table that a shipped experiment names; older runs do not say it themselves."""
    try:
        return load(shipped(name)).table
    except UserError:
        return None


def _old_experiment(path: Path) -> dict[str, Any]:
    """What older runs were started with: lines ``KEY=VALUE``, of which COMMIT may stand several times."""
    if not path.is_file():
        return {"old": ""}
    lines = [line.partition("=") for line in path.read_text(encoding="utf-8").splitlines()]
    told = {key: value for key, _, value in lines if value}
    return {
        "name": told.get("EXPERIMENT"),
        "table": table_of(told["EXPERIMENT"]) if "EXPERIMENT" in told else None,
        "epsilon": float(told["EPSILON"]) if "EPSILON" in told else None,
        "seed": int(told["SEED"]) if "SEED" in told else None,
        "num_samples": int(told["NUM_SAMPLES"]) if "NUM_SAMPLES" in told else None,
        "reference": told.get("REFERENCE"),
        "parser": told.get("PARSER"),
        "commit": [value for key, _, value in lines if key == "COMMIT"],
        "old": "; ".join(f"{key} {told[key]}" for key in ("EPOCHS", "FIT_ARGS") if key in told),
    }


def _json(path: Path) -> dict[str, Any] | None:
    """A file of ours, None where there is none."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name} is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path.name} holds {type(content).__name__}, not keys with values")
    return content


def _arguments(part: Any) -> dict[str, Any]:
    """``init_args`` of a class in a configuration."""
    return (part.get("init_args") or {}) if isinstance(part, dict) else {}
