"""What an experiment can set: its fields, each with its range."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from commands.privacy.evolution_settings import Evolution
from commands.runs.sections import SECTIONS, of_system
from commands.runs.system import System
from commands.runs.systems import system
from commands.runs.yaml_files import Settings
from datamodules.redaction import Redaction
from doppel.errors import UserError

#: Keys of ``privacy`` that follow from a field of the experiment.
DERIVED = {"epochs": "epochs", "scope": "systems", "target_epsilon": "epsilon"}


@dataclass(frozen=True)
class Adaptation:
    """A parser learns, from private utterances that nobody reads, a function that it lacks.

    The experiment of Mireshghallah et al., 2023, section 5.4: see ``docs/systems.md``.

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
    annotate_by: Literal["uat", "uniform"] = "uat"


@dataclass(frozen=True)
class Calibration:
    """Samples are drawn from an over-sample by noised shares of functions, or of clusters: see ``docs/systems.md``.

    Args:
        noise_multiplier: Noise over sensitivity of the shares, which every calibrated system pays for out of its ε.
        oversample: Samples that are written for each that is drawn.
        of: ``trees``, of every system that has them; or ``utterances``, whose trees ``public_parser`` reads; or
            ``votes``, where each private text votes for the cluster of samples that is nearest to it.
        clusters: Clusters of the over-sample, for ``votes``.
        encoder: Sentence encoder, for ``votes``.
    """

    noise_multiplier: float = 10.0
    oversample: int = 20
    of: Literal["trees", "utterances", "votes"] = "trees"
    clusters: int = 100
    encoder: str = "minilm"

    def __post_init__(self) -> None:
        _check_shares("calibration", self.noise_multiplier, self.oversample)
        if self.clusters < 2:
            raise UserError(f"calibration.clusters is {self.clusters}: give at least 2")

    @property
    def draws_trees(self) -> bool:
        """Whether trees are drawn, and an utterance is written for each; else utterances are."""
        return self.of == "trees"


@dataclass(frozen=True)
class Topics:
    """What the system ``topics`` counts of utterances without labels: see ``python cli.py step calibrate --help``.

    Args:
        num_topics: Topics of the codebook.
        texts: Public utterances that the codebook is made of; ``samples``: the over-sample; null: the reference, and
            the over-sample without one.
        encoder: Sentence encoder.
        noise_multiplier: Noise over sensitivity of the topics' shares.
        oversample: Samples that are written for each that is drawn.
    """

    draws_trees = False  # as of a calibration
    num_topics: int = 40
    texts: str | None = None
    encoder: str = "minilm"
    noise_multiplier: float = 10.0
    oversample: int = 5

    def __post_init__(self) -> None:
        _check_shares("topics", self.noise_multiplier, self.oversample)
        if self.num_topics < 2:
            raise UserError(f"topics.num_topics is {self.num_topics}: give at least 2")

    def public_texts(self, reference: str | None) -> str | None:
        """The file that the codebook is made of; None for the over-sample.

        A private model of few units writes what its public base model knows: topics of its samples are those of the
        base, which tell little of the private requests and read worse. Nothing private decides between the two.
        """
        return None if self.texts == "samples" else self.texts or reference


@dataclass(frozen=True)
class Attributes:
    """What the system ``attributes`` measures of each request, and writes for: see ``docs/systems.md``.

    Args:
        schema: YAML file of attributes with their public values, as ``python cli.py metadata --schema`` takes it.
        share: Share of the budget that the table of attributes gets: of μ², where μ is that of one Gaussian release
            that costs all of ε. The training pays the rest.
    """

    schema: str
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"attributes.share is {self.share}: give a share between 0 and 1, such as 0.1")


