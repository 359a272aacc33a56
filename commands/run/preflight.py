"""What is said and refused before a run spends anything: missing files, bad lines, typos, a waste of ε."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path

from commands.run.settings import systems_of
from commands.run.sources import check_files, read_sources
from commands.run.together import together
from commands.run.training_plan import Readiness, outlook, readiness
from commands.run.work import Work
from commands.runs.yaml_files import dump
from doppel.console.say import confirm, say
from doppel.errors import UserError
from doppel.evolution.budget import Outlook


def check_that_files_are_there(work: Work) -> bool:
    """Look whether the files that a training needs are there; whether anything is left to learn.

    Raises:
        UserError: One is not.
    """
    learns = any(step.kind == "fit" or step.command == "evolve" for step in work.waiting)
    if learns:
        check_files(work.experiment)
    return learns


def check_data(work: Work, asks: bool = False) -> dict[str, Readiness | Outlook]:
    """Read the user's files before anything starts, so that a bad line, or a batch that wastes ε, is found now.

    Args:
        work: What is to be done.
        asks: Whether to ask before ε is spent on a training that is hopeless; else σ is planned anew of a run that has
            begun.

    Returns:
        System → what it is about to do; without those that train nothing or whose units nobody has counted.

    Raises:
        UserError: One cannot be read, or the answer is no.
    """
    if not check_that_files_are_there(work):
        return {}
    read = read_sources(work.experiment)
    for sentence in read.notes:
        say(f"── note: {sentence}")
    plans: dict[str, Readiness | Outlook] = {}
    for system in systems_of(work.experiment):
        ready = readiness(work.experiment, system, work.steps, read.num_units, work.is_anew or not asks)
        votes = None if ready else outlook(work.experiment, system, work.waiting, read.num_units, work.run)
        if (plan := ready or votes) is not None:
            plans[system.name] = plan
        if ready and ready.note and not asks:
            say(f"── note: {ready.note}")
        warnings = ready.warnings if ready else []
        if votes is not None and votes.advice is not None:
            warnings = [f"{system.name}: {votes.advice}"]
        for sentence in warnings:
            say(f"── warning: {sentence}")
    if (told := together(work, plans)) is not None:
        say(f"── note: {told}")
    hopeless = [name for name, plan in plans.items() if isinstance(plan, Readiness) and plan.is_hopeless]
    if asks and hopeless and not confirm(f"── Spend ε on {' and '.join(hopeless)} all the same?"):
        raise UserError("nothing was started, and nothing was spent")
    return plans


def check_configs(work: Work) -> None:
    """Parse the configuration of every training and sampling that would run, so that a typo never waits in a queue.

    Raises:
        UserError: The parser refuses one.
    """
    with tempfile.TemporaryDirectory() as folder:
        for step in work.waiting:
            if step.folder is None or step.name in work.jobs:
                continue
            path = Path(folder) / f"{step.name}.yaml"
            path.write_text(dump(step.config), encoding="utf-8")
            reason = _refusal([step.command, "--config", str(path), "--run_dir", str(work.run / step.folder)])
            if reason:
                reason = reason.replace(f" ({path})", "")  # which will be gone
                raise UserError(f"{step.name} would fail, so nothing was started: {reason}")


def _refusal(words: list[str]) -> str | None:
    """Why the parser of the trainings refuses a command; None if it takes it."""
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
