"""An experiment: everything that a run is made of, read from one file and what that file is based on."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from commands.pipeline.systems import MODEL_FILES, SYSTEMS, System, system
from doppel.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "configs" / "experiments"
#: Parts of a training's settings, which an experiment may give for all, for one stage and for one system.
SECTIONS = ("trainer", "model", "sampling", "data", "privacy")

#: Keys of ``privacy`` that follow from a field of the experiment.
DERIVED = {"epochs": "epochs", "scope": "systems", "target_epsilon": "epsilon"}
#: Fields whose keys are those of other places, which check them.
_MAPPINGS = {*SECTIONS, "stages", "variants", "at_epsilon", "overrides", "epochs", "point", "environment"}

Settings = dict[str, Any]


@dataclass(frozen=True)
class Adaptation:
    """A parser learns, from private utterances that nobody reads, a function that it lacks.

    The experiment of Mireshghallah et al., 2023, section 5.4: see ``docs/adaptation.md``.

    Args:
        train: Annotated turns that are split into public and private ones.
        missing: Function that the public turns lack: a name, or the start of one and a star.
        test: Turns that parsers are scored on; null: a part of ``train``.
        test_share: Share of ``test`` (or of ``train``) that is taken.
        public_share: Share of ``train`` that is public.
        by: What is split: ``turn`` or ``dialogue``.
        num_annotated: Samples of each system with trees that are annotated, of all; null: all.
        annotate_by: How they are chosen, see ``python cli.py choose --help``.
    """

    train: str
    missing: str
    test: str | None = None
    test_share: float | None = None
    public_share: float = 0.1
    by: Literal["turn", "dialogue"] = "turn"
    num_annotated: int | None = None
    annotate_by: Literal["uat", "cmaxent", "hybrid", "uniform"] = "uat"


@dataclass(frozen=True)
class Calibration:
    """Samples are drawn from an over-sample by noised shares of function types: see ``docs/switches.md``.

    Args:
        noise_multiplier: Noise over sensitivity of the shares, which every calibrated system pays for out of its ε.
        oversample: Samples that are written for each that is drawn.
        of: ``trees``, of every system that has them; or ``utterances``, whose trees ``public_parser`` reads.
    """

    noise_multiplier: float = 10.0
    oversample: int = 20
    of: Literal["trees", "utterances"] = "trees"


@dataclass(frozen=True)
class Topics:
    """What the system ``topics`` counts of utterances without labels: see ``python cli.py calibrate --help``.

    Args:
        num_topics: Topics of the codebook.
        texts: Public utterances that the codebook is made of; null: the over-sample.
        encoder: Sentence encoder.
        noise_multiplier: Noise over sensitivity of the topics' shares.
        oversample: Samples that are written for each that is drawn.
    """

    num_topics: int = 40
    texts: str | None = None
    encoder: str = "minilm"
    noise_multiplier: float = 10.0
    oversample: int = 5


@dataclass(frozen=True)
class Experiment:
    """What is run. A file ``configs/experiments/NAME.yaml`` holds these fields and ``base: OTHER``, whose it changes.

    The sections ``trainer``, ``model``, ``sampling``, ``data`` and ``privacy`` are those of every training; entries of
    ``stages`` and ``variants`` hold the same sections for one stage or one system, and win in this order. What follows
    from other fields stands nowhere: epochs of a budget, scope, prompts, paths in the run folder.

    Args:
        name: Name of the file.
        systems: Systems to train and compare, of :data:`~commands.pipeline.systems.SYSTEMS` or keys of ``variants``.
        epsilon: Target ε of each system; ``inf`` trains without privacy, on shuffled batches of a fixed size.
        seed: Seed of data order, dropout, sampling and evaluation, never of the privacy noise; null: the defaults.
        num_samples: Samples of each system.
        candidates: Utterances that two-stage systems draw for each tree, of which ``public_parser`` keeps the one that
            it reads as the tree, and texts that ``domain`` draws for each code, of which a public sentence encoder
            keeps the one that it reads as the code (``python cli.py keep-best``); 1 keeps what is drawn.
        label_words: For ``keep-best``: value of a label → words that describe it, ``"1.0": terrible, worst``;
            a value without any is described by itself. Public knowledge, never looked up in the private texts.
        public_parser: Checkpoint of the parser that chooses among the candidates, or reads what a calibration of
            utterances counts, or writes their trees. It must not have learnt from the private turns: nothing pays for
            that, and no ε would hold.
        write_parses: The private rows have no trees: ``public_parser`` writes them, on the machine that trains.
        reference: Human turns that the samples are compared with: a file, or ``embedded:…``; null: a page of what was
            sampled and its privacy, and no metrics.
        epochs: Epochs by stage; left out, ``domain`` takes those of ``one_stage``.
        data: Arguments of the DialogueDataModule.
        model: Arguments of the models; ``optimizer: {lr: …}`` is AdamW without weight decay.
        sampling: How texts are sampled.
        trainer: Arguments of the Trainer of every training.
        save_every: Steps after which every training saves, beside the end of each epoch; null: the epochs alone.
        privacy: Arguments of DP-SGD: δ, clipping norm, accountant, ….
        stages: Stage → sections of its own.
        variants: System → sections of its own. A name that no system has is two-stage with these settings.
        at_epsilon: ε → fields that hold at this ε alone.
        overrides: Sections that win over all others; ``--set`` writes them.
        overlays: Configuration files that every training of a language model takes on top, such as for a GPU.
        featurizer: Model folder or hub name whose features MAUVE compares.
        compare_with_private: Also report copies of the private training text; these figures are not private.
        labels: Public list of the domains, one a line, for the system ``domain``.
        topics: How the system ``topics`` labels utterances that have no label.
        exact_histogram: Draw the domains as they are in the data, as the paper does: NOT PRIVATE, and said to be so.
        calibration: Draw the trees of every system from an over-sample; null: take them as they are sampled.
        parser: Checkpoint of a semantic parser that annotates for the evaluation (and for an adaptation).
        supported: Functions, or labels, that the assistant supports, for the page of the run: names, starts of names
            with a star, ``!NAME`` for one that it lacks; or a file of them, or a ``.csv`` table of its API. Null: the
            table under which trees are sampled, if there is one.
        adaptation: What makes the run an adaptation; null: synthesis alone.
        table: Result tables that its runs stand in: main, treedst, best, few_modes, shuffled, large or adaptation.
        sweep: Name of the sweep that a run is a point of; such a run stands in no table.
        point: What the point of the sweep sets.
        epsilons: Values of ε that ``--grid`` takes.
        seeds: Seeds that ``--grid`` takes.
        environment: Variables that values may name as ``${NAME}``; one that is set in the shell wins.
        parser_digest: Of the file ``parser``; the run writes it down.
        commit: Versions of the code that worked on the run; the run writes them down.
    """

    name: str
    systems: list[str] = field(default_factory=lambda: ["one_stage", "two_stage"])
    epsilon: float = 8.0
    seed: int | None = None
    num_samples: int = 1000
    candidates: int = 1
    label_words: dict[str, str] = field(default_factory=dict)
    public_parser: str | None = None
    write_parses: bool = False
    reference: str | None = None
    epochs: dict[str, float] = field(default_factory=dict)
    data: Settings = field(default_factory=dict)
    model: Settings = field(default_factory=dict)
    sampling: Settings = field(default_factory=dict)
    trainer: Settings = field(default_factory=dict)
    privacy: Settings = field(default_factory=dict)
    save_every: int | None = None
    stages: dict[str, Settings] = field(default_factory=dict)
    variants: dict[str, Settings] = field(default_factory=dict)
    at_epsilon: dict[str, Settings] = field(default_factory=dict)
    overrides: Settings = field(default_factory=dict)
    overlays: list[str] = field(default_factory=list)
    featurizer: str = "models/base"
    compare_with_private: bool = False
    labels: str | None = None
    topics: Topics | None = None
    exact_histogram: bool = False
    calibration: Calibration | None = None
    parser: str | None = None
    supported: list[str] | str | None = None
    adaptation: Adaptation | None = None
    table: str | None = None
    sweep: str | None = None
    point: Settings = field(default_factory=dict)
    epsilons: list[float] = field(default_factory=lambda: [3.0, 8.0, 16.0, math.inf])
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    environment: dict[str, str] = field(default_factory=dict)
    parser_digest: str | None = None
    commit: list[str] = field(default_factory=list)

    @property
    def is_private(self) -> bool:
        """Whether its language models train under differential privacy."""
        return math.isfinite(self.epsilon)

    @property
    def used(self) -> list[System]:
        """Its systems, of the table."""
        return [system(name) for name in self.systems]

    def epochs_of(self, settings: str) -> float:
        """Epochs of a training.

        Raises:
            UserError: The experiment does not say.
        """
        name = "one_stage" if settings == "domain" and settings not in self.epochs else settings
        if name not in self.epochs:
            raise UserError(f"{self.name} does not say for how long {settings} trains: set epochs.{name}")
        return self.epochs[name]

    def section(self, name: str) -> Settings:
        """One of ``SECTIONS`` as every training has it, but for what stages and systems change."""
        return merge(getattr(self, name), self.overrides.get(name, {}))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without what is at its default and without what was used up when it was read."""
        always, defaults = ("name", "systems", "epsilon", "num_samples"), Experiment(name="")
        values = dataclasses.asdict(self)
        return {key: value for key, value in values.items() if key in always or value != getattr(defaults, key)}


