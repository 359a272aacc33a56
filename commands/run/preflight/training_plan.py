"""What each system of an experiment is about to do, told before it spends: N, B, steps, σ; votes beside noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commands.privacy.histogram import read_labels
from commands.privacy.release_settings import Attributes
from commands.run.experiment.settings import Experiment
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.steps import Step
from commands.run_folder.systems import BASE_MODEL, System
from datamodules.reading.columns import Columns, check_schema, unit_of
from datamodules.training_rows import TrainingRows
from doppel.console.ledger import FILE_NAME
from doppel.console.plan import HOPELESS, in_words, num_parameters_of, over_training
from doppel.errors import UserError
from doppel.evolution.budget import CLEAR, Outlook, plan_votes
from doppel.privacy.accounting import CalibrationError, Mechanism
from doppel.privacy.histogram import largest_noise
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import DPPlan, PrivacyArguments, num_steps, usual_batch_size
from doppel.text.topics import num_themes

#: A step that draws a larger share of the units gains little from their being drawn at random.
LARGE_RATE = 0.25
#: With fewer steps a model learns next to nothing.
FEW_STEPS = 20
#: With fewer units a larger base wrote requests that more often read as such.
FEW_UNITS = 5_000
#: Where no rarer topic or label shows above the noise of the shares, a page has little to show. Then smaller noise is
#: advised, if that of the training rises by no more than a fiftieth.
LARGE_SHARE, FEWER_NOISE, COST = 0.05, (5.0, 3.0, 2.0), 0.02


@dataclass(frozen=True)
class Readiness:
    """The trainings of one system on its units.

    Attributes:
        system: Its name.
        unit: What is protected.
        num_units: N.
        batch_size: B of the first training.
        steps: Of all trainings together.
        spec: Budget of all trainings; None without privacy.
        below_noise: Which of its votes or shares are below their noise, in words; None: few.
        noise: Norm of the noise of all steps over the largest possible signal; None where it is not known.
        base: Base model of the first training.
    """

    system: str
    unit: str
    num_units: int
    batch_size: int
    steps: int
    spec: DPPlan | None = None
    below_noise: str | None = None
    noise: float | None = None
    base: str | None = None

    @property
    def note(self) -> str | None:
        """What a larger base may be worth, where it was measured to be: docs/results.md, *Beyond the table*."""
        if self.spec is None or self.base != BASE_MODEL or self.num_units >= FEW_UNITS:
            return None
        return (
            f"{self.system}: with few units a larger base writes more usable requests: of 40 samples read blind "
            "(one_stage, 3,043 units, ε = 3) 24 to 35 of SmolLM2-135M were, 10 to 11 of this base. It takes some 17 "
            "minutes of a CPU core: docs/own-model.md#a-larger-base"
        )

    @property
    def is_hopeless(self) -> bool:
        """Whether there is more noise than in any run that was measured."""
        return self.noise is not None and self.noise > HOPELESS

    @property
    def text(self) -> str:
        """N, B, steps and σ."""
        parts = [f"{self.num_units:,} {self.unit}s", f"B {self.batch_size:,}", f"{self.steps:,} steps"]
        parts += ["NOT PRIVATE" if self.spec is None else f"σ {self.spec.noise_multiplier:.3f}"]
        return f"{'hopeless' if self.is_hopeless else 'ready'}: {self.system}, {', '.join(parts)}"

    @property
    def warnings(self) -> list[str]:
        """What makes the run a waste of its ε."""
        usual, found = usual_batch_size(self.num_units), []
        rate = self.batch_size / self.num_units
        if rate > LARGE_RATE and self.batch_size > usual:
            found.append(
                f"{self.system}: a step takes {rate:.2g} of the units (q = {self.batch_size:,} of {self.num_units:,}), "
                f"which wastes ε: effort=1 with data.batch_size=null takes a twentieth, {usual:,}"
            )
        if self.steps < FEW_STEPS:
            way = "a smaller data.batch_size" if self.batch_size > usual else "more epochs"
            found.append(
                f"{self.system}: {self.steps} steps are too few to learn from ({FEW_STEPS} are little): give {way}"
            )
        if self.is_hopeless and self.noise is not None:
            found.append(f"{self.system}: {in_words(self.noise)}")
        return [*found, *([] if self.below_noise is None else [self.below_noise])]


def readiness(
    experiment: Experiment, system: System, steps: Iterable[Step], num_units: Mapping[str, int], plans: bool
) -> Readiness | None:
    """Plan the trainings of a system, and calibrate its σ if asked for, which takes a second.

    Formal guarantees:
        All that is told are N, B, q, the number of steps and σ, which count as public, on the console.

    Returns:
        None for a system that trains nothing, or whose units nobody has counted yet.

    Raises:
        UserError: The batch is larger than the data, or no noise keeps the ε.
    """
    configs = [StageConfig(step.config) for step in trainings_of(system, steps)]
    sizes = []
    for config in configs:
        named = experiment.data if experiment.write_parses else config.data  # before a parser writes its trees
        count = _count_units(str(named.get("train_path")), config.data, num_units)
        if count is None:
            return None
        effort = config.data.get("effort", 1)
        batch_size = (config.data.get("batch_size") or usual_batch_size(count)) * effort
        if batch_size > count:
            named = config.data.get("batch_size")
            if named is None:
                what, way = f"effort={effort}", f"effort={count // usual_batch_size(count)}"
            else:
                what = f"data.batch_size={named}" + f" times effort={effort}" * (effort != 1)
                way = f"data.batch_size={count // effort}" if effort <= count else "a smaller effort"
            raise UserError(
                f"{what} takes {batch_size} units a step, but {system.name} has {count}: give {way}, or more data"
            )
        taken = num_steps((config.content.get("trainer") or {}).get("max_epochs", 1), count, batch_size)
        sizes.append((count, batch_size, taken))
    if not sizes:
        return None
    count, batch_size, _ = sizes[0]
    unit, privacy = unit_of(configs[0].data.get("unit"), Columns.from_config(configs[0].data)), configs[0].privacy
    found = Readiness(system.name, unit, count, batch_size, sum(taken for *_, taken in sizes))
    if privacy is None:
        return found
    found = replace(found, below_noise=_below_noise(experiment, system, privacy, count, batch_size, unit))
    if not plans:
        return found
    with warnings.catch_warnings(action="ignore"):  # said when the files are read
        spec = privacy.plan(count, batch_size, privacy.epochs or [1.0], unit, None)
    size = _num_trained(configs[0].model)
    noise = None if size is None else over_training(spec, size)
    return replace(found, spec=spec, noise=noise, base=configs[0].model.get("base_model"))


def outlook(
    experiment: Experiment, system: System, steps: Sequence[Step], num_units: Mapping[str, int], run: Path
) -> Outlook | None:
    """Plan the votes of a system: units, candidates and noise.

    Formal guarantees:
        A function of N, which counts as public, of the budget, of the experiment and of what its ledger has paid for.

    Returns:
        None of a system without votes, or whose units nobody has counted.

    Raises:
        CalibrationError: No noise keeps the ε.
        UserError: The budget was opened with another ε.
    """
    step = next((step for step in steps if step.command == "evolve" and step.writes[0].system == system.name), None)
    if step is None:
        return None
    data, settings = step.config["data"], experiment.evolving
    count = _count_units(data["train_path"], data, num_units)
    if count is None:
        return None
    pool = experiment.num_samples * (1 + settings.variations)
    found = Outlook(count, pool, settings.clusters or pool, settings.votes_each, settings.rounds, None)
    if "privacy" not in step.config:
        return found
    privacy, ledger = PrivacyArguments(**step.config["privacy"]), Ledger(run / FILE_NAME)
    opened = ledger.summary()["scopes"].get(privacy.scope)
    if opened is not None and opened["target_epsilon"] != privacy.target_epsilon:  # by rows that `metadata` wrote
        raise UserError(
            f"its budget {privacy.scope!r} may spend ε = {opened['target_epsilon']:g} in all, and this run asks for "
            f"{privacy.target_epsilon:g}: give that ε, of which rows have used some, or another RUN_DIR and new rows "
            f"by `metadata --target-epsilon {privacy.target_epsilon:g}` in its ledger, which spends on top",
            about=ledger.path,
        )
    with warnings.catch_warnings(action="ignore"):  # said when the files are read
        unit = unit_of(data.get("unit"), Columns.from_config(data))
        planned = _planned(experiment, privacy, count, ledger)
        plan = plan_votes(privacy, count, settings.rounds, unit, ledger, planned)
    return replace(found, noise_multiplier=plan.noise_multiplier, plan=plan, beside=tuple(planned))


def _num_trained(model: Mapping[str, Any]) -> int | None:
    """Trained weights of a model of texts; None where its folder does not tell."""
    try:
        return num_parameters_of(Path(str(model.get("base_model"))), (model.get("lora") or {}).get("rank"))
    except UserError:
        return None


def _below_noise(
    experiment: Experiment,
    system: System,
    privacy: PrivacyArguments,
    num_units: int,
    batch_size: int,
    unit: str,
) -> str | None:
    """That votes, or shares of attributes, topics or labels, are below their noise, and what mends that.

    Formal guarantees:
        A function of N, B, the budget and the public number of clusters, values, topics or labels.
    """

    def shown(share: float, does: str) -> str:
        what = f"only what {share:.0%} {does} shows" if share < 1 else "nothing shows"
        return f"{system.name}: of {num_units:,} {unit}s, {what} above the noise of"

    if system.has_attributes and experiment.attributes is not None:
        least = _least_attribute(experiment.attributes, privacy, num_units)
        share = experiment.attributes.share
        text = f"{shown(least, 'have')} one attribute: raise attributes.share={share:g}"
        return None if least <= LARGE_SHARE else f"{text}, or give fewer attributes"
    noise, votes = privacy.histogram_noise_multiplier, experiment.resampling
    if not noise:
        return None
    if votes is not None and votes.of == "votes" and system.name != "topics" and system.learns != "label":
        each, clusters = num_units / votes.clusters, int(num_units / CLEAR / noise)
        fewer = f"resampling.clusters={clusters}, or " if clusters >= 2 else ""
        if each >= CLEAR * noise:
            return None
        return (
            f"{system.name}: votes are below the noise: {each:.2g} a cluster on average under noise of {noise:g}: "
            f"give {fewer}a smaller resampling.noise_multiplier"
        )
    number, key = _bins(experiment, system)
    rows = num_themes(number) if system.name == "topics" else number  # a theme has the noise of its topics together
    least = largest_noise(rows) * math.sqrt(number / rows) / num_units if number else 0.0
    if least * noise <= LARGE_SHARE:
        return None
    before, advised = _sigma(privacy, noise, num_units, batch_size, unit), ""
    for value in (value for value in FEWER_NOISE if value < noise):
        rise = _sigma(privacy, value, num_units, batch_size, unit) / before - 1
        if rise > COST:
            break
        advised = f"; {key}={value:g} shows what {least * value:.1%} ask for, for {rise:.1%} more noise of the training"
        if least * value <= LARGE_SHARE:
            break
    return f"{shown(least * noise, 'ask for')} the shares, {key}={noise:g}{advised}"


def _least_attribute(given: Attributes, privacy: PrivacyArguments, num_units: int) -> float:
    """The least share that shows above the noise of one attribute; 0 without noise."""
    from doppel.tables.aim import ONE_WAY  # needs torch, which no --help waits for

    sizes, noise = check_schema(given.schema).schema.sizes, privacy.histogram_noise(num_units) or 0.0
    return largest_noise(sum(sizes)) * noise * math.sqrt(len(sizes) / ONE_WAY) / num_units


def _sigma(privacy: PrivacyArguments, noise: float, num_units: int, batch_size: int, unit: str) -> float:
    """Noise of the training beside shares with this noise; infinite where they alone cost the budget."""
    with warnings.catch_warnings(action="ignore"):  # said when the files are read
        try:
            given = replace(privacy, histogram_noise_multiplier=noise, bands=1)  # other noise may suit other bands
            return given.plan(num_units, batch_size, privacy.epochs or [1.0], unit, None).noise_multiplier
        except CalibrationError:
            return math.inf


def _bins(experiment: Experiment, system: System) -> tuple[int, str]:
    """How many topics or labels a system counts, and the key of their noise."""
    if system.name == "topics":
        return experiment.topic_settings.num_topics, "topics.noise_multiplier"
    if system.learns == "label" and experiment.labels and Path(experiment.labels).is_file():
        return len(read_labels(Path(experiment.labels))), f"stages.{system.name}.privacy.histogram_noise_multiplier"
    return 0, ""


def _planned(experiment: Experiment, privacy: PrivacyArguments, num_units: int, ledger: Ledger) -> list[Mechanism]:
    """Rows of attributes that the run is still to measure before the votes."""
    if not experiment.evolving.measures_rows or experiment.attributes is None:
        return []
    from doppel.tables.releases import NoisyMarginals  # needs torch, which no --help waits for

    if any(record.kind == NoisyMarginals.kind for record in ledger.spent(privacy.scope)):
        return []
    share = replace(privacy, histogram_noise_multiplier=None, histogram_share=experiment.attributes.share)
    return [Mechanism(1.0, noise, 1)] if (noise := share.histogram_noise(num_units)) is not None else []


def trainings_of(system: System, steps: Iterable[Step]) -> list[Step]:
    """Return the trainings of a system on private turns, of the steps of a run."""
    own = {f"{system.name}/{stage}" for stage in system.stages}
    if not system.learns or system.models_of is not None:
        return []
    return [step for step in steps if step.kind == "fit" and step.folder in own]


def _count_units(path: str, data: Mapping[str, Any], num_units: Mapping[str, int]) -> int | None:
    """N of a data module: the units of its file, or those that are selected; None where nobody has counted them."""
    if path not in num_units:  # such as the private part of a split that is still to be made
        return None
    selected = {name: data.get(name) for name in ("keep_function", "keep_share", "limit_train_units")}
    if not any(selected.values()):
        return num_units[path]
    rows = TrainingRows.from_config({**data, "train_path": path, "shuffle_trees": None, "redact": None})
    kept = {turn.unit for turn in rows.read()}
    return min(len(kept), selected["limit_train_units"] or len(kept))
