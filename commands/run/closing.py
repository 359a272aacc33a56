"""What is said at the end of a run: its samples, what they cost, and what people do next."""

from __future__ import annotations

import shlex

from commands.run.experiment.settings import systems_of
from commands.run.preflight.training_plan import trainings_of
from commands.run.steps.run_plan import RunPlan
from commands.run_folder.run_folder import RunFolder
from doppel.console.say import minutes, program, say


def tell_result(plan: RunPlan, seconds: float, is_verbose: bool = False) -> None:
    """Print the result of a run here: samples, what they cost, and the next commands."""
    from commands.quality.run_numbers import warnings as sampling_warnings  # which no --help waits for

    say(f"── {plan.experiment.name} finished in {minutes(seconds)}")
    record = RunFolder(plan.run)
    report = record.report() or {}
    privacy = report.get("privacy") or {"systems": {}}
    for step in plan.steps if is_verbose else []:
        if step.kind == "fit":
            say(f"   model    {plan.run / str(step.folder) / 'checkpoints' / 'last.ckpt'}")
    for system in systems_of(plan.experiment):
        if system.learns:
            own = privacy["systems"].get(system.scope, {})
            is_void = own.get("epsilon") is None
            cost = "NOT PRIVATE" if is_void else f"ε {own['target_epsilon']:.4g}, spent so far {own['epsilon']:.4g}"
            say(f"   samples  {plan.run / system.name / 'samples.jsonl'} ({system.name}, {cost})")
            for sentence in sampling_warnings(record, system.name):
                say(f"   warning  {sentence}")
    if len(privacy["systems"]) > 1 and (whole := privacy.get("epsilon_if_all_systems_are_released")) is not None:
        say(f"   together ε {whole:.4g}, which holds for all that the page shows")
    if (everything := privacy.get("everything") or {}).get("num_runs", 1) > 1:
        say(f"   note     {everything['statement']}")
    if (plan.run / "report.html").is_file():
        say(f"   page     {plan.run / 'report.html'}")
    card = report.get("card")
    if card is not None:
        say(f"   card     {'VERIFIED' if card['verified'] else 'NOT VERIFIED: ' + '; '.join(card['reasons'])}")
    for number, words in enumerate(next_commands(plan)):
        say(f"   {'' if number else 'next':8} {program()} {shlex.join(words)}")


def next_commands(plan: RunPlan) -> list[list[str]]:
    """Return commands for what people do with a finished run, each as it can be copied."""
    run = plan.run
    trained = [str(step.folder) for system in systems_of(plan.experiment) for step in trainings_of(system, plan.steps)]
    words = [["report", str(run)]] if (run / "report.html").is_file() else []
    if plan.experiment.is_private:
        words.append(["verify", str(run)])
    if trained:
        words.append(["sample", str(run), "--num", "5000"])
        words.append(["export", str(run / trained[-1]), str(run.with_name(f"{run.name}-released") / trained[-1])])
    return words
