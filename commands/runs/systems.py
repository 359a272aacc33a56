"""The one table of systems, which runs, reports, tables and pages read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from commands.runs.system import System


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
            about="it writes a request for each label, with labels as frequent as in the data",
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
            about="it writes requests, and topics are as frequent as in the data",
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
