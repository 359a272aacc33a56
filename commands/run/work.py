"""What is to be done in one run folder: its experiment, its steps, and which of them are done or wait as jobs."""

from __future__ import annotations

import glob
import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from commands.run.checks import refuse_to_mix
from commands.run.code_copy import version
from commands.run.experiment import load, save
from commands.run.settings import Experiment, systems_of
from commands.run.slurm import Site
from commands.runs.manifest_writer import declaration, declare, lay_out, refuse_old
from commands.runs.steps import Step
from commands.runs.systems import main_of
from commands.runs.yaml_files import dump
from doppel.errors import UserError


@dataclass(frozen=True)
class Work:
    """One experiment in one run folder.

    Attributes:
        experiment: What is run, with the parser's digest and the versions of the code.
        run: The folder, which may hold a part of the run already.
        site: The cluster.
        steps: In an order in which they can be run.
        is_anew: Whether nothing binds the run to settings that were given before.
        repeated: Steps that are done, but through another parser.
        jobs: Step → id of its job that was in the queue when this began.
    """

    experiment: Experiment
    run: Path
    site: Site
    steps: list[Step]
    is_anew: bool
    repeated: frozenset[str]
    jobs: Mapping[str, str]

    @property
    def python(self) -> str:
        """The interpreter of the steps."""
        return self.site.python or sys.executable

    def is_done(self, name: str) -> bool:
        """Return whether a step has ended and its files still count."""
        return name not in self.repeated and (self.run / ".done" / name).is_file()

    @property
    def waiting(self) -> list[Step]:
        """Steps that are not done, but for those that are done anew every time."""
        return [step for step in self.steps if step.is_once and not self.is_done(step.name)]


def settle(experiment: Experiment, run: Path, is_anew: bool) -> tuple[Experiment, frozenset[str]]:
    """Settle the parser's digest and the code's versions of an experiment; also return the steps that it repeats.

    Raises:
        UserError: The run was begun with other settings.
    """
    path, repeated = run / "experiment.yaml", frozenset[str]()
    parser, digest = experiment.parser, None
    if parser is not None:
        file = Path(parser)
        if not file.is_file():
            raise UserError(f"parser is {parser}, which is no file: give RUN/parser/checkpoints/last.ckpt")
        parser, digest = str(file.resolve()), _digest(file)
    if experiment.public_parser is not None:
        experiment = replace(experiment, public_parser=str(Path(experiment.public_parser).resolve()))
    commits = [version()]
    if path.is_file() and not is_anew:
        refuse_old(run)
        old = load(path)
        if parser is None and old.parser is not None and Path(old.parser).is_file():
            parser, digest = old.parser, old.parser_digest
        refuse_to_mix(run, old, replace(experiment, parser=parser, parser_digest=digest))
        if digest != old.parser_digest and digest is not None:
            repeated = frozenset(mark.name for mark in (run / ".done").glob("*-evaluate"))
        commits = list(dict.fromkeys([*old.commit, *commits]))
    elif (run / ".done").is_dir():
        raise UserError(
            f"{run} was begun, but experiment.yaml, which says with what settings, is gone: restore it, or "
            "give another RUN_DIR, which spends on top of what this run has spent"
        )
    return replace(experiment, parser=parser, parser_digest=digest, commit=commits), repeated


def write(work: Work, overwrite: bool) -> None:
    """Write down the experiment, and the configuration of every step with the files that it will leave.

    Args:
        work: What is to be done.
        overwrite: Whether configurations may change; a run whose jobs have copied code keeps those that it has,
            unless it has not begun.
    """
    overwrite = overwrite or work.is_anew
    folder = make_folder(work.run / "configs")
    for name in work.repeated:
        (work.run / ".done" / name).unlink(missing_ok=True)
    path = work.run / "experiment.yaml"
    systems = load(path).systems if path.is_file() and not work.is_anew else []
    systems += [name for name in work.experiment.systems if name not in systems]
    whole = replace(work.experiment, systems=systems)
    save(whole, path)
    lay_out(work.run)
    _link_samples(work.run, main_of(system.name for system in systems_of(whole) if system.learns))
    for step in work.steps:
        file = folder / f"{step.name}.yaml"
        if overwrite or not file.exists():
            if step.kind == "predict" and file.exists() and file.read_text(encoding="utf-8") != dump(step.config):
                _forget_parts(step, work.run)
            file.write_text(dump(step.config), encoding="utf-8")
        is_kept = work.is_done(step.name) or not overwrite
        if step.is_once and not (is_kept and declaration(work.run, step.name).exists()):
            declare(step, work.run)


def _link_samples(run: Path, system: str) -> None:
    """Let ``RUN/synthetic.jsonl`` lead to the samples of the main system, or of the only one, once they are made.

    What else bears that name is left as it is: :func:`commands.privacy.verify.card` tells of it.
    """
    link, target = run / "synthetic.jsonl", os.path.join(system, "samples.jsonl")
    if system and (link.is_symlink() or not link.exists()):
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def make_folder(folder: Path) -> Path:
    """Create a folder of the run, for its owner alone, and return it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"RUN_DIR: {folder} cannot be made ({error.strerror}): give another folder") from error
    return folder


def _forget_parts(step: Step, run: Path) -> None:
    """Remove what a sampling with other settings has begun: its texts would be mixed with the others."""
    for made in step.writes:
        for part in run.glob(f"{glob.escape(made.path)}.rank*.part"):
            part.unlink()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
