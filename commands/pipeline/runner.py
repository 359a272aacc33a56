"""Runs the stages of one run folder: here, as SLURM jobs, on paper, or only through their parser."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from commands.pipeline.experiment import load, save
from commands.pipeline.manifest import declaration, declare
from commands.pipeline.run_folder import hold
from commands.pipeline.run_record import RunRecord
from commands.pipeline.run_stage import run_stage
from commands.pipeline.settings import Experiment
from commands.pipeline.slurm import Site
from commands.pipeline.sources import check_sources, read_sources
from commands.pipeline.steps import Step
from commands.pipeline.synthesis import steps_of
from commands.pipeline.systems import systems_of
from commands.pipeline.yaml_files import ROOT, differences
from doppel.errors import UserError

Mode = Literal["local", "submit", "dry-run", "check"]
#: Where commands run: relative paths of data and models start here, also for code that was copied into a run folder.
PLACE = Path.cwd() if (ROOT / "COMMIT").is_file() else ROOT
#: Fields of an experiment that may change while its run goes on.
_FREE = (
    "save_every",
    "systems",
    "overlays",
    "supported",
    "parser",
    "parser_digest",
    "table",
    "environment",
    "commit",
)
#: New files of these kinds are code; others may be data.
_SOURCE = (".py", ".sh", ".sbatch", ".yaml")
#: Rough seconds of the kinds, from which the time left is guessed.
_WEIGHTS = {"fit": 4.0, "predict": 3.0, "metrics": 3.0, "tool": 0.5}


class Runner:
    """One experiment in one run folder.

    Args:
        experiment: What is run.
        run: The folder, which may hold a part of the run already.
        site: The cluster.

    Raises:
        UserError: The folder was begun with other settings, or by an earlier version.
    """

    def __init__(self, experiment: Experiment, run: Path, site: Site) -> None:
        self.run, self.site = run, site
        self.python = site.python or sys.executable
        self._repeated: set[str] = set()  # done, but through another parser
        check_sources(experiment)
        self.experiment = self._settled(experiment)
        self.stages = steps_of(self.experiment, run, site.overlays)

    def is_done(self, name: str) -> bool:
        """Whether a stage has ended, and what it left counts still."""
        return name not in self._repeated and (self.run / ".done" / name).is_file()

    def waiting(self) -> list[Step]:
        """Stages that are not done, but for those that are done anew every time."""
        return [stage for stage in self.stages if stage.is_once and not self.is_done(stage.name)]

    def _settled(self, experiment: Experiment) -> Experiment:
        """The experiment with the parser's digest and the versions of the code; refuses to mix settings."""
        path = self.run / "experiment.yaml"
        parser, digest = experiment.parser, None
        if parser is not None:
            file = Path(parser)
            if not file.is_file():
                raise UserError(f"parser is {parser}, which is no file: give RUN/parser/checkpoints/last.ckpt")
            parser, digest = str(file.resolve()), _digest(file)
        if experiment.public_parser is not None:
            experiment = replace(experiment, public_parser=str(Path(experiment.public_parser).resolve()))
        commit = [_commit()]
        if path.is_file():
            old = load(path)
            if parser is None and old.parser is not None and Path(old.parser).is_file():
                parser, digest = old.parser, old.parser_digest
            self._refuse_to_mix(old, replace(experiment, parser=parser, parser_digest=digest))
            if digest != old.parser_digest and digest is not None:
                self._repeated = {mark.name for mark in (self.run / ".done").glob("evaluate_*")}
            commit = [*old.commit, *(version for version in commit if version not in old.commit)]
        elif (self.run / ".done").is_dir() or (self.run / "settings.env").exists():
            raise UserError(
                f"{self.run} was begun by an earlier version, whose settings this one does not read: "
                "finish it with the code of that version, or give another RUN_DIR, which spends on top of what it spent"
            )
        return replace(experiment, parser=parser, parser_digest=digest, commit=commit)

    def _refuse_to_mix(self, old: Experiment, new: Experiment) -> None:
        ours, theirs = old.as_dict(), new.as_dict()
        free = _FREE if new.adaptation is None else tuple(name for name in _FREE if name != "parser_digest")
        begun = {*old.systems, *(stage for used in systems_of(old) for stage in used.stages)}
        for key, was, now in differences(ours, theirs):
            words = key.split(".")
            is_new = words[0] in ("variants", "stages") and words[1] not in {*ours.get(words[0], {}), *begun}
            if words[0] in free or is_new:
                continue
            raise UserError(
                f"{self.run} was started with {key}={_shown(was)}, now {key}={_shown(now)} is asked: "
                "restore it, or give another RUN_DIR, which spends on top of what this run has spent"
            )

    def go(self, mode: Mode, check: bool = True) -> int:
        """Run the stages.

        Args:
            mode: ``local`` here, one after the other; ``submit`` as jobs that wait for one another; ``dry-run`` prints
                what would be submitted, and writes nothing; ``check`` parses the configuration of every stage.
            check: Whether ``submit`` checks first.

        Returns:
            Exit status.
        """
        if mode == "local":
            return self.local()
        if mode == "check" or (mode == "submit" and check):
            self.check()
        if mode != "check":
            self.submit(is_dry=mode == "dry-run")
        return 0

    def local(self) -> int:
        """Run every stage here, and end with what came of it."""
        self._check_data()
        with hold(self._make(self.run)):
            return self._local()

    def _local(self) -> int:
        begin = time.time()
        self._write(overwrite=True)
        total = sum(self._weight(stage) for stage in self.stages if not self.is_done(stage.name))
        spent = 0.0
        for number, stage in enumerate(self.stages, 1):
            head = f"── {stage.name} ({number} of {len(self.stages)})"
            if stage.is_once and self.is_done(stage.name):
                _say(f"{head}: done already, skipped")
                continue
            left = f", {_minutes((time.time() - begin) / spent * (total - spent))} left" if spent else ""
            _say(f"{head}: {_WHAT[stage.kind]}{left}")
            started = time.time()
            output = subprocess.DEVNULL if stage.kind == "metrics" else None  # the report shows it
            status = run_stage(stage.kind, self._mark(stage), self._command(stage, ROOT), PLACE, output)
            if status:
                why = {75: "was preempted", 130: "was interrupted"}.get(status, f"failed with status {status}")
                sys.stderr.write(f"error: {stage.name} {why}; the same command goes on from there\n")
                return status
            spent += self._weight(stage)
            _say(f"   {stage.name}: {_minutes(time.time() - started)}")
        self._tell_result(time.time() - begin)
        return 0

    def check(self) -> None:
        """Parse the configuration of every stage that would run, so that a typo never waits in a queue.

        Raises:
            UserError: The parser refuses one.
        """
        with tempfile.TemporaryDirectory() as folder:
            for stage in self.waiting():
                if stage.config is None or queued(self.run, stage.name) is not None:
                    continue
                path = Path(folder) / f"{stage.name}.yaml"
                path.write_text(_dump(stage.config), encoding="utf-8")
                reason = _refusal([stage.kind, "--config", str(path), "--run_dir", str(self.run / stage.name)])
                if reason:
                    raise UserError(f"{stage.name} would fail, so nothing was started: {reason}")

    def submit(self, is_dry: bool) -> None:
        """Submit a job for every stage that is not done, or print how; jobs wait for what they read."""
        code = self.run / "code"
        lead = "#" if is_dry else "──"
        if is_dry:
            _say(f"# code is first copied to {code}, configuration to {self.run}/configs")
            for name, value in self.site.exported.items():
                _say(f"export {name}={shlex.quote(value)}")
        else:
            self._check_data()
            self._write(overwrite=snapshot(code, self.site))
            (self.run / "slurm").mkdir(exist_ok=True)
        jobs: dict[str, str] = {}
        for stage in self.stages:
            if stage.is_once and self.is_done(stage.name):
                _say(f"{lead} {stage.name}: done already, skipped")
            elif (job := queued(self.run, stage.name)) is not None:
                jobs[stage.name] = job
                _say(f"{lead} {stage.name}: job {job} is in the queue already")
            else:
                jobs[stage.name] = self._submit(stage, code, jobs, is_dry)
        if not is_dry:
            _say(
                f"── squeue --me shows the jobs; their output is in {self.run}/slurm. "
                "Give the command again to go on after a failure."
            )

    def _submit(self, stage: Step, code: Path, jobs: Mapping[str, str], is_dry: bool) -> str:
        words = [*self.site.sbatch(stage.kind, PLACE, code), f"--job-name={stage.name}"]
        words.append(f"--output={self.run}/slurm/%x-%j.out")
        after = [jobs[name] for name in stage.needs if name in jobs]
        missing = [name for name in stage.needs if name not in jobs and not self.is_done(name)]
        assert not missing, f"{stage.name} stands before {missing}, which it needs"
        script = {"metrics": "tool"}.get(stage.kind, stage.kind)
        command = [f"{code}/slurm/{script}.sbatch", str(self._mark(stage) or "-")]
        dependency = ["--kill-on-invalid-dep=yes", f"--dependency=afterok:{':'.join(after)}"] if after else []
        if not is_dry:
            return submit(stage.name, [*words, *dependency, *command, *self._command(stage, code)], self.run, self.site)
        variable = f"JOB_{re.sub('[^A-Za-z0-9]', '_', stage.name)}"
        options = [shlex.quote(word) for word in words[1:]] + dependency  # which names variables
        lines = [*options, shlex.join(command), shlex.join(self._command(stage, code))]
        _say(f"{variable}=$(sbatch \\\n    " + " \\\n    ".join(lines) + ")")
        return f"${variable}"

    def _command(self, stage: Step, code: Path) -> list[str]:
        return [self.python, str(code / "cli.py"), *stage.argv]

    def _mark(self, stage: Step) -> Path | None:
        return self.run / ".done" / stage.name if stage.is_once else None

    def _weight(self, stage: Step) -> float:
        epochs = (stage.config or {}).get("trainer", {}).get("max_epochs", 1) if stage.kind == "fit" else 1
        return _WEIGHTS[stage.kind] * float(epochs)

    def _make(self, folder: Path) -> Path:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"RUN_DIR {self.run} cannot be made ({error.strerror}): give another folder") from error
        return folder

    def _write(self, overwrite: bool) -> None:
        """Write down the experiment, and the configuration of every stage with the files that it will leave.

        Args:
            overwrite: Whether configurations may change; a run whose jobs have copied code keeps those that it has.
        """
        folder = self._make(self.run / "configs")
        for name in self._repeated:
            (self.run / ".done" / name).unlink()
        self._repeated = set()
        path = self.run / "experiment.yaml"
        systems = load(path).systems if path.is_file() else []
        own = self.experiment.systems
        save(replace(self.experiment, systems=[*systems, *(name for name in own if name not in systems)]), path)
        for stage in self.stages:
            file = folder / f"{stage.name}.yaml"
            if stage.config is not None and (overwrite or not file.exists()):
                file.write_text(_dump(stage.config), encoding="utf-8")
            is_kept = self.is_done(stage.name) or not overwrite
            if stage.is_once and not (is_kept and declaration(self.run, stage.name).exists()):
                declare(stage, self.run)

    def _check_data(self) -> None:
        """Read the user's files before anything starts, so that a bad line is found now.

        Raises:
            UserError: One cannot be read.
        """
        if any(stage.kind == "fit" for stage in self.waiting()):
            for sentence in read_sources(self.experiment):
                _say(f"── note: {sentence}")

    def _tell_result(self, seconds: float) -> None:
        trained = [stage.name for stage in self.stages if stage.kind == "fit"]
        _say(f"── {self.experiment.name} finished in {_minutes(seconds)}")
        _say(f"   models   {self.run}/{{{','.join(trained)}}}/checkpoints/last.ckpt")
        for used in systems_of(self.experiment):
            if used.learns:
                _say(f"   samples  {self.run / used.synthetic}")
        report = RunRecord(self.run).report()
        if report is not None:
            spent = report["privacy"]["systems"] if report["privacy"] else {}
            told = ", ".join(
                f"{name} {'NOT PRIVATE' if values['epsilon'] is None else format(values['epsilon'], '.4g')}"
                for name, values in spent.items()
            )
            _say(f"   ε spent  {told or 'NOT PRIVATE: the run has epsilon inf'}")
        if (self.run / "report.html").is_file():
            _say(f"   page     {self.run / 'report.html'}")
        if report is not None:
            _say(f"   next     python cli.py results {self.run}, or the same command with other --systems")


