"""What changes while a run goes on: which settings may, which steps run anew, and what stays as it ran."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from commands.run.experiment.settings import FACTS, Experiment
from commands.run_folder.steps import RELEASED, Step
from doppel.console.ledger import FILE_NAME
from doppel.errors import UserError
from doppel.privacy.ledger import Ledger
from doppel.settings.facts import LEVELS, UNSET, Binds, Fact
from doppel.settings.yaml_files import flat

#: What is never made anew: weights, what was paid for, what people may have been given, and private lines.
_KEPT = ("checkpoint", "private", *RELEASED)


class Change(NamedTuple):
    """A setting that differs from what a run was started with.

    Attributes:
        key: Its place, name by name: some names hold dots.
        was: What it was; UNSET: it was not there.
        now: What it is to be.
        binds: What of the run depends on it.
    """

    key: tuple[str, ...]
    was: Any
    now: Any
    binds: Binds

    @property
    def told(self) -> tuple[str, str]:
        """Both values, each after its name."""
        name = ".".join(self.key)
        return f"{name}={_shown(self.was)}", f"{name}={_shown(self.now)}"


def changes(old: Experiment, new: Experiment) -> list[Change]:
    """Return how two experiments differ, by the values of their fields."""
    return list(_differences(FACTS, _values(old), _values(new)))


def run_anew(
    run: Path,
    old: Sequence[Step],
    new: Sequence[Step],
    found: Sequence[Change],
    jobs: Collection[str] = (),
    others: Collection[str | None] = (),
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the steps that are done, and are to run anew under settings that changed; and those that are not done.

    Formal guarantees:
        A run's ledger pays for the steps that its settings promise. So whatever was paid, trained or released keeps
        what binds it, and so does a budget of which a step was spent. How is sampled is post-processing: it may change
        until a system has samples, which are all of one kind. What a field binds stands on the field; a step is bound
        by what its configuration has of it.

    Args:
        run: The run folder.
        old: Its steps under the settings that it was started with.
        new: Those under the settings that are asked for, of which ``found`` tells what differs.
        jobs: Steps whose jobs are in the queue.
        others: Files that are called as they were, and are others now.

    Raises:
        UserError: A setting differs that binds what has begun; it names both values, and what to do.
    """
    before, ledger = {step.name: step for step in old}, Ledger(run / FILE_NAME)
    done = {mark.name for mark in (run / ".done").glob("*")}
    changed = {step.name for step in new if step.name in before and _differs(before[step.name], step)}
    again, files = set[str](), {*others}
    for step in new:
        if step.name in done and (step.name in changed or not files.isdisjoint(step.reads)):
            again.add(step.name)
            files |= {file.path for file in step.writes}
    after = {step.name: step for step in new}
    for name, step in before.items():
        is_gone = name not in after and name in done
        if is_gone or (name in changed | again and _has_begun(run, step, after[name], done | {*jobs}, ledger)):
            raise _refusal(run, _cause(found, step, after.get(name, step)), step, name in jobs)
    return frozenset(again), frozenset(changed - again)


def _has_begun(run: Path, old: Step, new: Step, known: Collection[str], ledger: Ledger) -> bool:
    """Whether a step, or the budget that a change of it would touch, has begun, and is never made anew."""
    spent = [ledger.mechanisms.get(ledger.mechanism_id(*name.split("/", 1))) for name in old.mechanisms]
    if any(record is not None and record.done_steps for record in spent):
        return True
    budgets = [_bound(FACTS.at("privacy"), step.config.get("privacy"), "evaluation") for step in (old, new)]
    if budgets[0] != budgets[1] and any(ledger.spent(name.split("/", 1)[0]) for name in old.mechanisms):
        return True
    kept = [file.path for file in old.writes if file.role in _KEPT]
    return bool(kept or old.mechanisms) and (old.name in known or any((run / path).exists() for path in kept))


def _differs(old: Step, new: Step) -> bool:
    """Whether a step would do something else, not only on another machine or with other things said of it."""
    least: Binds = {"fit": "training", "predict": "samples"}.get(old.kind, "evaluation")  # type: ignore[assignment]
    votes = FACTS.at("evolution") if old.command == "evolve" else Fact()
    fact = Fact(keys={**FACTS.keys, "settings": votes})
    return bool(_bound(fact, old.config, least) != _bound(fact, new.config, least))


def _bound(fact: Fact, value: Any, least: Binds) -> Any:
    """Of a configuration, what binds as much."""
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, inner in value.items():
        told = fact.at(key)
        means_default = told.default is not UNSET and (inner is None or inner == told.default)
        if LEVELS.index(told.binds) >= LEVELS.index(least) and not means_default:
            kept[key] = _bound(told, inner, least)
    return kept


def _cause(found: Sequence[Change], old: Step, new: Step) -> Change:
    """The change that a step differs by, as far as names tell."""
    ours, theirs = flat(old.config), flat(new.config)
    words = {word for key in {*ours, *theirs} if ours.get(key) != theirs.get(key) for word in key.split(".")}

    def nearness(change: Change) -> tuple[bool, bool, int]:
        is_elsewhere = change.key[0] in ("stages", "variants", "epochs") and change.key[1] not in old.name
        return not is_elsewhere, not words.isdisjoint(change.key), LEVELS.index(change.binds)

    return max(found, key=nearness)


def _refusal(run: Path, change: Change, step: Step, is_queued: bool) -> UserError:
    was, now = change.told
    as_before = f"restore it (python cli.py run {run}/experiment.yaml {run} goes on as it was started)"
    ways = f"{as_before}, or give another RUN_DIR, which spends on top of what this run has spent"
    if is_queued:
        ways = "restore it, or cancel its job first (squeue --me shows it)"
    elif change.binds == "samples" and step.command not in ("rows", "evolve"):  # whose samples need more votes
        ways = f"for more samples, at no additional privacy cost, give python cli.py sample {run} --num N; else {ways}"
    return UserError(f"{run} was started with {was}, now {now} is asked, and {step.name} has begun with it: {ways}")


def _values(experiment: Experiment) -> dict[str, Any]:
    """Of all fields, with settings of systems that are not given as what they mean."""
    meant = dataclasses.replace(experiment, topics=experiment.topic_settings, evolution=experiment.evolving)
    return dataclasses.asdict(meant)


def _differences(fact: Fact, was: Any, now: Any, key: tuple[str, ...] = ()) -> Iterator[Change]:
    """Values that differ; a section that is not there is one without keys."""
    if fact.keys or fact.each:
        was, now = ({} if value is UNSET else value for value in (was, now))
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*was, *now]):
            yield from _differences(fact.at(name), was.get(name, UNSET), now.get(name, UNSET), (*key, name))
    elif was != now or isinstance(was, bool) != isinstance(now, bool):
        yield Change(key, was, now, fact.binds)


def _shown(value: Any) -> str:
    """A value as a file has it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return UNSET.value if value is UNSET else f"{value:g}" if isinstance(value, float) else str(value)
