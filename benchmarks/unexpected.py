"""What a run finds that nobody expected: private requests some of whose themes the public reference lacks.

Of Schema-Guided Dialogue the reference lacks five random domains of sixteen, of SMCalFlow one function. Private
requests are of ``train``, the reference is of ``valid``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from datamodules.reading.example import Example, Unit
from datamodules.reading.examples import read_examples
from doppel.lispress import valid_function_types

#: Themes of SMCalFlow: a request has that of the first of these functions in its tree, of rare ones first.
FUNCTIONS = (
    "WeatherQueryApi",
    "DeleteCommitEventWrapper",
    "PleasantryAnythingElseCombined",
    "FindNumNextEvent",
    "UpdateCommitEventWrapper",
    "CreateCommitEventWrapper",
    "FindEventWrapperWithDefaults",
)
#: Domains of Schema-Guided Dialogue that the reference lacks.
NUM_HIDDEN = 5


@dataclass(frozen=True)
class Trial:
    """Private requests, and a reference that lacks some of their themes.

    Attributes:
        private: Requests; ``label`` is the theme.
        reference: Public ones, without those of hidden themes.
        hidden: Themes that the reference lacks.
    """

    private: list[Example]
    reference: list[Example]
    hidden: frozenset[str]

    def shares(self) -> dict[str, float]:
        """Of each theme among the private rows."""
        labels = [turn.label or "" for turn in self.private]
        return {label: labels.count(label) / len(labels) for label in sorted(set(labels))}


def sgd(num_units: int, unit: Unit = "utterance", seed: int = 1, hide: int = 1) -> Trial:
    """Schema-Guided Dialogue without five domains.

    Args:
        num_units: Private utterances, or dialogues.
        unit: What a unit is.
        seed: Of which units are private.
        hide: Seed of which domains are hidden.
    """
    private = draw(_turns("sgd", "train"), num_units, unit, seed)
    domains = sorted({turn.label or "" for turn in _turns("sgd", "train")})
    return _trial(private, _turns("sgd", "valid"), random.Random(hide).sample(domains, NUM_HIDDEN))


def smcalflow(num_units: int, unit: Unit = "utterance", seed: int = 1, hide: int = 1) -> Trial:
    """SMCalFlow without one function of :data:`FUNCTIONS`; arguments as for :func:`sgd`."""
    private = draw(_turns("smcalflow", "train"), num_units, unit, seed)
    return _trial(private, _turns("smcalflow", "valid"), [FUNCTIONS[hide % len(FUNCTIONS)]])


DATA: dict[str, Callable[..., Trial]] = {"sgd": sgd, "smcalflow": smcalflow}


def draw(turns: Sequence[Example], num_units: int, unit: Unit, seed: int) -> list[Example]:
    """The turns of random units; a smaller draw is part of a larger one."""
    own = [replace(turn, unit=f"{i}") for i, turn in enumerate(turns)] if unit == "utterance" else turns
    units = sorted({turn.unit for turn in own})
    random.Random(seed).shuffle(units)
    chosen = set(units[:num_units])
    return [turn for turn in own if turn.unit in chosen]


def _trial(private: list[Example], public: Sequence[Example], hidden: Sequence[str]) -> Trial:
    return Trial(private, [turn for turn in public if turn.label not in hidden], frozenset(hidden))


@cache
def _turns(data: str, part: str) -> list[Example]:
    folder = os.environ["DOPPEL_DATA"]
    found = read_examples(f"{folder}/{data}/{part}.dataflow_dialogues.jsonl.zip", "dialogue")
    if data == "sgd":
        return found
    types = [set(valid_function_types(turn.parse or "", "node_labels") or ()) for turn in found]
    themes = [next((name for name in FUNCTIONS if name in own), "other") for own in types]
    return [replace(turn, label=theme) for turn, theme in zip(found, themes, strict=True)]