_WHAT = {"fit": "training", "predict": "sampling", "metrics": "comparing", "tool": "a moment"}


def queued(run: Path, name: str) -> str | None:
    """Id of a job of an earlier submission that is in the queue still."""
    path = run / "slurm" / f"{name}.job"
    if not path.is_file() or shutil.which("squeue") is None:
        return None
    job = path.read_text(encoding="utf-8").strip()
    command = ["squeue", "--noheader", "--format=%i", f"--jobs={job}"]
    answer = subprocess.run(command, capture_output=True, text=True)
    said = (answer.stdout + answer.stderr).strip()
    if answer.returncode and "Invalid job id" not in said:
        raise UserError(f"squeue does not say whether job {job} is in the queue: {said}")
    return job if answer.returncode == 0 and said else None


def submit(name: str, words: Sequence[str], run: Path, site: Site) -> str:
    """Submit a job and write its id down; the id.

    Raises:
        UserError: sbatch refused it.
    """
    environment = {**os.environ, **site.exported}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise UserError(
            f"sbatch refused {name}; give the command again once this is mended: what is in the queue stays there"
        )
    job = done.stdout.strip().split(";")[0]
    (run / "slurm" / f"{name}.job").write_text(f"{job}\n", encoding="utf-8")
    _say(f"── {name}: job {job}")
    return job


