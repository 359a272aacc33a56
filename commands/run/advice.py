"""What is said and refused before a run spends anything: missing files, bad lines, typos, a waste of ε."""

from __future__ import annotations

import contextlib
import io
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from commands.run import outlook
from commands.run.readiness import readiness, trainings_of
from commands.run.settings import systems_of
from commands.run.sources import check_files, read_sources
from commands.run.work import Work
from commands.runs.yaml_files import dump
from doppel.console.say import confirm, say
from doppel.errors import UserError

#: Trained weights above which a training on a CPU takes days.
_MANY_WEIGHTS = 30e6


def check_that_files_are_there(work: Work) -> bool:
    """Look whether the files that a training needs are there; whether anything is left to learn.

    Raises:
        UserError: One is not.
    """
    learns = any(step.kind == "fit" or step.command == "evolve" for step in work.waiting)
    if learns:
        check_files(work.experiment)
    return learns


def check_data(work: Work, asks: bool = False) -> dict[str, int]:
    """Read the user's files before anything starts, so that a bad line, or a batch that wastes ε, is found now.

    Args:
        work: What is to be done.
        asks: Whether to ask before ε is spent on a training that is hopeless.

    Returns:
        Path of a private file → its units.

    Raises:
        UserError: One cannot be read, or the answer is no.
    """
    if not check_that_files_are_there(work):
        return {}
    read = read_sources(work.experiment)
    for sentence in read.notes:
        say(f"── note: {sentence}")
    hopeless = []
    for used in systems_of(work.experiment):
        ready = readiness(work.experiment, used, work.steps, read.num_units, plans=work.is_anew)
        hopeless += [used.name] if ready is not None and ready.is_hopeless else []
        drowns = outlook.advice(work.experiment, used, work.waiting, read.num_units, work.run)
        for sentence in [*([] if ready is None else ready.warnings), *drowns]:
            say(f"── warning: {sentence}")
    if asks and hopeless and not confirm(f"── Spend ε on {' and '.join(hopeless)} all the same?"):
        raise UserError("nothing was started, and nothing was spent")
    return read.num_units


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


def tell_ready(work: Work, num_units: Mapping[str, int]) -> None:
    """What each system would do, and about how long its trainings would take on this machine."""
    from commands.run.estimate import forecast  # and what trains

    experiment = work.experiment
    for used in systems_of(experiment):
        votes = outlook.ready(experiment, used, work.waiting, num_units, work.run)
        if votes is not None:
            say(votes)
            continue
        trainings = trainings_of(used, work.waiting)
        ready = readiness(experiment, used, work.steps, num_units, plans=True)
        if trainings and ready is not None:
            least, most, num_trained = forecast(ready.num_units, trainings, experiment)
            more = "" if ready.unit == "utterance" else f", as much again for each further row a {ready.unit} has"
            say(f"{ready.text}, {_range(least, most)} of training on this machine (by public rows{more})")
            if num_trained > _MANY_WEIGHTS:
                say(
                    f"   warning  {used.name} trains {num_trained / 1e6:.0f} million weights, each with its "
                    "gradient, noise and means of the optimiser: take LoRA (--set model.lora.rank=8), which trains a "
                    "hundredth of them"
                )
        else:
            why = " (how many units it has shows when it runs)" if trainings else ": nothing is left to train"
            say(f"ready: {used.name}{why}")


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


def _range(least: float, most: float) -> str:
    unit, name = (60, "minutes") if most < 7200 else (3600, "hours")
    low, high = max(1, round(least / unit)), max(2, math.ceil(most / unit))
    return f"{low} to {high} {name}" if most > 60 else "a minute at most"
