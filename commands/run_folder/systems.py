"""What a system is, and the one table of systems, which runs, reports, tables and pages read.

The files of a system lie in the folder of its name::

    RUN/public/, RUN/public_STAGE/              models, taught by public requests, where an experiment asks for them
    RUN/SYSTEM/STAGE/                           a trained model, of which RUN/SYSTEM/sample_STAGE/ samples
    RUN/SYSTEM/{trees,labels}.jsonl             what it writes samples for
    RUN/SYSTEM/{pool,candidates}.jsonl          an over-sample, and several texts for each prompt
    RUN/SYSTEM/{samples.jsonl,evaluation.json}
    RUN/SYSTEM/draws/2/                         the same of what is sampled later

A step is called after its place in the run, with ``-`` for ``/``: ``two_stage-sample_parse_tree``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from commands.run_folder.places import PLACE
from datamodules.reading.example import Field

#: Model that a language model starts from where an experiment names none.
BASE_MODEL = str(PLACE / "models/base")
#: Stage in which one half of the public reference teaches the base to write requests, once for all systems of a run.
PUBLIC = "public"
#: Stage of a private training → the stage in which that half teaches it first; for a label as by themselves.
LESSONS = {
    "one_stage": PUBLIC,
    "labels": PUBLIC,
    "attributes": PUBLIC,
    "parse_tree": "public_parse_tree",
    "parse2utterance": "public_parse2utterance",
}
#: Stage of a training (a key of ``Experiment.epochs`` and ``Experiment.stages``) → the file of its model.
MODEL_FILES = {
    PUBLIC: "configs/utterance_lm.yaml",
    "public_parse_tree": "configs/parse_tree_lm.yaml",
    "public_parse2utterance": "configs/parse2utterance.yaml",
    "one_stage": "configs/utterance_lm.yaml",
    "labels": "configs/parse2utterance.yaml",
    "attributes": "configs/parse2utterance.yaml",
    "parse_tree": "configs/parse_tree_lm.yaml",
    "parse2utterance": "configs/parse2utterance.yaml",
    "parser": "configs/semantic_parser.yaml",
    "parser_low": "configs/semantic_parser.yaml",
}


@dataclass(frozen=True)
class System:
    """A way from private turns to synthetic ones, or a training that stands alone.

    Attributes:
        name: As in ``Experiment.systems``, reports and the ledger's scopes.
        label: As tables and plots call it.
        stages: Its models, keys of :data:`MODEL_FILES`, in the order of the budget that they share.
        learns: What its models learn of the private turns; None: it has no samples.
        models_of: System whose models it samples from, so that it spends nothing itself: sampling is post-processing.
        needs: What an experiment must describe for it: ``""`` nothing, ``stages`` or ``variants`` an entry of its name,
            ``labels`` the list of labels, ``attributes`` which there are, ``adaptation`` that it is one.
        is_main: Whether its figures stand for a run's where one system's are shown, and its samples are those of
            ``RUN/synthetic.jsonl``.
        about: What it does, in words for readers of a page; empty where it has no samples.
    """

    name: str
    label: str
    stages: tuple[str, ...] = ()
    learns: Field | None = None
    models_of: System | None = None
    needs: Literal["", "stages", "variants", "labels", "attributes", "adaptation"] = ""
    is_main: bool = False
    about: str = ""

    @property
    def has_trees(self) -> bool:
        """Whether the samples come with the trees that they were written from."""
        return self.learns == "parse"

    @property
    def has_attributes(self) -> bool:
        """Whether the samples come with the attributes that they were written for, and are counted by these."""
        return self.needs == "attributes"

    @property
    def scope(self) -> str:
        """Scope of the ledger that pays for the samples: the system in whose folder the models lie."""
        return self.models_of.name if self.models_of else self.name


def _with_trees(name: str, label: str, **fields: Any) -> System:
    about = "it writes a parse tree first, then a request that says it"
    return System(name, label, ("parse_tree", "parse2utterance"), "parse", about=about, **fields)


_MAIN = _with_trees("two_stage", "2-stage", is_main=True)
_ONE = System("one_stage", "1-stage", ("one_stage",), "utterance", about="it writes requests, and nothing else")
#: Every system, in the order of the tables.
SYSTEMS = {
    system.name: system
    for system in (
        System("none", "none", needs="adaptation"),  # a parser that public turns alone taught
        System("full", "full data", needs="adaptation"),  # the high-resource parser itself
        _ONE,
        System(
            "labels",
            "1.5-stage",
            ("labels",),
            "label",
            needs="labels",
            about="it writes a request for each label, with labels in the shares that were measured",
        ),
        System(
            "attributes",
            "by attributes",
            ("attributes",),
            "label",
            needs="attributes",
            about="it writes a request for each row of attributes, and these go together as in the data",
        ),
        System(
            "topics",
            "1-stage, by topics",
            ("one_stage",),
            "utterance",
            about="it writes requests, and draws of them by the measured shares of topics, as far as they have them",
        ),
        System(
            "evolution",
            "private evolution",
            learns="utterance",
            about="a public model writes requests, and private ones vote, under noise, for those that are like them",
        ),
        _MAIN,
        _with_trees("shuffled", "2-stage, shuffled trees"),
        _with_trees("unconstrained", "2-stage without grammar", models_of=_MAIN),
        # trainings alone: never private, so of public text
        System("parser", "parser", ("parser",), needs="stages"),
        System("parser_low", "low-resource parser", ("parser_low",), needs="stages"),
    )
}
#: What an experiment compares that names no systems.
USUAL = (_ONE.name, _MAIN.name)


def system(name: str) -> System:
    """Return a system of the table; any other name is two-stage under settings of its own, ``variants.NAME``."""
    return SYSTEMS.get(name) or _with_trees(name, f"2-stage, {name}", needs="variants")


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of systems in the order of the table; those that it lacks follow by name."""
    places = {name: place for place, name in enumerate(SYSTEMS)}
    return sorted(names, key=lambda name: (places.get(name, len(places)), name))


def main_of(names: Iterable[str]) -> str:
    """Return the system whose figures stand for a run's: the main one, else the first; ``""`` of none."""
    return min(names, key=lambda name: not system(name).is_main, default="")