def snapshot(folder: Path, site: Site) -> bool:
    """Copy the code, so that a job that waits or is requeued runs what was submitted.

    Weights (models/) and data stay where they are.

    Args:
        folder: Where to; what is there already is kept.
        site: The cluster, which tasks of an array read there.

    Returns:
        Whether it was copied now.
    """
    if folder.is_dir():
        _say(f"── code: {folder} is kept, for the run began with it; delete the folder to go on with the present code")
        return False
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in _code_files():
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, partial / name, follow_symlinks=False)
    (partial / "slurm" / "site.yaml").write_text(_dump(asdict(site)), encoding="utf-8")
    (partial / "COMMIT").write_text(f"{_commit()}\n", encoding="utf-8")
    partial.rename(folder)
    _say(f"── code: copied to {folder}, from where the jobs run it")
    return True


def _code_files() -> list[str]:
    """What git tracks, and new source, which is named; without git, all but what is never code.

    Other new files stay where they are: a run folder is handed on, and they may be private data.
    """
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--exclude-standard", "-z"]
        found = []
        for which in ("--cached", "--others"):
            words = [*command, which, "--", ".", ":!models", ":!.venv"]
            names = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
            found.append([name for name in names if name and (ROOT / name).exists()])
        new = [name for name in found[1] if Path(name).suffix in _SOURCE]
        if new:
            _say(f"── code: with {', '.join(new)}, which git does not track")
        return [*found[0], *new]
    left_out, names = {".git", ".venv", "__pycache__"}, []
    for place, folders, files in os.walk(ROOT):
        top = Path(place) == ROOT
        folders[:] = [f for f in folders if f not in left_out and not (top and f in ("runs", "data", "models"))]
        names += [str((Path(place) / file).relative_to(ROOT)) for file in files]
    return names


def _refusal(words: list[str]) -> str | None:
    """Why the parser of the trainings refuses a command; None if it takes it."""
    import contextlib
    import io

    from commands.lightning import train

    given = sys.argv
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(train, words[0])([*words[1:], "--print_config"])
    except SystemExit as end:
        return None if not end.code else f"status {end.code}"
    except UserError as error:
        return str(error)
    finally:
        sys.argv = given
    return None


def _commit() -> str:
    if (ROOT / "COMMIT").is_file():
        return (ROOT / "COMMIT").read_text(encoding="utf-8").strip()
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude", "*", "--dirty=+dirty"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _dump(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=120)


def _shown(value: Any) -> str:
    return "(none)" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