@dataclass(frozen=True)
class Experiment:
    """What is run. A file ``configs/experiments/NAME.yaml`` holds these fields and ``base: OTHER``, whose it changes.

    The sections ``trainer``, ``model``, ``sampling``, ``data`` and ``privacy`` are those of every training; entries of
    ``stages`` and ``variants`` hold the same sections for one stage or one system, and win in this order. What
    ``--set`` gives wins over all three: it is set in the section, and deleted below. What follows from other fields
    stands nowhere: epochs of a budget, scope, prompts, paths in the run folder.

    Args:
        name: Name of the file.
        systems: Systems to train and compare, of :data:`~commands.runs.systems.SYSTEMS` or keys of ``variants``.
        epsilon: Target ε of each system; ``inf`` trains without privacy, on shuffled batches of a fixed size.
        seed: Seed of data order, dropout, sampling and evaluation, never of the privacy noise; null: the defaults.
        num_samples: Samples of each system.
        candidates: Utterances that two-stage systems draw for each tree, of which ``public_parser`` keeps the one that
            it reads as the tree, or ``fluent`` one that is said well, and texts that ``labels`` draws for each label
            and ``attributes`` for each row, of which a public sentence encoder keeps the one that it reads as that
            (``python cli.py step keep-best``);
            1 keeps what is drawn.
        fluent: Of the utterances that a two-stage system draws for a tree, those come first that a larger model of
            public text (``make base-135m``) finds as fluent as human turns, those of ``reference``.
        label_words: For ``keep-best``: value of a label → words that describe it, ``"1.0": terrible, worst``;
            a value without any is described by itself. Public knowledge, never looked up in the private texts.
        public_parser: Checkpoint of the parser that chooses among the candidates, or reads what a calibration of
            utterances counts, or writes their trees. It must not have learnt from the private turns: nothing pays for
            that, and no ε would hold.
        write_parses: The private rows have no trees: ``public_parser`` writes them, on the machine that trains.
        reference: Human turns that the samples are compared with: a file, or ``embedded:…``; null: a page of what was
            sampled and its privacy, and no metrics.
        epochs: Epochs by stage; left out, ``labels`` and ``attributes`` take those of ``one_stage``.
        data: Arguments of the DialogueDataModule.
        model: Arguments of the models; ``optimizer: {lr: …}`` is AdamW without weight decay.
        sampling: How texts are sampled.
        trainer: Arguments of the Trainer of every training.
        save_every: Minutes after which every training saves within an epoch; null: 1, of a large model 10; 0: after
            each step.
        privacy: Arguments of DP-SGD: δ, clipping norm, accountant, ….
        stages: Stage → sections of its own.
        variants: System → sections of its own. A name that no system has is two-stage with these settings.
        at_epsilon: ε → fields that hold at this ε alone.
        overlays: Configuration files that every training of a language model takes on top of all this, such as for a
            GPU.
        featurizer: Model folder or hub name whose features MAUVE compares too, beside the judges at hand (see
            ``python cli.py evaluate``).
        next_token_epochs: Epochs for which a small public model learns from the samples, to test what they teach about
            the next token of the reference; 0: this is not tested.
        compare_with_private: Also report copies of the private training text; these figures are not private.
        labels: Public list of all labels, one a line, for the system ``labels``.
        topics: How the system ``topics`` labels utterances that have no label.
        attributes: What the system ``attributes`` measures of each request; the comparison then tells of every system
            how near the samples' attributes are to those of the reference.
        evolution: How the system ``evolution`` lets texts of a public model evolve.
        redact: What is hidden of each private row before it is learnt from or counted; null: nothing. It is no part of
            the guarantee, which holds with it and without it.
        exact_histogram: Draw the labels, or attributes, as they are in the data, as the paper does: NOT PRIVATE, and
            said to be so.
        calibration: Draw the trees of every system from an over-sample; null: take them as they are sampled.
        parser: Checkpoint of a semantic parser that annotates for the evaluation (and for an adaptation).
        supported: Functions, or labels, that the assistant supports, for the page of the run: names, starts of names
            with a star, ``!NAME`` for one that it lacks; or a file of them, or a ``.csv`` table of its API. Null: the
            table under which trees are sampled, if there is one.
        names: What people call functions, labels and topics, for the page of the run: ``AttendeeListHasRecipient:
            invite people``, and under ``plumbing`` a list of functions that nobody asks for; or a YAML file of that,
            such as ``configs/names/smcalflow.yaml``. Public knowledge, as ``supported`` is.
        adaptation: What makes the run an adaptation; null: synthesis alone.
        table: Result tables that its runs stand in: main, treedst, best, few_modes, shuffled, large or adaptation.
        environment: Variables that values may name as ``${NAME}``; one that is set in the shell wins.
        parser_digest: Of the file ``parser``; the run writes it down.
        commit: Versions of the code that worked on the run; the run writes them down.
    """

    name: str
    systems: list[str] = field(default_factory=list)
    epsilon: float = 8.0
    seed: int | None = None
    num_samples: int = 1000
    candidates: int = 1
    fluent: bool = False
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
    save_every: float | None = None
    stages: dict[str, Settings] = field(default_factory=dict)
    variants: dict[str, Settings] = field(default_factory=dict)
    at_epsilon: dict[str, Settings] = field(default_factory=dict)
    overlays: list[str] = field(default_factory=list)
    featurizer: str | None = None
    next_token_epochs: int = 0
    compare_with_private: bool = False
    labels: str | None = None
    topics: Topics | None = None
    attributes: Attributes | None = None
    evolution: Evolution | None = None
    redact: Redaction | None = None
    exact_histogram: bool = False
    calibration: Calibration | None = None
    parser: str | None = None
    supported: list[str] | str | None = None
    names: str | dict[str, str | list[str]] | None = None
    adaptation: Adaptation | None = None
    table: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    parser_digest: str | None = None
    commit: list[str] = field(default_factory=list)

    @property
    def is_private(self) -> bool:
        """Whether its language models train under differential privacy."""
        return math.isfinite(self.epsilon)

    @property
    def evolving(self) -> Evolution:
        """How the system ``evolution`` works."""
        return self.evolution or Evolution()

    def epochs_of(self, settings: str) -> float:
        """Epochs of a training.

        Raises:
            UserError: The experiment does not say.
        """
        is_like = settings in ("labels", "attributes") and settings not in self.epochs
        name = "one_stage" if is_like else settings
        if name not in self.epochs:
            raise UserError(f"{self.name} does not say for how long {settings} trains: set epochs.{name}")
        return self.epochs[name]

    def of(self, system: str) -> Experiment:
        """As one system has it, with ``variants.SYSTEM`` in its sections."""
        parts = {name: getattr(self, name) for name in (*SECTIONS, "stages", "variants")}
        return replace(self, **of_system(parts, system))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without what is at its default and without what was used up when it was read."""
        always, defaults = ("name", "systems", "epsilon", "num_samples"), Experiment(name="")
        values = dataclasses.asdict(self)
        return {key: value for key, value in values.items() if key in always or value != getattr(defaults, key)}


def systems_of(experiment: Experiment) -> list[System]:
    """The systems of an experiment, in its order."""
    return [system(name) for name in experiment.systems]


def _check_shares(name: str, noise_multiplier: float, oversample: int) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise UserError(f"{name}.noise_multiplier is {noise_multiplier}: give a finite number above 0")
    if oversample < 1:
        raise UserError(f"{name}.oversample is {oversample}: give at least 1")
