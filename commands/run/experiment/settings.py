"""What an experiment can set: its fields, each with its range."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from commands.privacy.evolution_settings import Evolution
from commands.privacy.release_settings import Attributes, Resampling, Topics, Words
from commands.run_folder.sections import SECTIONS, of_system
from commands.run_folder.systems import LESSONS, System, system
from datamodules.guards.redaction import Redaction
from doppel.errors import UserError
from doppel.settings.facts import Fact, facts_of, setting
from doppel.settings.yaml_files import Settings

#: Keys of ``privacy`` that follow from a field of the experiment.
DERIVED = {"epochs": "epochs", "scope": "systems", "target_epsilon": "epsilon", "words_noise_multiplier": "words"}


#: Texts per label unless an experiment says: a small model under noise hardly follows one (docs/results).
_CANDIDATES = 8


@dataclass(frozen=True)
class Adaptation:
    """Measure whether samples teach a parser a function that its public training data lacks.

    The experiment of Mireshghallah et al., 2023, section 5.4: see ``docs/reproduce.md``.

    Args:
        train: Annotated requests, which are split into a public and a private part.
        missing: Function that the public part lacks: a name, or a prefix and a star.
        test: Requests that parsers are scored on; null: a part of ``train``.
        test_share: Share of ``test`` (or of ``train``) that is used.
        public_share: Share of ``train`` that is public.
        by: What is split: ``turn`` or ``dialogue``.
        num_annotated: Samples annotated for each system with trees; null: all.
        annotate_by: How they are selected, see ``python cli.py choose --help``.
    """

    train: str = field(metadata={"path": True})
    missing: str
    test: str | None = setting(None, path=True)
    test_share: float | None = None
    public_share: float = 0.1
    by: Literal["turn", "dialogue"] = "turn"
    num_annotated: int | None = None
    annotate_by: Literal["uat", "uniform"] = "uat"


@dataclass(frozen=True)
class Experiment:
    """Settings of an experiment: ``configs/experiments/NAME.yaml`` holds these fields on top of ``base: OTHER``.

    The sections ``trainer``, ``model``, ``sampling``, ``data`` and ``privacy`` are those of every training; entries of
    ``stages`` and ``variants`` hold the same sections for one stage or one system, and win in this order. What
    ``--set`` gives wins over all three: it is set in the section, and deleted below. What follows from other fields
    is not configured: epochs of a budget, its name, prompts, paths in the run folder.

    Args:
        name: Name of the file.
        systems: Systems to train and compare, of :data:`~commands.run_folder.systems.SYSTEMS` or keys of ``variants``.
        epsilon: Target ε of each system; ``inf`` trains without privacy, on shuffled batches of a fixed size.
        seed: Seed of data order, dropout, sampling and evaluation, never of the privacy noise; null: the defaults.
        num_samples: Samples per system.
        candidates: Texts drawn per prompt, of which ``step keep-best`` keeps one. Two-stage systems: by round-trip
            parse match with ``public_parser``. ``labels`` and ``attributes``: one that a public sentence encoder
            classifies as its prompt. 1: no selection; null: 8 for ``labels``, 1 for all others.
        label_words: For ``keep-best``: value of a label → words that describe it, ``"1.0": terrible, worst``; by
            default the value itself. Public knowledge, never looked up in the private texts.
        public_parser: Checkpoint of a parser that selects among candidates, parses requests for ``resampling``, or
            writes the trees of private rows. It must not be trained on the private requests: no ε would cover that.
        write_parses: The private rows have no trees: ``public_parser`` writes them, on the machine that trains.
        reference: Public human requests that samples are compared with: a file, or ``embedded:…``; null: no metrics,
            and a page with samples and privacy only.
        compared_with: The same for figures alone: nothing is trained, drawn or counted by it. A ``reference`` that is
            given to a run which began without one becomes this.
        epochs: Epochs by stage; ``labels`` and ``attributes`` default to those of ``one_stage``. ``public``: over one
            half of the ``reference``, 2,000 requests at most, which teaches the base of ``one_stage``, ``topics``,
            ``labels`` and ``attributes`` before anything private is read; samples are compared with the other half. 0:
            it teaches nothing. ``public_parse_tree`` and ``public_parse2utterance``: likewise for ``two_stage``, where
            each request of the reference has a tree. ``stages.public`` holds for all of them.
        effort: Factor of the expected batch size at the same number of steps: as many times the epochs, the compute and
            the time, for less noise per unit. ``--check`` tells the minutes.
        data: Arguments of the DialogueDataModule, see below.
        model: Arguments of the language models, see below; ``optimizer: {lr: …}`` is DPAdam at another rate.
        sampling: How texts are sampled, see below.
        trainer: Arguments of Lightning's Trainer for every training; ``callbacks`` are added to those of all.
        save_every: Minutes between checkpoints within an epoch; null: 1, or 10 for a large model; 0: after each step.
        privacy: Arguments of DP-SGD, see below.
        stages: Stage → sections of its own.
        variants: System → sections of its own. A name that no system has is two-stage with these settings.
        at_epsilon: ε → fields that hold only at this ε.
        overlays: Configuration files applied on top to every training of a language model, such as for a GPU.
        featurizer: Further feature model for MAUVE, a folder or hub name, beside the installed ones (see ``python
            cli.py evaluate``).
        next_token_epochs: Epochs of fine-tuning a small public model on the samples, for the next-token accuracy; 0:
            not measured.
        compare_with_private: Also report copies of private training text among samples; these figures are not private.
        labels: Public list of all labels, one a line, for the system ``labels``.
        topics: Settings of the system ``topics``.
        words: Settings of the words that nobody expected, which each private system with a ``reference`` releases;
            null: none.
        attributes: Settings of the system ``attributes``; the evaluation then compares attributes of every system with
            the reference.
        evolution: Settings of the system ``evolution``.
        redact: What is masked in each private row before training and counting; null: nothing. No part of the
            guarantee, which holds either way.
        exact_histogram: Use the exact shares of labels, or attributes, as the paper does: NOT PRIVATE, and marked so
            everywhere.
        resampling: Resample each system's over-sample to DP shares; null: keep samples as drawn.
        parser: Checkpoint of the semantic parser for the evaluation (and for an adaptation).
        supported: Functions or labels that the assistant supports, for the page: names, prefixes with a star, ``!NAME``
            for one that it lacks; or a file of them, or a ``.csv`` table of its API. Null: the table under which trees
            are sampled, if any.
        names: Readable names of functions, labels and topics, for the page: ``AttendeeListHasRecipient: invite
            people``, and under ``plumbing`` functions that nobody asks for; or a YAML file of that, such as
            ``configs/names/smcalflow.yaml``. Public knowledge.
        adaptation: Settings of an adaptation; null: synthesis only.
        table: Result tables that the runs belong to: main, treedst, best, few_modes, shuffled, large or adaptation.
        environment: Variables that values may use as ``${NAME}``; those set in the shell win.
        parser_digest: Digest of ``parser``; written by the run.
        commit: Versions of the code that worked on the run; written by the run.
        point: Of a grid, the values that this run has of its own; written by the run.
    """

    name: str = field(metadata={"binds": "nothing"})
    systems: list[str] = setting(factory=list, binds="nothing")
    epsilon: float = 8.0
    seed: int | None = None
    num_samples: int = setting(1000, binds="samples")
    candidates: int | None = setting(None, binds="samples")
    label_words: dict[str, str] = setting(factory=dict, binds="samples")
    public_parser: str | None = setting(None, path=True)
    write_parses: bool = False
    reference: str | None = setting(None, path=True)
    compared_with: str | None = setting(None, path=True, binds="evaluation")
    epochs: dict[str, float] = setting(factory=dict)
    effort: int = 1
    data: Settings = setting(factory=dict, keys=SECTIONS["data"].keys)
    model: Settings = setting(factory=dict, keys=SECTIONS["model"].keys)
    sampling: Settings = setting(factory=dict, binds="samples", keys=SECTIONS["sampling"].keys)
    trainer: Settings = setting(factory=dict, keys=SECTIONS["trainer"].keys)
    privacy: Settings = setting(factory=dict, keys=SECTIONS["privacy"].keys)
    save_every: float | None = setting(None, binds="nothing")
    stages: dict[str, Settings] = setting(factory=dict, each=Fact(keys=SECTIONS))
    variants: dict[str, Settings] = setting(factory=dict, each=Fact(keys=SECTIONS))
    at_epsilon: dict[str, Settings] = setting(factory=dict)
    overlays: list[str] = setting(factory=list, path=True)
    featurizer: str | None = setting(None, path=True, binds="evaluation")
    next_token_epochs: int = setting(0, binds="evaluation")
    compare_with_private: bool = setting(False, binds="evaluation")
    labels: str | None = setting(None, path=True)
    topics: Topics | None = None
    words: Words | None = setting(factory=Words)
    attributes: Attributes | None = None
    evolution: Evolution | None = None
    redact: Redaction | None = None
    exact_histogram: bool = False
    resampling: Resampling | None = None
    parser: str | None = setting(None, path=True, binds="evaluation")
    supported: list[str] | str | None = setting(None, path=True, alone=True, binds="nothing")
    names: str | dict[str, str | list[str]] | None = setting(None, path=True, binds="nothing")
    adaptation: Adaptation | None = None
    table: str | None = setting(None, binds="nothing")
    environment: dict[str, str] = setting(factory=dict, binds="nothing")
    parser_digest: str | None = setting(None, binds="evaluation")
    commit: list[str] = setting(factory=list, binds="nothing")
    point: dict[str, Any] = setting(factory=dict, binds="nothing")

    @property
    def is_private(self) -> bool:
        """Whether its language models train under differential privacy."""
        return math.isfinite(self.epsilon)

    @property
    def lessons(self) -> dict[str, str]:
        """Stages of its systems that one half of the reference teaches before anything private is read → their lessons.

        All lessons are of the same half.
        """
        if self.reference is None or self.adaptation is not None:
            return {}
        stages = {stage for system in systems_of(self) for stage in system.stages}
        return {stage: lesson for stage, lesson in LESSONS.items() if stage in stages and self.epochs.get(lesson)}

    @property
    def compared(self) -> str | None:
        """Public requests that samples are compared with."""
        return self.reference or self.compared_with

    @property
    def counted_words(self) -> Words | None:
        """How words are released that nobody expected; None where they are not."""
        is_counted = self.is_private and self.reference is not None and self.adaptation is None
        return self.words if is_counted else None

    @property
    def topic_settings(self) -> Topics:
        """How the system ``topics`` works."""
        return self.topics or Topics()

    @property
    def evolving(self) -> Evolution:
        """How the system ``evolution`` works."""
        return self.evolution or Evolution()

    def candidates_of(self, system: System) -> int:
        """Return how many texts are drawn per prompt of a system, of which one is kept."""
        if self.candidates is not None:
            return self.candidates
        return _CANDIDATES if system.needs == "labels" else 1

    def epochs_of(self, settings: str) -> float:
        """Return the epochs of a training.

        Raises:
            UserError: The experiment does not say.
        """
        is_like = settings in ("labels", "attributes") and settings not in self.epochs
        name = "one_stage" if is_like else settings
        if name not in self.epochs:
            raise UserError(f"{self.name} does not say for how long {settings} trains: set epochs.{name}")
        return self.epochs[name]

    def of(self, system: str) -> Experiment:
        """Return the experiment as one system has it, with ``variants.SYSTEM`` in its sections."""
        parts = {name: getattr(self, name) for name in (*SECTIONS, "stages", "variants")}
        return replace(self, **of_system(parts, system))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, without defaults and without what was used up when it was read."""
        always, defaults = ("name", "systems", "epsilon", "num_samples"), dataclasses.asdict(Experiment(name=""))
        values = dataclasses.asdict(self)
        return {key: value for key, value in values.items() if key in always or value != defaults[key]}


FACTS = facts_of(Experiment)
#: What every key of an experiment is; a configuration of a training has some of them.
FACTS = replace(FACTS, keys={**FACTS.keys, "at_epsilon": replace(FACTS.keys["at_epsilon"], each=FACTS)})


def systems_of(experiment: Experiment) -> list[System]:
    """Return the systems of an experiment, in its order."""
    return [system(name) for name in experiment.systems]
