"""The one table of systems: what each one trains, what it samples from, and how tables call it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

#: Settings of a training (a key of ``Experiment.epochs`` and ``Experiment.stages``) → the file of its model.
MODEL_FILES = {
    "one_stage": "configs/utterance_lm.yaml",
    "domain": "configs/parse2utterance.yaml",
    "parse_tree": "configs/parse_tree_lm.yaml",
    "parse2utterance": "configs/parse2utterance.yaml",
    "parser": "configs/semantic_parser.yaml",
    "parser_low": "configs/semantic_parser.yaml",
}


@dataclass(frozen=True)
class Training:
    """A model of a system.

    Attributes:
        folder: Its stage, and folder in the run folder.
        settings: Whose settings it takes, a key of :data:`MODEL_FILES`.
    """

    folder: str
    settings: str


@dataclass(frozen=True)
class Sampling:
    """One pass of ``predict``: texts that a trained model writes.

    Attributes:
        name: Its stage.
        model: Folder of the model.
        settings: Whose settings the model was built with.
        source: What the samples call their origin; the pass has the folder ``sample_SOURCE``.
        writes: The file, in the run folder.
        prompts: File of the prompts; None for a model that takes none.
    """

    name: str
    model: str
    settings: str
    source: str
    writes: str
    prompts: str | None = None

    @property
    def folder(self) -> str:
        """Folder of the pass in the run folder."""
        return f"sample_{self.source}"

    def chooses(self, candidates: int) -> bool:
        """Whether it draws several texts for each tree or code, of which one is kept."""
        return candidates > 1 and self.settings in ("parse2utterance", "domain")

    @property
    def candidates(self) -> str:
        """File of what is drawn where one is kept."""
        return self.writes.replace("synthetic", "candidates", 1)


@dataclass(frozen=True)
class System:
    """A way from private turns to synthetic ones, or a training that stands alone.

    Attributes:
        name: As in ``Experiment.systems``, reports and the ledger's scopes.
        label: As tables and plots call it.
        trainings: Its models, in the order of the budget that they share.
        samplings: Its passes; the last one writes the samples. Empty: nothing is synthesised.
        models_of: System whose models it samples from, so that it spends nothing itself: sampling is post-processing.
        is_switch: Whether it is two-stage with one thing changed, beyond the paper.
        needs: What an experiment must describe for it: ``""`` nothing, ``stages`` or ``variants`` an entry of its name,
            ``labels`` the list of domains, ``adaptation`` that it is one.
        changes: Sections of an experiment that it sets.
    """

    name: str
    label: str
    trainings: tuple[Training, ...] = ()
    samplings: tuple[Sampling, ...] = ()
    models_of: str | None = None
    is_switch: bool = False
    needs: Literal["", "stages", "variants", "labels", "adaptation"] = ""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def synthetic(self) -> str:
        """File of the samples, in the run folder."""
        return synthetic_file(self.name)

    @property
    def has_trees(self) -> bool:
        """Whether the samples come with the trees that they were written from."""
        return len(self.samplings) > 1

    def calibrated(self, of: Literal["trees", "utterances"]) -> Sampling | None:
        """The pass whose texts an experiment's ``calibration`` draws from an over-sample; None where it draws none.

        ``domain`` and ``topics`` have shares of their own.
        """
        if self.name in ("domain", "topics") or len(self.samplings) < (2 if of == "trees" else 1):
            return None
        return self.samplings[0 if of == "trees" else -1]

    @property
    def scope(self) -> str:
        """Scope of the ledger that pays for the samples."""
        return self.models_of or self.name


def synthetic_file(name: str) -> str:
    """File of a system's samples, in the run folder."""
    return "synthetic.jsonl" if name == "two_stage" else f"synthetic_{name}.jsonl"


def pool_of(writes: str) -> str:
    """File of the over-sample that a file of trees or utterances is drawn from."""
    return writes.replace("synthetic", "pool") if "synthetic" in writes else writes.replace(".jsonl", "_pool.jsonl")


def two_passes(own: str, models: str, writes: str) -> tuple[Sampling, Sampling]:
    """Trees of p(y), then utterances of p(x|y) for them.

    Args:
        own: Prefix of the passes' names and files.
        models: Prefix of the models' folders.
        writes: File of the samples.
    """
    trees, utterances, file = "parse_tree", "parse2utterance", f"{own}trees.jsonl"
    return (
        Sampling(f"sample_{own}trees", models + trees, trees, own + trees, file),
        Sampling(f"sample_{own}utterances", models + utterances, utterances, own + utterances, writes, file),
    )


def _one_model(name: str, label: str, prompts: str | None = None) -> System:
    sampling = Sampling(f"sample_{name}", name, name, name, synthetic_file(name), prompts)
    return System(name, label, (Training(name, name),), (sampling,))


def _two_models(name: str, label: str, needs: Literal["", "variants"] = "variants") -> System:
    own = "" if name == "two_stage" else f"{name}_"
    trainings = tuple(Training(own + settings, settings) for settings in ("parse_tree", "parse2utterance"))
    samplings = two_passes(own, own, synthetic_file(name))
    return System(name, label, trainings, samplings, needs=needs)


#: Every system, in the order of the tables.
SYSTEMS = {
    system.name: system
    for system in (
        System("none", "none", needs="adaptation"),  # a parser that public turns alone taught
        System("full", "full data", needs="adaptation"),  # the high-resource parser itself
        _one_model("one_stage", "1-stage"),
        replace(
            _one_model("domain", "1.5-stage", prompts="domains.jsonl"),
            changes={"model": {"source": "domain"}},
            needs="labels",
        ),
        System(
            "topics",
            "1-stage, by topics",
            (Training("topics", "one_stage"),),
            (Sampling("sample_topics", "topics", "one_stage", "topics", synthetic_file("topics")),),
        ),
        _two_models("two_stage", "2-stage", needs=""),
        replace(
            _two_models("shuffled", "2-stage, shuffled trees", needs=""),
            changes={"data": {"shuffle_trees": 1}},  # a seed; the guarantee is one for the shuffled rows
        ),
        System(
            "unconstrained",
            "2-stage without grammar",
            samplings=two_passes("unconstrained_", "", synthetic_file("unconstrained")),
            models_of="two_stage",
            is_switch=True,
            changes={"sampling": {"grammar": None}},
        ),
        # trainings alone: never private, so of public text
        System("parser", "parser", (Training("parser", "parser"),), needs="stages"),
        System("parser_low", "low-resource parser", (Training("parser_low", "parser_low"),), needs="stages"),
    )
}


def system(name: str) -> System:
    """A system of the table; any other name is two-stage under settings of its own, ``variants.NAME``."""
    return SYSTEMS.get(name) or _two_models(name, f"2-stage, {name}")


def in_order(names: Iterable[str]) -> list[str]:
    """Names of systems in the order of the table; those that it lacks follow by name."""
    places = {name: place for place, name in enumerate(SYSTEMS)}
    return sorted(names, key=lambda name: (places.get(name, len(places)), name))