def load(path: Path, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Read an experiment.

    Args:
        path: Its file, such as ``configs/experiments/quickstart.yaml``, or a run's ``experiment.yaml``.
        changes: Fields in place of the file's, by dotted name: ``{"epsilon": 3, "data.batch_size": 64}``. Sections win
            over all that the file says of single stages and systems.

    Returns:
        The experiment, with ``base`` and ``at_epsilon`` worked in and variables filled in.

    Raises:
        UserError: The file, or one that it is based on, is not an experiment.
    """
    content = merge({"name": path.stem}, _read(path, ()))
    given: dict[str, Any] = {}
    for key, value in (changes or {}).items():
        words = key.split(".")
        for word in reversed(["overrides", *words] if words[0] in SECTIONS else words):
            value = {word: value}
        given = merge(given, value)
    epsilon = given.get("epsilon", content.get("epsilon", 8.0))
    for key, fields in (content.pop("at_epsilon", None) or {}).items():
        if _number(key, path) == _number(epsilon, path):
            content = merge(content, fields or {})
    content = merge(content, given)
    for key in ("epsilon", "epsilons"):
        if key in content:
            values = content[key]
            content[key] = [_number(v, path) for v in values] if isinstance(values, list) else _number(values, path)
    named = {**(content.pop("environment", None) or {})}
    content["environment"] = {name: os.environ.get(name, value) for name, value in named.items()}
    values = build(Experiment, fill_in(content, {**os.environ, **content["environment"]}, str(path)), path)
    for key, cls in (("adaptation", Adaptation), ("calibration", Calibration), ("topics", Topics)):
        if values[key] is not None:
            values[key] = cls(**vars(values[key]))
    experiment = Experiment(**values)
    _check(experiment, path)
    return experiment


def shipped(name: str) -> Path:
    """The file of a shipped experiment."""
    return EXPERIMENTS / f"{name}.yaml"


def save(experiment: Experiment, path: Path) -> None:
    """Write an experiment as :func:`load` reads it."""
    text = yaml.safe_dump(experiment.as_dict(), sort_keys=False, allow_unicode=True, width=120)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        UserError: It cannot be read, or holds something else.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {type(content).__name__}, not keys with values")
    return content


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings on top of one another: later ones win, key by key at every depth. Lists replace, ``KEY+`` append."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            if isinstance(value, Mapping):
                merged[key] = merge(old if isinstance(old, Mapping) else {}, value)
            elif str(key).endswith("+") and old is not None:
                merged[key] = [*_listed(old), *_listed(value)]
            else:
                merged[key] = copy.deepcopy(value)
    return merged


def fill_in(value: Any, variables: Mapping[str, str], where: str) -> Any:
    """A value with ``${NAME}`` replaced in all its texts.

    Raises:
        UserError: A variable has no value.
    """

    def found(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise UserError(f"{where} names ${match[1]}, which is not set: set it in the shell")
        return variables[match[1]]

    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", found, value)
    if isinstance(value, Mapping):
        return {key: fill_in(inner, variables, where) for key, inner in value.items()}
    return [fill_in(inner, variables, where) for inner in value] if isinstance(value, list) else value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys whose values differ, with both values; None for one that is not there."""
    ours, theirs = _flat(old), _flat(new)
    for key in dict.fromkeys([*ours, *theirs]):
        if ours.get(key) != theirs.get(key):
            yield key, ours.get(key), theirs.get(key)


def _flat(node: Mapping[str, Any]) -> dict[str, Any]:
    inner = {key: _flat(value) if isinstance(value, Mapping) else {"": value} for key, value in node.items()}
    return {f"{key}.{name}".rstrip("."): value for key, values in inner.items() for name, value in values.items()}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A file on top of its base."""
    if not path.is_file():
        raise UserError(f"there is no experiment {path}: give a file such as configs/experiments/quickstart.yaml")
    if path in seen:
        raise UserError(f"{path} is based on itself")
    content = read_yaml(path)
    files = [path.parent / f"{base}.yaml" for base in _listed(content.pop("base", []))]
    bases = [_read(file if file.is_file() else shipped(file.stem), (*seen, path)) for file in files]
    return merge(*bases, content)


def _number(value: Any, path: Path) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number > 0:
        raise UserError(f"epsilon is {value} ({path}): give a number above 0, or inf")
    return number


@cache
def _parser(cls: type) -> Any:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, skip=_MAPPINGS)
    return parser


def build(cls: type, content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Arguments of a dataclass, each of its type.

    Raises:
        UserError: There is no such field, or a value is of another type; ``path`` says where.
    """
    known = [f.name for f in dataclasses.fields(cls)]
    for key in content:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f": did you mean {nearest[0]!r}?" if nearest else f": there are {', '.join(known)}"
            raise UserError(f"{path}: {cls.__name__.lower()} has no field {key!r}{hint}")
    from jsonargparse import ArgumentError

    mappings = {key: content.get(key) or {} for key in known if key in _MAPPINGS}
    for key, value in mappings.items():
        if not isinstance(value, dict):
            raise UserError(f"{path}: {key} is {value!r}: give keys with values")
    try:
        values = _parser(cls).parse_object({k: v for k, v in content.items() if k not in _MAPPINGS})
    except ArgumentError as error:
        lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
        raise UserError(f"{path}: {' '.join(lines)[:500]}") from error
    return {**vars(values), **mappings}


def _check(experiment: Experiment, path: Path) -> None:
    """Refuse what contradicts itself, before anything runs."""
    parts = [*experiment.stages.items(), *experiment.variants.items(), ("overrides", experiment.overrides)]
    for name, sections in parts:
        for section, values in sections.items():
            if section not in SECTIONS:
                raise UserError(f"{path}: {name} has no section {section!r}: give {', '.join(SECTIONS)}")
            if not isinstance(values, dict):
                hint = "; `epsilon: inf` trains without privacy" if section == "privacy" else ""
                raise UserError(f"{path}: {section} of {name} is {values!r}: give keys with values{hint}")
    known = [*MODEL_FILES, "parser_full", "parser_augmented"]
    for field_name in ("stages", "epochs"):
        for name in getattr(experiment, field_name):
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
                raise UserError(f"{path}: {field_name} has no stage {name!r}: {hint}")
    for name, number in experiment.epochs.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
            raise UserError(f"{path}: epochs.{name} is {number!r}: give a number above 0")
    for _, sections in [("", {"privacy": experiment.privacy}), *parts]:
        for name in DERIVED.keys() & sections.get("privacy", {}).keys():
            raise UserError(f"{path}: privacy.{name} follows from the field {DERIVED[name]}: set that instead")
    if experiment.candidates < 1:
        raise UserError(f"{path}: candidates is {experiment.candidates}: give at least 1")
    if experiment.label_words and experiment.candidates == 1:
        raise UserError(f"{path}: label_words choose among candidates, and candidates is 1: give 8, or leave them out")
    wanted = experiment.calibration
    for name, shares in (("calibration", wanted), ("topics", experiment.topics)):
        if shares is not None and not (0 < shares.noise_multiplier < math.inf and shares.oversample >= 1):
            raise UserError(
                f"{path}: {name} is {vars(shares)}: give a finite noise_multiplier above 0 and an oversample of 1 or "
                "more"
            )
    if experiment.topics is not None and experiment.topics.num_topics < 2:
        raise UserError(f"{path}: topics.num_topics is {experiment.topics.num_topics}: give at least 2")
    if wanted is not None and wanted.of == "utterances" and experiment.candidates > 1:
        raise UserError(f"{path}: a calibration of utterances draws from all of them: leave out candidates")
    given = experiment.adaptation
    own_files = [name for name, sections in experiment.variants.items() if "train_path" in sections.get("data", {})]
    if experiment.write_parses and (given is not None or own_files):
        what = (
            f"variants.{own_files[0]} has a train_path of its own" if own_files else "an adaptation has its own parser"
        )
        raise UserError(f"{path}: write_parses is for data.train_path, and {what}: leave one of them out")
    has = {"": True, "labels": experiment.labels is not None, "adaptation": given is not None}
    for place, used in enumerate(experiment.used):
        described = {"stages": used.name in experiment.stages, "variants": used.name in experiment.variants}
        if not (has | described)[used.needs]:
            what = used.needs if used.needs in has else f"{used.needs}.{used.name}"
            known = ", ".join(name for name, system in SYSTEMS.items() if system.samplings)
            raise UserError(
                f"{path} has no {what}, which the system {used.name} needs: name others in systems ({known})"
            )
        if used.models_of and used.models_of not in experiment.systems[:place]:
            raise UserError(f"{used.name} samples from the models of {used.models_of}: name {used.models_of} before it")
    if given is None:
        return
    if given.num_annotated is not None and not 1 <= given.num_annotated <= experiment.num_samples:
        raise UserError(
            f"{path}: adaptation.num_annotated is {given.num_annotated}, of {experiment.num_samples} samples: give a "
            "number between, or leave it out to annotate all"
        )
    if not any(used.samplings for used in experiment.used):
        raise UserError(f"{path}: systems is {experiment.systems}: name one that is synthesised too, such as two_stage")
