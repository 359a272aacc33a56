"""The one gate before anything is paid: missing files, bad lines, values that do not fit, a waste of ε."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands import STEPS
from commands.lightning.given_models import first_unsound
from commands.run.experiment.settings import systems_of
from commands.run.preflight.models import check_models, models_of
from commands.run.preflight.sources import check_files, check_sources, read_sources
from commands.run.preflight.together import together
from commands.run.preflight.training_plan import Readiness, outlook, readiness
from commands.run.steps.run_plan import Mode, RunPlan
from commands.run_folder.inputs import copies
from commands.run_folder.steps import Step
from doppel.console.command import command_parser, load
from doppel.console.say import confirm, say
from doppel.errors import UserError
from doppel.evolution.budget import Outlook
from doppel.settings.yaml_files import dump

_PAIRED = (
    "each text is asked for with a label and with a row of attributes, paired by their places: where attributes tell "
    "the label again, the two contradict one another; leave out evolution.per_label or evolution.rows"
)
#: Calls a function of this module with arguments, here or where what trains is imported.
Caller = Callable[..., Any]


def preflight(plan: RunPlan, mode: Mode, is_here: bool, call: Caller | None = None) -> dict[str, Readiness | Outlook]:
    """Refuse a run that would fail, before anything of it is written or paid.

    Every step that is to run is parsed by its own command, and every training and sampling built but for its weights,
    so that no typo and no number out of range is met behind a step that was paid; so is each model that a step loads.
    Then the user's files are read as the steps will read them. Of a dry run, which starts nothing, trainings are not
    built, and no file is opened.

    Args:
        plan: What there is to do.
        mode: How; ``check`` starts nothing, so it asks nothing.
        is_here: Whether the steps are to run on this machine.
        call: Calls a function where what trains is imported; None: here.

    Returns:
        System → what it is about to do; without those that train nothing or whose units nobody has counted.

    Raises:
        UserError: Something does not fit or is not there, or nobody wants ε to be spent on it.
    """
    kept = copies(plan.run, plan.experiment.as_dict())  # of public files that are gone
    check_sources(replace(plan.experiment, **kept))
    check_files(plan)
    check_models(plan)
    steps = [step for step in plan.waiting if step.name not in plan.jobs]
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            (Path(folder) / f"{step.name}.yaml").write_text(dump(step.config), encoding="utf-8")
        built = [step for step in steps if step.folder is not None]
        refusal = first_refusal([step for step in steps if step.folder is None], folder, str(plan.run), is_here)
        if refusal is None and built and mode != "dry-run":
            asked = (built, folder, str(plan.run), is_here)
            refusal = first_refusal(*asked) if call is None else call(first_refusal, *asked)
    if refusal is None and mode != "dry-run" and (models := models_of(plan)):
        refusal = first_unsound(models) if call is None else call(first_unsound, models)
    if refusal is not None:
        raise UserError(refusal)
    if mode == "dry-run" or not any(step.kind == "fit" or step.protected for step in steps):
        return {}
    return _read(plan, asks=mode != "check")


def first_refusal(steps: Sequence[Step], folder: str, run: str, is_here: bool) -> str | None:
    """Parse the configurations of steps, which lie in a folder; why the first one would fail, if one would.

    Trainings and samplings are asked apart from other steps, which import nothing that trains.
    """
    for step in steps:
        path = f"{folder}/{step.name}.yaml"
        try:
            if step.folder is not None:
                from commands.lightning.rehearsal import rehearse

                rehearse([step.command, "--config", path, "--run_dir", f"{run}/{step.folder}"], is_here)
            else:
                parser = command_parser(load(STEPS[step.command]), f"cli.py step {step.command}")
                parser.instantiate(parser.parse_args(["--config", path]))
        except (UserError, ValueError) as error:
            # jsonargparse wraps what __init__ raises
            cause = error if isinstance(error, UserError) else error.__cause__
            if not isinstance(cause, UserError):
                raise
            reason = str(cause).replace(f" ({path})", "").replace(f"{path}: ", "")  # which will be gone
            return f"{step.name} would fail, so nothing was started: {reason}"
    return None


def _read(plan: RunPlan, asks: bool) -> dict[str, Readiness | Outlook]:
    """Read the user's files, and say what the run makes of them, so that a batch that wastes ε is found now."""
    read = read_sources(plan)
    for sentence in read.notes:
        say(f"── note: {sentence}")
    plans: dict[str, Readiness | Outlook] = {}
    for system in systems_of(plan.experiment):
        ready = readiness(plan.experiment, system, plan.steps, read.num_units, plan.is_anew or not asks)
        votes = None if ready else outlook(plan.experiment, system, plan.waiting, read.num_units, plan.run)
        if (one := ready or votes) is not None:
            plans[system.name] = one
        if ready and ready.note and not asks:
            say(f"── note: {ready.note}")
        warnings = ready.warnings if ready else []
        if votes is not None:
            found = (votes.advice, _PAIRED if (own := plan.experiment.evolving).per_label and own.rows else None)
            warnings = [f"{system.name}: {advice}" for advice in found if advice is not None]
        for sentence in warnings:
            say(f"── warning: {sentence}")
    if (told := together(plan, plans)) is not None:
        say(f"── note: {told}")
    hopeless = [name for name, one in plans.items() if isinstance(one, Readiness) and one.is_hopeless]
    if asks and hopeless and not confirm(f"── Spend ε on {' and '.join(hopeless)} all the same?"):
        raise UserError("nothing was started, and nothing was spent")
    return plans
