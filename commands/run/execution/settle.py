"""A run folder before its first step: what binds it, and what is written down."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from commands.run.execution.code_copy import version
from commands.run.execution.slurm import Site, jobs_of, queue
from commands.run.experiment.changes import Change, changes, run_anew
from commands.run.experiment.checks import check
from commands.run.experiment.experiment import load, save
from commands.run.experiment.settings import Experiment, systems_of
from commands.run.steps.recipes import steps_of
from commands.run.steps.run_plan import RunPlan
from commands.run_folder.inputs import keep, moved, refuse_lost
from commands.run_folder.manifest_writer import (
    declaration,
    declare,
    lay_out,
    refuse_lost_ledger,
    refuse_old,
    refuse_other_data,
)
from commands.run_folder.ownership import has_begun
from commands.run_folder.sections import SECTIONS
from commands.run_folder.steps import Step
from commands.run_folder.systems import main_of
from doppel.console.ledger import FILE_NAME
from doppel.console.say import say
from doppel.errors import UserError
from doppel.files import sha256_of
from doppel.privacy.ledger import leave
from doppel.settings.yaml_files import dump

#: Fields that tell how trainings, samplings and votes run, and no more of what reads these.
_OF_TRAININGS = (*SECTIONS, "stages", "variants", "overlays", "save_every", "evolution")


def begin(experiment: Experiment, run: Path, site: Site) -> RunPlan:
    """Return what an experiment has to do in a folder, with the parser's digest and the versions of the code.

    Formal guarantees:
        What has begun keeps what binds it (:func:`~commands.run.experiment.changes.run_anew`). A step that is done runs
        anew only if nothing was trained, paid or released by it; of all others the record stays as it ran.

    Raises:
        UserError: The run was begun with other settings or private rows, or its ledger is gone.
    """
    refuse_lost_ledger(run)
    found = queue(run)
    jobs = {name: job for name, job in jobs_of(run).items() if job in found}
    is_anew = not has_begun(run) and not jobs  # what a failed start left binds nobody
    path = run / "experiment.yaml"
    parser, digest = experiment.parser, None
    if parser is not None:
        file = Path(parser)
        if not file.is_file():
            raise UserError(f"parser is {parser}, which is no file: give RUN/parser/checkpoints/last.ckpt")
        parser, digest = str(file.resolve()), sha256_of(file)[:16]
    if experiment.public_parser is not None:
        experiment = replace(experiment, public_parser=str(Path(experiment.public_parser).resolve()))
    if is_anew or not path.is_file():
        if (run / ".done").is_dir() and not is_anew:
            raise UserError(
                f"{run} was begun, but experiment.yaml, which says with what settings, is gone: restore it, or "
                "give another RUN_DIR, which spends on top of what this run has spent"
            )
        settled = replace(experiment, parser=parser, parser_digest=digest, commit=[version()])
        steps = steps_of(settled, run, site.overlays)
        return RunPlan(settled, run, steps, is_anew, frozenset(), jobs)
    refuse_old(run)
    named = load(path)
    places = moved(run, named.as_dict(), experiment.as_dict())
    old = replace(named, **places)
    if parser is None and old.parser is not None and Path(old.parser).is_file():
        parser, digest = old.parser, old.parser_digest
    if old.reference is None:  # nothing that began without one is made of one that comes later
        compared = experiment.compared or old.compared_with
        experiment = replace(experiment, reference=None, compared_with=compared)
    commits = list(dict.fromkeys([*old.commit, version()]))
    settled = replace(experiment, parser=parser, parser_digest=digest, commit=commits)
    plan = RunPlan(settled, run, steps_of(settled, run, site.overlays), is_anew, frozenset(), jobs)
    if differ := changes(old, settled):
        plan = _going_on(plan, old, differ, site.overlays)
    refuse_lost(run, settled.as_dict(), {path for step in plan.waiting for path in step.reads})
    refuse_other_data(run, plan.waiting)
    read = {path.removeprefix(f"{run}/") for path in places.values()}
    return replace(plan, changed=plan.changed | {step.name for step in plan.waiting if read.intersection(step.reads)})


def _going_on(plan: RunPlan, old: Experiment, found: Sequence[Change], more: Sequence[str]) -> RunPlan:
    """With what changed settings let run anew, and the record of what they change nothing of."""
    run, new = plan.run, plan.experiment
    marks = [mark.name for mark in (run / ".done").glob("*")]
    begun = [n for n in old.systems if (run / n).is_dir() or any(mark.startswith(f"{n}-") for mark in marks)]
    every = replace(new, systems=list(dict.fromkeys([*begun, *new.systems])))
    check(every, run / "experiment.yaml")
    whole = steps_of(every, run, more)
    others = [new.parser] if new.parser_digest != old.parser_digest else []
    again, changed = run_anew(run, steps_of(old, run, more), whole, found, plan.jobs, others)
    ours = {step.name for step in plan.steps}
    beside = [step for step in whole if step.name in again and step.name not in ours]  # of systems not named now
    steps = [*(step for step in plan.steps if step.is_once), *beside, *(s for s in plan.steps if not s.is_once)]
    plan = replace(plan, steps=steps, repeated=again, changed=changed)
    if any(step.kind in ("fit", "predict") or step.mechanisms for step in plan.waiting):
        return plan  # a release beside a training reads the total that the experiment has by then
    kept = [change for change in found if change.key[0] in _OF_TRAININGS]
    for was, now in (change.told for change in kept):
        say(f"── {now} changes nothing that is left to do: {was} stays, as it ran")
    return replace(plan, experiment=replace(new, **{change.key[0]: getattr(old, change.key[0]) for change in kept}))


def write(plan: RunPlan, overwrite: bool) -> None:
    """Write down the experiment, and the configuration of every step with the files that it will leave.

    What is written of a step that is done stays: it says what ran. A run that begins anew may have another ledger.

    Args:
        overwrite: Whether configurations may change; a run whose jobs have copied code keeps those that it has,
            unless it has not begun, or a setting of theirs has changed.
    """
    overwrite = overwrite or plan.is_anew
    folder = make_folder(plan.run / "configs")
    if plan.is_anew:
        leave(plan.run / FILE_NAME)
    path = plan.run / "experiment.yaml"
    systems = load(path).systems if path.is_file() and not plan.is_anew else []
    systems += [name for name in plan.experiment.systems if name not in systems]
    whole = replace(plan.experiment, systems=systems)
    save(whole, path)
    keep(plan.run, whole.as_dict(), plan.is_anew)
    lay_out(plan.run)
    _link_samples(plan.run, main_of(system.name for system in systems_of(whole) if system.learns))
    for step in plan.steps:
        file = folder / f"{step.name}.yaml"
        is_new = overwrite or step.name in plan.changed | plan.repeated
        is_there = file.exists() and (not step.is_once or declaration(plan.run, step.name).exists())
        if is_there and (plan.is_done(step.name) or not is_new):
            continue
        if step.name in plan.repeated:
            (plan.run / ".done" / step.name).unlink(missing_ok=True)
        if step.kind == "predict" and file.exists() and file.read_text(encoding="utf-8") != dump(step.config):
            _forget_samples(step, plan.run)
        file.write_text(dump(step.config), encoding="utf-8")
        if step.is_once:
            declare(step, plan.run)


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


def _forget_samples(step: Step, run: Path) -> None:
    """Remove what a sampling with other settings has begun or made: its texts would be mixed with the others."""
    for made in step.writes:
        for part in [run / made.path, *run.glob(f"{glob.escape(made.path)}.rank*.part")]:
            part.unlink(missing_ok=True)
