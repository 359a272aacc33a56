"""``python cli.py sample``: more samples of a run that has ended, on its manifest, its card and its page."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jsonargparse.typing import PositiveInt

from commands.lightning.by_hand import predict_command
from commands.privacy.histogram import read_labels
from commands.run import oversampling
from commands.run.execution.code_copy import version
from commands.run.execution.execute import run_here
from commands.run.experiment.experiment import load, save
from commands.run.experiment.settings import Experiment, systems_of
from commands.run.steps.context import Wanted
from commands.run.steps.recipes import draw as draw_steps
from commands.run_folder import systems
from commands.run_folder.manifest import Manifest
from commands.run_folder.manifest_writer import declare, refuse_old
from commands.run_folder.ownership import hold
from commands.run_folder.run_folder import RunFolder, read_json
from commands.run_folder.steps import Step
from commands.run_folder.systems import System
from datamodules.reading.columns import check_schema
from doppel.console.heard import LOG, written_down
from doppel.console.say import minutes, say
from doppel.errors import UserError
from doppel.run_folder import of_stages, run_of
from doppel.settings.yaml_files import dump, read_yaml
from doppel.tables.schema import plain
from doppel.text.topics import Codebook

#: Samples where nobody says how many.
_NUM = 5000
#: Draws for as many samples of a topic, or that say some words, as are asked for.
_DRAWS = 4


def sample(
    run_dir: Path,
    *,
    system: str | None = None,
    num: PositiveInt | None = None,
    label: str | None = None,
    topic: str | None = None,
    words: str | None = None,
    trees: Path | None = None,
    public: bool = False,
    seed: int | None = None,
) -> int:
    """Draw more samples of a finished run, at no additional privacy cost.

    Writes RUN_DIR/SYSTEM/draws/2/samples.jsonl, then 3, …; nothing is overwritten. The samples come from the same
    distribution as the run's own: same settings, grammar and released shares, another seed. `verify` covers them with
    the run, and the page counts them; metrics stay those of the run's own samples. Samples for a --label, a --topic,
    --words or --trees are examples on the page and count in no share. For a --topic or --words several draws are made
    until there are so many, four at most, and the command says how many there are. It says first how rare --words are
    in the run's samples, and writes ten texts for each of these at most; as many as the run has, where none says them.
    Everything runs here, also where there is SLURM. Given again after an interruption, the command goes on.

    Example:
        python cli.py sample runs/mine --num 5000
        python cli.py sample runs/labels --label calendar --num 200
        python cli.py sample runs/mine --words rental,car --num 40

    Args:
        run_dir: Run folder, of which the command `run` has finished.
        system: Whose samples; by default the run's main one, or the one that --label, --topic or --trees is for.
        num: How many; 5000 if left out, and with --trees one for each tree.
        label: Samples for this label alone, a line of the run's list of labels; or for some attributes, such as
            "Stars: 5" or "Category: Food | Stars: 5".
        topic: Samples of this topic alone, as the page calls it: many are drawn, and those of the topic are kept.
        words: Samples that say all of these words, such as "rental,car": those of a plain draw that do are kept beside
            it, as saying.jsonl.
        trees: JSON lines with "parse": trees that a step of this run has made, or public ones (see --public).
        public: Say that anybody may see the trees of --trees. Trees of private text stay refused.
        seed: Seed of the draw. By default it follows from the run's seed and the number of the draw, so that none
            repeats another.

    Returns:
        Exit status.

    Raises:
        UserError: The run is not finished, or has no such system, label or topic; or the trees are not public.
    """
    os.environ.setdefault("WANDB_SILENT", "true")
    run = run_dir.resolve()
    experiment = _experiment(run, run_dir)
    refuse_old(run)
    ways = {"--label": label, "--topic": topic, "--words": words, "--trees": trees}
    given = [way for way, value in ways.items() if value is not None]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} exclude one another: give one of them")
    if trees is None and public:
        raise UserError("--public says that trees are public: give --trees, or leave it out")
    if trees is not None and num is not None:
        raise UserError("--trees writes one utterance for each tree: leave --num out")
    if seed is not None and seed >= 2**32:
        raise UserError(f"--seed is {seed}: give a number below {2**32}")
    chosen = _system(run, run_dir, experiment, system, given[0] if given else None)
    label = None if label is None else plain(label)
    wanted, most_draws = Wanted(int(num or _NUM), seed, label, topic, trees, public), _DRAWS
    if label is not None:
        _check_label(experiment, chosen, label)
    if topic is not None:
        name = Codebook.load(run / chosen.scope / "one_stage" / "codebook.jsonl").named(topic)
        wanted = replace(wanted, topic=name, oversample=oversampling.for_topic(run, chosen, name))
        say(
            f"── about {wanted.num * wanted.oversample:,} texts are drawn, to find {wanted.num:,} of the topic {name!r}"
        )
    if words is not None:
        asked = tuple(word.strip().lower() for word in words.split(","))
        manifest = Manifest.read(run)
        samples = manifest.path(manifest.samples()[chosen.name])
        rare = oversampling.for_words(samples, asked, wanted.num)
        wanted, most_draws = replace(wanted, words=asked, oversample=rare.oversample), min(_DRAWS, rare.most_draws)
        number, most = wanted.num * rare.oversample, wanted.num * rare.oversample * most_draws
        say(f"── {rare.found:,} of the run's {rare.num_samples:,} samples say {' and '.join(asked)}")
        hint = "" if rare.found else ": a model whose samples never say it hardly writes it"
        say(f"── {number:,} samples are drawn to find {wanted.num:,}, and {most:,} in all at most{hint}")
    if trees is not None:
        from commands.lightning.prompts import check_trees  # torch, for which no --help waits

        wanted = replace(wanted, trees=trees.resolve(), num=check_trees(run, trees, public))
    drawn: dict[str, int] = {}
    with hold(run):
        seconds = _seconds(experiment, run, chosen, wanted)
        if seconds is not None:
            say(f"── about {minutes(seconds)} of sampling, at the pace of the run's own samples")
        status = 0
        while not status and len(drawn) < most_draws and sum(drawn.values()) < wanted.num:
            steps = _next_draw(experiment, run, chosen, wanted)
            status = _run(experiment, run, steps)
            if not status:
                path = steps[-1].writes[0].path
                drawn[path] = (run / path).read_bytes().count(b"\n")
            if wanted.oversample == 1 or seed is not None:  # a plain draw has all, and a seed repeats its texts
                break
    if drawn:
        _tell(RunFolder(run), chosen, drawn, run_dir, wanted)
    return status


def _experiment(run: Path, named: Path) -> Experiment:
    """Of the run.

    Raises:
        UserError: It is no folder of a run; the message says what to give.
    """
    if (run / "experiment.yaml").is_file():
        return load(run / "experiment.yaml")
    if not run.is_dir():
        raise UserError(f"there is no folder {named}: give that of a finished run")
    if (run_of(run) / "experiment.yaml").is_file():
        raise UserError(f"{named} is a part of a run: give {run_of(run)}")
    stages = [run] if (run / "checkpoints" / "last.ckpt").is_file() else []
    stages += [checkpoint.parents[1] for checkpoint in of_stages(run, "checkpoints/last.ckpt")]
    stages = [stage for stage in stages if (stage / "config.yaml").is_file()]
    if stages:
        raise UserError(
            f"{named} has no experiment.yaml: its models were trained by hand, so that nothing tells how they are to "
            f"be sampled, and no card would cover it. By hand: {predict_command(stages[0])}"
        )
    found = [record.folder for record in RunFolder.find(run) if (record.folder / "experiment.yaml").is_file()]
    hint = f"give one of its runs, such as {found[0]}" if found else "give the folder of a finished run"
    raise UserError(f"{named} has no experiment.yaml: {hint}")


def _system(run: Path, named: Path, experiment: Experiment, name: str | None, way: str | None) -> System:
    """Whose samples are asked for.

    Raises:
        UserError: There is none, or its run has not come so far.
    """
    known = {system.name: system for system in systems_of(experiment) if system.learns}
    for system in [system for system in known.values() if system.models_of is None and not system.stages]:
        del known[system.name]
        if system.name == name or not known:
            raise UserError(
                f"{system.name} has no model to sample from: more samples need more votes, which spend on top"
            )
    for_way = {"--label": lambda s: s.learns == "label", "--topic": lambda s: s.name == "topics"}
    for_way |= {"--trees": lambda s: s.has_trees, "--words": lambda s: True}
    fitting = [own for own, system in known.items() if way is None or for_way[way](system)]
    if name is not None and name not in known:
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(known) or 'none that writes samples'}"
        raise UserError(f"{named} has no system {name!r}: {hint}")
    what = {"--label": "writes for labels", "--topic": "has topics", "--trees": "writes for trees", "--words": "writes"}
    if name is not None and name not in fitting:
        raise UserError(f"{way} is for a system that {what[way or '']}, and {name} does not: leave one of them out")
    if not fitting:
        lacks = f"a system that {what[way]}" if way else "a system that writes samples"
        raise UserError(f"{named} has no {lacks.removeprefix('a ')}: its systems are {', '.join(experiment.systems)}")
    system = known[name or systems.main_of(fitting)]
    manifest = Manifest.read(run)
    made = manifest.samples().get(system.name)
    if made is None:
        raise UserError(
            f"{system.name} has not finished: give python cli.py run {named}/experiment.yaml {named} first, which goes "
            "on"
        )
    if not manifest.path(made).is_file():
        raise UserError(f"{named / made.path} is gone: put it back, for more samples stand beside it")
    for entry in manifest.upstream(made.path):
        if entry.role == "checkpoint" and not manifest.is_as_made(entry):
            how = "was changed after its training" if manifest.path(entry).exists() else "is gone"
            raise UserError(f"{named / entry.path} {how}: put back a copy, for samples of it would not be the run's")
    return system


def _check_label(experiment: Experiment, system: System, label: str) -> None:
    if system.has_attributes:
        assert experiment.attributes is not None
        check_schema(experiment.attributes.schema).read_some(label)
        return
    labels = read_labels(Path(str(experiment.labels)))
    if label not in labels:
        nearest = difflib.get_close_matches(label, labels, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"the list is {experiment.labels}"
        raise UserError(f"the run has no label {label!r}: {hint}")


def _next_draw(experiment: Experiment, run: Path, system: System, wanted: Wanted) -> list[Step]:
    """The steps of the draw: the next one, or one that this very command has begun and not finished.

    Raises:
        UserError: The seed would repeat texts that are there.
    """
    numbers = sorted(int(folder.name) for folder in (run / system.name / "draws").glob("[0-9]*"))
    made = Manifest.read(run).files
    for number in numbers:
        steps = draw_steps(experiment, run, system, number, wanted)
        configs = {run / "configs" / f"{step.name}.yaml": dump(step.config) for step in steps}
        is_begun = all(path.is_file() and path.read_text(encoding="utf-8") == text for path, text in configs.items())
        if steps[-1].writes[0].path not in made and is_begun:
            say(f"── {system.name}/draws/{number} was begun: going on")
            return steps
    _refuse_seed(run, system, wanted)
    number = max(numbers, default=1) + 1
    (run / system.name / "draws" / str(number)).mkdir(parents=True)
    return draw_steps(experiment, run, system, number, wanted)


def _refuse_seed(run: Path, system: System, wanted: Wanted) -> None:
    """One seed draws the same texts again."""
    for path in (run / "configs").glob(f"{system.name}-*sample_*.yaml") if wanted.seed is not None else ():
        if read_yaml(path)["model"]["init_args"]["sampling"].get("seed", 0) == wanted.seed:
            raise UserError(f"--seed {wanted.seed} has drawn samples of this run before: give another, or leave it out")


def _seconds(experiment: Experiment, run: Path, system: System, wanted: Wanted) -> float | None:
    """Seconds that the samples take at the pace at which the run's own were drawn; None where the run does not tell.

    Imports and what comes after the sampling are not in it.
    """
    manifest = Manifest.read(run)
    made = manifest.samples()[system.name]
    files = [made] if wanted.trees is not None else manifest.upstream(made.path)
    metrics = [read_json(path) for entry in files if (path := run / f"{entry.path}.metrics.json").is_file()]
    paces = [one for one in metrics if one.get("synthetic/samples_per_second")]
    num_samples = manifest.path(made).read_bytes().count(b"\n")
    if not paces or not num_samples:
        return None
    seconds = sum(one["synthetic/num_samples"] / one["synthetic/samples_per_second"] for one in paces)
    times = wanted.num * wanted.oversample / num_samples
    if wanted.topic is not None:
        times /= experiment.topic_settings.oversample
    return float(seconds * times)


def _run(experiment: Experiment, run: Path, steps: Sequence[Step]) -> int:
    """Run what is not done yet; exit status."""
    commits = list(dict.fromkeys([*experiment.commit, version()]))
    if commits != experiment.commit:
        save(replace(experiment, commit=commits), run / "experiment.yaml")
    for step in steps:
        mark = run / ".done" / step.name
        if not mark.exists():
            (run / "configs" / f"{step.name}.yaml").write_text(dump(step.config), encoding="utf-8")
            declare(step, run)
    with written_down(run / LOG):
        return run_here(run, steps)


def _tell(record: RunFolder, system: System, drawn: Mapping[str, int], named: Path, wanted: Wanted) -> None:
    """Renew card and page, and say what came of it."""
    from commands.privacy.coverage import ledger_of
    from commands.privacy.verify import card, write_card
    from commands.report.report_json import build_report
    from commands.report.write import write_page  # what no --help waits for

    content = None
    if ledger_of(record).exists():
        content = card(record, renews=True)
        write_card(content, record.folder)
    try:
        report = build_report(record)
    except UserError:  # nothing was measured
        report = None
    page, _ = write_page(record, report, content)
    for path, num in drawn.items():
        say(f"── {named / path}: {num} samples")
    if (num := sum(drawn.values())) < wanted.num:
        say(f"   {num} of {wanted.num} that were asked for: the model writes few of them. Given again, it draws more")
    if wanted.role == "examples" or wanted.words:
        say("   They are what you asked for: the page shows them, and counts them in no share.")
    if content is None:
        say("   NOT PRIVATE: the run has no ledger")
    else:
        budget = content["budgets"].get(system.scope, {})
        if budget.get("epsilon") is not None:
            target = f"{budget['target_epsilon']:g}"
            say(f"   ε of {system.scope} stays {target}: more samples have no additional privacy cost")
        say(f"   card     {'VERIFIED' if content['verified'] else 'NOT VERIFIED: ' + content['reasons'][0]}")
    say(f"   page     {named / page.name}")
    say(f"   metrics  are those of {system.name}/samples.jsonl")
