"""What changes while a run goes on: which settings may, which steps run anew, and what stays as it ran."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from commands.run.context import read
from commands.run.settings import FACTS, Experiment, systems_of
from commands.runs.facts import LEVELS, UNSET, Binds, Fact
from commands.runs.steps import Step
from commands.runs.systems import SYSTEMS
from commands.runs.yaml_files import merge
from doppel.console.ledger import FILE_NAME
from doppel.errors import UserError
from doppel.evolution.votes import NoisyVotes
from doppel.privacy.ledger import Ledger

#: Whose defaults a key means that a section does not have.
_CLASSES = {
    "data": "datamodules.dialogue_data_module.DialogueDataModule",
    "model": "lightning_modules.causal_lm.CausalLM",
    "sampling": "lightning_modules.sampling.SamplingArguments",
}
#: Steps of a whole run that are made anew of public files.
_RENEWED = ("public_trees", "report")
#: What a system leaves that has begun, beside marks and lines of the ledger.
_LEFT = ("checkpoints/*.ckpt", "*/checkpoints/*.ckpt", "answers.jsonl")


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


def changes(old: Experiment, new: Experiment, more_overlays: Iterable[str] = ()) -> list[Change]:
    """Return how two experiments differ, by the values of their fields; overlays by what is in their files."""
    ours, theirs = (_values(experiment) for experiment in (old, new))
    found = []
    for change in _differences(FACTS, ours, theirs):
        annotates = change.key == ("parser_digest",) and new.adaptation is not None  # what others learn from
        found.append(change._replace(binds="training") if annotates else change)
    if old.overlays != new.overlays:
        was, now = (_overlays(experiment, more_overlays) for experiment in (old, new))
        levels = [LEVELS.index(change.binds) for change in _differences(FACTS, was, now)]
        found += [Change(("overlays",), old.overlays, new.overlays, LEVELS[max(levels)])] if levels else []
    return found


def refuse_to_mix(
    run: Path, old: Experiment, new: Experiment, jobs: Collection[str] = (), more_overlays: Iterable[str] = ()
) -> list[Change]:
    """Refuse to go on with a run under other settings; return those that change, and may.

    Formal guarantees:
        A run's ledger pays for the steps that its settings promise. So what binds the training of a system stays as it
        was once anything of this system has begun: a step was paid, a checkpoint written, or a job is in the queue.
        What binds samples alone is post-processing: it may change until the system has some, which are all of one kind.
        How texts are evaluated, what a machine does and a total over all runs change no mechanism.

    Args:
        run: The run folder.
        old: What the run was started with.
        new: What is asked for.
        jobs: Steps whose jobs are in the queue.
        more_overlays: Those of the kind of node, which are no part of an experiment.

    Raises:
        UserError: A setting differs that binds what has begun; it names both values.
    """
    found = changes(old, new, more_overlays)
    begun = _begun(run, old, jobs) if found else {}
    for change in found:
        bound = begun.get(change.binds, set()) & _systems(change.key, old)
        if bound:
            raise refusal(run, change, bound, jobs)
    return found


def refusal(run: Path, change: Change, systems: Collection[str], jobs: Collection[str] = ()) -> UserError:
    """Return why a change is refused: its name, both values, and what to do."""
    name, (was, now) = ", ".join(sorted(systems)), change.told
    ways = "restore it, or give another RUN_DIR, which spends on top of what this run has spent"
    if any(job.startswith(tuple(f"{system}-" for system in systems)) for job in jobs):
        ways = f"restore it, or cancel the jobs of {name} first (squeue --me shows them)"
    if change.binds == "samples":
        ways = f"for more samples, at no additional privacy cost, give python cli.py sample {run} --num N; else {ways}"
    return UserError(
        f"{run} was started with {was}, now {now} is asked, and the {change.binds} of {name} came of it: {ways}"
    )


def differs(old: Step, new: Step) -> bool:
    """Return whether a step would do something else, not only elsewhere or with other things said of it."""
    least = {"fit": "training", "predict": "samples"}.get(new.kind)
    if least is None:
        return old.config != new.config
    return _bound(FACTS, old.config, LEVELS.index(least)) != _bound(FACTS, new.config, LEVELS.index(least))


def repeated(steps: Sequence[Step], changed: Collection[str], done: Collection[str]) -> frozenset[str]:
    """Return the finished steps that are to run anew: those that changed, and those that read what these write."""
    files: set[str] = set()
    found = set()
    for step in steps:
        if step.name in done and (step.name in changed or not files.isdisjoint(step.reads)):
            found.add(step.name)
            files |= {file.path for file in step.writes}
    return frozenset(found)


def _bound(fact: Fact, value: Any, least: int) -> Any:
    if not isinstance(value, Mapping):
        return value
    kept = {key: inner for key, inner in value.items() if LEVELS.index(fact.at(key).binds) >= least}
    return {key: _bound(fact.at(key), inner, least) for key, inner in kept.items()}


def _values(experiment: Experiment) -> dict[str, Any]:
    """Of all fields but overlays, with settings of systems that are not given as what they mean."""
    meant = dataclasses.replace(experiment, topics=experiment.topic_settings, evolution=experiment.evolving)
    values = dataclasses.asdict(meant)
    return {name: value for name, value in values.items() if name != "overlays"}


def _overlays(experiment: Experiment, more: Iterable[str]) -> dict[str, Any]:
    """What overlays say together; a file that is gone says nothing."""
    layers = []
    for path in dict.fromkeys([*experiment.overlays, *more]):
        try:
            layers.append(read(experiment, path))
        except UserError:
            layers.append({path: "gone"})
    return merge(*layers)


def _differences(fact: Fact, was: Any, now: Any, key: tuple[str, ...] = ()) -> Iterator[Change]:
    """Values that differ; a section that is not there is one without keys."""
    if fact.keys or fact.each:
        was, now = ({} if value is UNSET else value for value in (was, now))
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*was, *now]):
            yield from _differences(fact.at(name), was.get(name, UNSET), now.get(name, UNSET), (*key, name))
        return
    means = _default(key) if fact.default is UNSET and UNSET in (was, now) else fact.default
    absent = (UNSET,) if fact.default is UNSET else (UNSET, None)  # null is what is not given, where that is said
    ours, theirs = (means if value in absent else value for value in (was, now))
    if ours != theirs or isinstance(ours, bool) != isinstance(theirs, bool):
        yield Change(key, was, now, fact.binds)


def _default(key: tuple[str, ...]) -> Any:
    """What the class of a section takes for a key that is not given; UNSET: it has none."""
    place, _, name = _CLASSES.get(key[-2] if len(key) > 1 else "", "").rpartition(".")
    if not place:
        return UNSET
    parameter = inspect.signature(getattr(importlib.import_module(place), name)).parameters.get(key[-1])
    return UNSET if parameter is None or parameter.default is parameter.empty else parameter.default


def _begun(run: Path, experiment: Experiment, jobs: Collection[str]) -> dict[Binds, set[str]]:
    """Systems whose trainings, or whose samples, have begun."""
    ledger = Ledger(run / FILE_NAME)
    names = {mark.name for mark in (run / ".done").glob("*")} | {*jobs}
    found: dict[Binds, set[str]] = {"training": set(), "samples": set()}
    shared = names.difference(_RENEWED)
    for system in systems_of(experiment):
        own = {name for name in names if name == system.name or name.startswith(f"{system.name}-")}
        shared -= own
        spent = ledger.spent(system.name)
        left = any(any((run / system.name).glob(form)) for form in _LEFT)
        if own or spent or left:
            found["training"].add(system.name)
        is_sampled = own & {*jobs} or (run / system.name / "samples.jsonl").exists()
        if is_sampled or any(record.kind == NoisyVotes.kind for record in spent):
            found["samples"].add(system.name)
    if shared:  # a split, or trees of private rows, from which all systems learn
        found["training"] = {*experiment.systems}
    return found


def _systems(key: tuple[str, ...], experiment: Experiment) -> set[str]:
    """The systems of an experiment that depend on a setting."""
    field, name = key[0], key[1] if len(key) > 1 else ""
    if field == "variants":
        return {name} & {*experiment.systems}
    if field in ("stages", "epochs") and not name.startswith("parser"):
        like = ("labels", "attributes") if key == ("epochs", "one_stage") else ()  # their default
        return {system.name for system in systems_of(experiment) if name in system.stages or system.name in like}
    if field in SYSTEMS:
        evolving = experiment.evolving
        votes = (field == "labels" and evolving.per_label) or (field == "attributes" and evolving.measures_rows)
        return {field, "evolution"} if votes else {field}
    return {*experiment.systems}


def _shown(value: Any) -> str:
    if value is UNSET:
        return value.value
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
