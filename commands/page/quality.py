"""How near the samples come to human turns, for a page: every figure beside what humans have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from commands.page import charts
from commands.page.asked import Sample
from commands.pipeline.experiment import merge
from commands.pipeline.run_record import RunRecord
from commands.pipeline.systems import system
from commands.quality.human import human_value
from datamodules.columns import Columns
from datamodules.hub import is_on_hub
from datamodules.readers import expand_path, is_embedded, read_turns, reference_columns
from doppel.errors import UserError

#: Metric, or those of which the first that a system has is shown; its name; what it says; what is better.
_FIGURES: tuple[tuple[tuple[str, ...], str, str, str], ...] = (
    (("mauve",), "MAUVE", "how alike the two sets of texts are", "higher is better"),
    (("word_overlap",), "Words", "words of human turns that the samples use too", "higher is better"),
    (
        ("parsed_function_overlap", "function_overlap"),
        "Functions",
        "functions of human turns that the samples use too",
        "higher is better",
    ),
    (
        ("parsed_chi_square", "chi_square"),
        "Frequencies (χ²)",
        "how far the frequencies of functions are from those of human turns",
        "lower is better",
    ),
    (
        ("parsed_own_tree_match",),
        "Said as meant",
        "utterances that a parser reads as the tree they were written from",
        "higher is better",
    ),
    (("distinct",), "Distinct", "utterances that differ from all others", "as humans"),
    (("commonest",), "Commonest", "share of the one commonest utterance", "as humans"),
    (("mean_words",), "Length", "words in an utterance", "as humans"),
    (("distinct_trees",), "Distinct trees", "trees that differ from all others", "as humans"),
    (("commonest_tree",), "Commonest tree", "share of the one commonest tree", "as humans"),
)
_COPIES = (
    ("private/exact_copies",),
    "Copies (not private)",
    "samples that are a training utterance word for word, most of them short",
    "as humans",
)


@dataclass(frozen=True)
class Figure:
    """One metric of all systems that have it, beside the human value.

    Attributes:
        label: Its name for readers.
        told: What it says.
        better: Which way is better.
        values: One a system; None where it has none.
        human: What human turns have; None where that was not measured.
        picture: All of them on a line.
        name: As the report calls it.
    """

    label: str
    told: str
    better: str
    values: tuple[float | None, ...]
    human: float | None
    picture: Markup
    name: str

    @property
    def is_private(self) -> bool:
        """Whether it compares with private text."""
        return self.name.startswith("private/")


def figures(metrics: Mapping[str, Mapping[str, Any]], with_private: bool) -> list[Figure]:
    """The metrics of a report; those named ``private/…`` alone if they are asked for."""
    found = []
    for names, label, told, better in (*_FIGURES, *([_COPIES] if with_private else [])):
        name = next((n for n in names if any(own.get(n) is not None for own in metrics.values())), None)
        if name is None:
            continue
        values = [own.get(name) for own in metrics.values()]
        human = next((v for own in metrics.values() if (v := human_value(own, name)) is not None), None)
        top = 1.0 if label not in ("Length", "Frequencies (χ²)", "Commonest") else 0.05
        picture = charts.gauge(values, human, top)
        found.append(Figure(label, told, better, tuple(values), human, picture, name))
    return found


def reference(record: RunRecord) -> tuple[list[Sample], str]:
    """The human turns that the samples were compared with, and why there are none.

    Formal guarantees:
        The reference is a file that is declared public: a run refuses one that is its private file
        (:func:`commands.pipeline.sources.check_sources`), and so does this. Only shares of it are shown.
    """
    given = record.experiment.get("reference") or str(record.folder / "data" / "test.jsonl")
    if "reference" not in record.experiment and record.split() is None:
        return [], "the run names no reference: human turns that anybody may see"
    settings = (record.experiment, record.experiment.get("overrides") or {})  # what --set gave stands in the second
    data = merge(*(section.get("data") or {} for section in settings))
    if given == data.get("train_path"):
        return [], "the reference is the private file itself"
    try:
        path = expand_path(given)
        if not is_embedded(path) and not is_on_hub(path) and not Path(path).exists():
            return [], f"the reference {given} is not there any more"
        columns = reference_columns(path, Columns.from_config(data))
        return [Sample(turn.utterance, turn.parse) for turn in read_turns(path, "utterance", columns=columns)], ""
    except UserError as error:
        return [], str(error)


def frequency_picture(human: Sequence[Sample], samples: Sequence[Sample]) -> Markup | None:
    """Frequency of each function, human against synthetic; None where one side has no trees."""
    sides = [[sample for sample in side if sample.tree and sample.names] for side in (human, samples)]
    if not all(sides):
        return None
    counts = [Counter(name for sample in side for name in sample.names) for side in sides]
    names = sorted({name for count in counts for name in count})
    shares = [{name: count[name] / len(side) for name in names} for count, side in zip(counts, sides, strict=True)]
    points = {name: (shares[0][name], shares[1][name]) for name in names}
    return charts.scatter(
        points,
        "How often each function occurs among human and among synthetic turns",
        f"{len(names)} functions, most of them near the line of equal shares if the samples are good",
    )


def length_picture(human: Sequence[Sample], by_system: Mapping[str, Sequence[Sample]]) -> Markup:
    """How long utterances are."""
    sides = {"human turns": human, **{system(name).label: own for name, own in by_system.items()}}
    shares = {}
    for name, own in sides.items():
        counts = Counter(len(sample.utterance.split()) for sample in own)
        shares[name] = {n: count / max(1, len(own)) for n, count in counts.items()}
    means = ", ".join(
        f"{name} {sum(n * v for n, v in shares[name].items()):.1f} words" for name, own in sides.items() if own
    )
    return charts.lengths(shares, "How long the utterances are", f"On average: {means}")
