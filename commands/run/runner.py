"""Runs the steps of one run folder: here, as SLURM jobs, on paper, or only through their parser."""

from __future__ import annotations

import glob
import hashlib
import math
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from commands.run import outlook
from commands.run.checks import refuse_to_mix
from commands.run.code_copy import copy_code, version
from commands.run.experiment import load, save
from commands.run.local import minutes, run_here
from commands.run.readiness import readiness, trainings_of
from commands.run.settings import Experiment, systems_of
from commands.run.slurm import Site, queued, submit
from commands.run.sources import check_files, check_sources, read_sources
from commands.run.synthesis import steps_of
from commands.runs.manifest import declaration, declare
from commands.runs.run_folder import has_begun, hold
from commands.runs.run_record import RunRecord
from commands.runs.steps import Step
from commands.runs.yaml_files import PLACE, dump
from doppel.console.say import confirm, program, say
from doppel.errors import UserError

#: Trained weights above which a training on a CPU takes days.
_MANY_WEIGHTS = 30e6
Mode = Literal["local", "submit", "dry-run", "check"]


class Runner:
    """One experiment in one run folder.

    Args:
        experiment: What is run.
        run: The folder, which may hold a part of the run already.
        site: The cluster.
        is_verbose: Whether a run here also prints every metric, and the report with its table.

    Raises:
        UserError: The folder was begun with other settings.
    """

    def __init__(self, experiment: Experiment, run: Path, site: Site, is_verbose: bool = False) -> None:
        self.run, self.site, self.is_verbose = run, site, is_verbose
        self.python = site.python or sys.executable
        self._repeated: set[str] = set()  # done, but through another parser
        self._jobs: dict[str, str | None] = {}  # squeue is asked once for a step
        self._is_anew = not has_begun(run) and not self._waits()  # what a failed start left binds nobody
        check_sources(experiment)
        self.experiment = self._settled(experiment)
        self.steps = steps_of(self.experiment, run, site.overlays)

    def is_done(self, name: str) -> bool:
        """Whether a step has ended, and what it left counts still."""
        return name not in self._repeated and (self.run / ".done" / name).is_file()

    def _waits(self) -> bool:
        """Whether a job of the run is in the queue, with the settings that it was submitted with."""
        return any(self._queued(file.stem) is not None for file in (self.run / "configs").glob("*.json"))

    def _queued(self, name: str) -> str | None:
        """Id of the job of a step that was in the queue when this began."""
        if name not in self._jobs:
            self._jobs[name] = queued(self.run, name)
        return self._jobs[name]

    def waiting(self) -> list[Step]:
        """Steps that are not done, but for those that are done anew every time."""
        return [step for step in self.steps if step.is_once and not self.is_done(step.name)]

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
        commits = [version()]
        if path.is_file() and not self._is_anew:
            old = load(path)
            if parser is None and old.parser is not None and Path(old.parser).is_file():
                parser, digest = old.parser, old.parser_digest
            refuse_to_mix(self.run, old, replace(experiment, parser=parser, parser_digest=digest))
            if digest != old.parser_digest and digest is not None:
                self._repeated = {mark.name for mark in (self.run / ".done").glob("evaluate_*")}
            commits = list(dict.fromkeys([*old.commit, *commits]))
        elif (self.run / ".done").is_dir():
            raise UserError(
                f"{self.run} was begun, but experiment.yaml, which says with what settings, is gone: restore it, or "
                "give another RUN_DIR, which spends on top of what this run has spent"
            )
        return replace(experiment, parser=parser, parser_digest=digest, commit=commits)

    def go(self, mode: Mode, check: bool = True) -> int:
        """Run the steps.

        Args:
            mode: ``local`` here, one after the other; ``submit`` as jobs that wait for one another; ``dry-run`` prints
                what would be submitted, and writes nothing; ``check`` reads the files, parses the configuration of
                every step, and tells what each system would do and about how long its trainings would take.
            check: Whether ``submit`` checks first.

        Returns:
            Exit status.
        """
        if mode == "local":
            return self.local()
        if mode == "check":
            num_units = self._check_data()
            self.check()
            self._tell_ready(num_units)
            return 0
        if mode == "dry-run":
            self.check_files()
        elif check:
            self.check()
        self.submit(is_dry=mode == "dry-run")
        return 0

    def check_files(self) -> None:
        """Look whether the files that a training needs are there.

        Raises:
            UserError: One is not.
        """
        if self._trains():
            check_files(self.experiment)

    def local(self) -> int:
        """Run every step here, and end with what came of it."""
        self._check_data(asks=True)
        with hold(self._make(self.run)):
            return self._local()

    def _local(self) -> int:
        begin = time.time()
        self._write(overwrite=True)
        status = run_here(self.run, self.steps, self.python, self.is_verbose)
        if status:
            return status
        self._tell_result(time.time() - begin)
        return 0

    def check(self) -> None:
        """Parse the configuration of every step that would run, so that a typo never waits in a queue.

        Raises:
            UserError: The parser refuses one.
        """
        with tempfile.TemporaryDirectory() as folder:
            for step in self.waiting():
                if step.config is None or self._queued(step.name) is not None:
                    continue
                path = Path(folder) / f"{step.name}.yaml"
                path.write_text(dump(step.config), encoding="utf-8")
                reason = _refusal([step.kind, "--config", str(path), "--run_dir", str(self.run / step.name)])
                if reason:
                    reason = reason.replace(f" ({path})", "")  # which will be gone
                    raise UserError(f"{step.name} would fail, so nothing was started: {reason}")

    def submit(self, is_dry: bool) -> None:
        """Submit a job for every step that is not done, or print how; jobs wait for what they read."""
        code = self.run / "code"
        lead = "#" if is_dry else "──"
        if is_dry:
            say(f"# code is first copied to {code}, configuration to {self.run}/configs")
            for name, value in self.site.exported.items():
                say(f"export {name}={shlex.quote(value)}")
        else:
            self._check_data(asks=True)
            self._write(overwrite=copy_code(code, self.site))
            (self.run / "slurm").mkdir(exist_ok=True)
        jobs: dict[str, str] = {}
        for step in self.steps:
            if step.is_once and self.is_done(step.name):
                say(f"{lead} {step.name}: done already, skipped")
            elif (job := self._queued(step.name)) is not None:
                jobs[step.name] = job
                say(f"{lead} {step.name}: job {job} is in the queue already")
            else:
                jobs[step.name] = self._submit(step, code, jobs, is_dry)
        if not is_dry:
            say(
                f"── squeue --me shows the jobs; their output is in {self.run}/slurm. "
                "Give the command again to go on after a failure."
            )

    def _submit(self, step: Step, code: Path, jobs: Mapping[str, str], is_dry: bool) -> str:
        words = [*self.site.sbatch(step.kind, PLACE, code), f"--job-name={self.run.name}.{step.name}"]
        words.append(f"--output={self.run}/slurm/{step.name}-%j.out")
        after = [jobs[name] for name in step.needs if name in jobs]
        missing = [name for name in step.needs if name not in jobs and not self.is_done(name)]
        assert not missing, f"{step.name} stands before {missing}, which it needs"
        script = {"metrics": "tool"}.get(step.kind, step.kind)
        command = [f"{code}/slurm/{script}.sbatch", str(self._mark(step) or "-")]
        dependency = ["--kill-on-invalid-dep=yes", f"--dependency=afterok:{':'.join(after)}"] if after else []
        if not is_dry:
            return submit(step.name, [*words, *dependency, *command, *self._command(step, code)], self.run, self.site)
        variable = f"JOB_{re.sub('[^A-Za-z0-9]', '_', step.name)}"
        options = [shlex.quote(word) for word in words[1:]] + dependency  # which names variables
        lines = [*options, shlex.join(command), shlex.join(self._command(step, code))]
        say(f"{variable}=$(sbatch \\\n    " + " \\\n    ".join(lines) + ")")
        return f"${variable}"

    def _command(self, step: Step, code: Path) -> list[str]:
        return [self.python, str(code / "cli.py"), *step.argv]

    def _mark(self, step: Step) -> Path | None:
        return self.run / ".done" / step.name if step.is_once else None

    def _make(self, folder: Path) -> Path:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"RUN_DIR {self.run} cannot be made ({error.strerror}): give another folder") from error
        return folder

    def _write(self, overwrite: bool) -> None:
        """Write down the experiment, and the configuration of every step with the files that it will leave.

        Args:
            overwrite: Whether configurations may change; a run whose jobs have copied code keeps those that it has,
                unless it has not begun.
        """
        overwrite = overwrite or self._is_anew
        folder = self._make(self.run / "configs")
        for name in self._repeated:
            (self.run / ".done" / name).unlink()
        self._repeated = set()
        path = self.run / "experiment.yaml"
        systems = load(path).systems if path.is_file() and not self._is_anew else []
        asked = self.experiment.systems
        save(replace(self.experiment, systems=[*systems, *(name for name in asked if name not in systems)]), path)
        for step in self.steps:
            file = folder / f"{step.name}.yaml"
            if step.config is not None and (overwrite or not file.exists()):
                if step.kind == "predict" and file.exists() and file.read_text(encoding="utf-8") != dump(step.config):
                    self._forget_parts(step)
                file.write_text(dump(step.config), encoding="utf-8")
            is_kept = self.is_done(step.name) or not overwrite
            if step.is_once and not (is_kept and declaration(self.run, step.name).exists()):
                declare(step, self.run)

    def _forget_parts(self, step: Step) -> None:
        """Remove what a sampling with other settings has begun: its texts would be mixed with the others."""
        for made in step.writes:
            for part in self.run.glob(f"{glob.escape(made.path)}.rank*.part"):
                part.unlink()

    def _trains(self) -> bool:
        """Whether a step is left that reads private text to learn from it."""
        return any(step.kind == "fit" or step.argv[0] == "evolve" for step in self.waiting())

    def _check_data(self, asks: bool = False) -> dict[str, int]:
        """Read the user's files before anything starts, so that a bad line, or a batch that wastes ε, is found now.

        Args:
            asks: Whether to ask before ε is spent on a training that is hopeless.

        Returns:
            Path of a private file → its units.

        Raises:
            UserError: One cannot be read, or the answer is no.
        """
        self.check_files()
        if not self._trains():
            return {}
        read = read_sources(self.experiment)
        for sentence in read.notes:
            say(f"── note: {sentence}")
        hopeless = []
        for used in systems_of(self.experiment):
            ready = readiness(self.experiment, used, self.steps, read.num_units, plans=self._is_anew)
            hopeless += [used.name] if ready is not None and ready.is_hopeless else []
            drowns = outlook.advice(self.experiment, used, self.waiting(), read.num_units, self.run)
            for sentence in [*([] if ready is None else ready.warnings), *drowns]:
                say(f"── warning: {sentence}")
        if asks and hopeless and not confirm(f"── Spend ε on {' and '.join(hopeless)} all the same?"):
            raise UserError("nothing was started, and nothing was spent")
        return read.num_units

    def _tell_ready(self, num_units: Mapping[str, int]) -> None:
        """What each system would do, and about how long its trainings would take on this machine."""
        from commands.run.estimate import forecast  # and what trains

        for used in systems_of(self.experiment):
            votes = outlook.ready(self.experiment, used, self.waiting(), num_units, self.run)
            if votes is not None:
                say(votes)
                continue
            trainings = trainings_of(used, self.waiting())
            ready = readiness(self.experiment, used, self.steps, num_units, plans=True)
            if trainings and ready is not None:
                least, most, num_trained = forecast(ready.num_units, trainings, self.experiment)
                more = "" if ready.unit == "utterance" else f", as much again for each further row a {ready.unit} has"
                say(f"{ready.text}, {_range(least, most)} of training on this machine (by public rows{more})")
                if num_trained > _MANY_WEIGHTS:
                    say(
                        f"   warning  {used.name} trains {num_trained / 1e6:.0f} million weights, each with its "
                        "gradient, noise and means of the optimiser: take adapters (--set model.lora.rank=8), which "
                        "take a hundredth of that"
                    )
            else:
                why = " (how many units it has shows when it runs)" if trainings else ": nothing is left to train"
                say(f"ready: {used.name}{why}")

    def _tell_result(self, seconds: float) -> None:
        from commands.quality.run_numbers import warnings as sampling_warnings

        say(f"── {self.experiment.name} finished in {minutes(seconds)}")
        report = RunRecord(self.run).report()
        spent = ((report or {}).get("privacy") or {"systems": {}})["systems"]
        for step in self.steps if self.is_verbose else []:
            if step.kind == "fit":
                say(f"   model    {self.run / step.name / 'checkpoints' / 'last.ckpt'}")
        for used in systems_of(self.experiment):
            if used.learns:
                epsilon = spent.get(used.scope, {}).get("epsilon")
                cost = "NOT PRIVATE" if epsilon is None else f"ε {epsilon:.4g}"
                say(f"   samples  {self.run / used.synthetic} ({used.name}, {cost})")
                for sentence in sampling_warnings(RunRecord(self.run), used.name):
                    say(f"   warning  {sentence}")
        if (self.run / "report.html").is_file():
            say(f"   page     {self.run / 'report.html'}")
        card = (report or {}).get("card")
        if card is not None:
            say(f"   card     {'VERIFIED' if card['verified'] else 'NOT VERIFIED: ' + '; '.join(card['reasons'])}")
        for number, words in enumerate(self._next()):
            say(f"   {'' if number else 'next':8} {program()} {shlex.join(words)}")

    def _next(self) -> list[list[str]]:
        """Commands for what people do with a finished run, each as it can be copied."""
        run = self.run
        trained = [step.name for used in systems_of(self.experiment) for step in trainings_of(used, self.steps)]
        words = [["page", str(run)]] if (run / "report.html").is_file() else []
        if self.experiment.epsilon != math.inf:
            words.append(["verify", str(run)])
        if trained:
            words.append(["sample", str(run), "--num", "5000"])
            words.append(["export", str(run / trained[-1]), str(run.with_name(f"{run.name}-released") / trained[-1])])
        return words


def _refusal(words: list[str]) -> str | None:
    """Why the parser of the trainings refuses a command; None if it takes it."""
    import contextlib
    import io

    from commands.lightning import train

    argv = sys.argv
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            getattr(train, words[0])([*words[1:], "--print_config"])
    except SystemExit as end:
        return None if not end.code else f"status {end.code}"
    except UserError as error:
        return str(error)
    finally:
        sys.argv = argv
    return None


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _range(least: float, most: float) -> str:
    unit, name = (60, "minutes") if most < 7200 else (3600, "hours")
    low, high = max(1, round(least / unit)), max(2, math.ceil(most / unit))
    return f"{low} to {high} {name}" if most > 60 else "a minute at most"
