"""How near the samples come to human requests, for a page: every figure beside what humans have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from commands.quality.measures import DOWN, INSTEAD, UP, Band, Measure, band, human_value, judged, measure
from commands.report.asked import Sample
from commands.report.names import Names
from commands.report.released import sampling_interval
from commands.run_folder.private_files import of_runs
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.systems import BASE_MODEL, LESSONS, PUBLIC, system
from datamodules.guards.overlap import refuse_private
from datamodules.reading.columns import ReferenceColumns
from datamodules.reading.embedded import is_embedded
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from datamodules.reading.hub import is_on_hub
from doppel.errors import UserError

_DOWNSTREAM = "attribute_downstream"
#: First on a page: a MAUVE can be high where samples are no requests.
_FIRST = "fluency_outliers"
#: Second, and what systems are ordered by: of six writers it has the order of blind readers (docs/results.md). It says
#: of few samples too how many are among people's requests.
_PRECISION = "precision_minilm"
#: Shares of samples, each of which is one trial.
_OF_SAMPLES = (_FIRST, _PRECISION)
#: Metrics of a page, in its order, after the MAUVE of independent judges and before that of the generator's own base.
_FIGURES = (
    "fluency",
    "word_overlap",
    "parsed_function_overlap",
    "parsed_chi_square",
    "parsed_own_tree_match",
    "distinct",
    "attribute_jsd",
    "attribute_adherence",
    "attribute_adherence_chance",
    "next_token_accuracy",
    _DOWNSTREAM,
    f"{_DOWNSTREAM}_majority",
    "commonest",
    "mean_words",
    "distinct_trees",
    "commonest_tree",
)
_COPIES = "private/exact_copies"
#: What the experiments for one's own data have.
_EFFORT, _USUAL_EPSILON = 4, 8


@dataclass(frozen=True)
class Figure:
    """One metric of all systems, beside the human value.

    Attributes:
        measure: What it is.
        values: One a system; None where it has none.
        human: What human requests have; None where that was not measured.
        top: The value at the right end of the line on which all of them are shown.
        bands: What the values mean, each with the systems that have such a value.
    """

    measure: Measure
    values: tuple[float | None, ...]
    human: float | None
    top: float
    bands: Mapping[Band, Sequence[str]]

    @property
    def is_private(self) -> bool:
        """Whether it compares with private text."""
        return self.measure.name.startswith("private/")


def figures(
    metrics: Mapping[str, Mapping[str, Any]], with_private: bool, with_beams: Collection[str] = ()
) -> list[Figure]:
    """Return the metrics of a report; those named ``private/…`` alone if they are asked for.

    Args:
        metrics: Of a report.
        with_private: Whether they are asked for.
        with_beams: Systems that were sampled with beams.
    """
    found = []
    for first in (*_names(metrics), *([_COPIES] if with_private else [])):
        names = (first, *INSTEAD.get(first, ()))
        name = next((n for n in names if any(own.get(n) is not None for own in metrics.values())), None)
        if name is None:
            continue
        values = tuple(own.get(name) for own in metrics.values())
        human = next((v for own in metrics.values() if (v := human_value(own, name)) is not None), None)
        largest = max(value for value in (*values, human) if value is not None)
        top = 1.0 if measure(name).better == UP and largest <= 1 else 1.2 * largest or 1.0
        bands: dict[Band, list[str]] = {}
        for system_name, own in metrics.items():
            if (found_band := band(own, name)) is not None:
                told = replace(found_band, text=found_band.told(system_name in with_beams))
                bands.setdefault(told, []).append(system(system_name).label)
        found.append(Figure(measure(name), values, human, top, bands))
    return found


def not_good_enough(
    metrics: Mapping[str, Mapping[str, Any]],
    with_beams: Collection[str] = (),
    kept: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, list[str]]:
    """Return why samples are not good enough to read or to use: system → sentences, each a figure with what it means.

    Formal guarantees:
        A function of public figures of released samples, as :func:`best_first`.

    A share has the 95 % CI of as many samples as were compared, however few. Where there is a precision, no MAUVE
    decides: at .57 of the human value 35 of 40 samples were usable, which were more alike. The system that has no bad
    figure is left out.

    Args:
        metrics: Of a report.
        with_beams: Systems that were sampled with beams.
        kept: What was kept of several texts for each label, by system (:func:`following`).
    """
    found: dict[str, list[str]] = {}
    for name, own in metrics.items():
        for key in _names(metrics):
            told = band(own, key)
            is_decided = key.startswith("mauve_") and own.get(_PRECISION) is not None
            if told is not None and told.is_bad and not is_decided and not key.startswith("private/"):
                about, number = measure(key), own.get("num_compared")
                text = f"{about.label} {about.show(own[key])}"
                if key in _OF_SAMPLES and isinstance(number, int) and number > 0:
                    low, high = sampling_interval(round(own[key] * number), number)
                    people = about.show(human_value(own, key))
                    text += f" (95 % CI {about.show(low)} to {about.show(high)} of {number:,} samples, people {people})"
                found.setdefault(name, []).append(f"{text[:1].upper()}{text[1:]}. {told.told(name in with_beams)}")
    for name, numbers in (kept or {}).items():
        told_of_labels = following(numbers)
        if told_of_labels is not None and told_of_labels.is_by_chance:
            found.setdefault(name, []).append(f"They do not follow their labels: {told_of_labels.text}.")
    return found


@dataclass(frozen=True)
class Following:
    """How many samples say the label that they were written for.

    Attributes:
        text: In words, with its interval.
        is_by_chance: Whether as many of those that were kept would say a label that is drawn at random.
    """

    text: str
    is_by_chance: bool


def following(kept: Mapping[str, Any] | None) -> Following | None:
    """Read it from the record of what was kept of several texts for each label; None where none was read."""
    if kept is None or kept.get("chance_match") is None:
        return None
    share, chance, number = kept["kept_match"], kept["chance_match"], kept["num_kept"]
    low, high = sampling_interval(round(share * number), number)
    of_all, drawn = kept["candidates_match"], kept["num_candidates"]
    text = (
        f"a public encoder reads {share:.0%} of the {number:,} samples that were kept as their label (95 % CI "
        f"{low:.0%} to {high:.0%}), {of_all:.0%} of all {drawn:,} that were drawn, and {chance:.0%} as one at random"
    )
    if sampling_interval(round(of_all * drawn), drawn)[0] <= chance:
        text += ": the model does not follow labels, and what was kept says its own by chance"
    return Following(text, low <= chance)


def advice(record: RunFolder) -> str:
    """Return what would bring the samples nearer to people's requests and this run has not, in the order of its worth.

    Formal guarantees:
        A function of the experiment alone.
    """
    experiment = record.experiment
    base = Path((experiment.get("model") or {}).get("base_model") or BASE_MODEL)
    found = []
    if base.parts[-2:] == Path(BASE_MODEL).parts[-2:]:
        found.append(
            "a base that reads English, as own-data.yaml has (make base-135m): in blind readings 23 to 35 of its 40 "
            "samples were usable, and 10 to 13 of the shipped base's"
        )
    lessons = {LESSONS.get(stage) for name in experiment.get("systems") or () for stage in system(name).stages}
    is_taught = bool((experiment.get("epochs") or {}).get(PUBLIC))
    if experiment.get("reference") and not is_taught and PUBLIC in lessons:
        found.append(
            "epochs.public=3, by which half of the reference teaches the base first, as in own-data.yaml: of a support "
            "desk's samples by label 20 and 21 of 40 were usable so, and 3 to 8 without"
        )
    if (experiment.get("effort") or 1) < _EFFORT:
        found.append(f"effort={_EFFORT}, which takes as many times the compute for less noise")
    if record.is_private and experiment.get("epsilon", math.inf) < _USUAL_EPSILON:
        found.append("a larger ε")
    return "; ".join([*found, "more requests"])


def best_first(systems: Sequence[str], metrics: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], Measure | None]:
    """Systems by how near their samples come to human requests.

    Formal guarantees:
        The order follows from public figures of released samples: post-processing. No figure ``private/…`` is read.

    Args:
        systems: In the order in which those stand that nothing tells apart.
        metrics: Of a report.

    Returns:
        The systems, and what orders them: the first metric of a page that all of them have and that is better in one
        direction; those whose samples are mostly no requests stand last. The order as given, and None, where there is
        no such metric.
    """
    odd = (own for own in systems if (found := band(metrics.get(own, {}), _FIRST)) is not None and found.is_bad)
    bad = set(odd)
    for first in _names(metrics):
        for name in (first, *INSTEAD.get(first, ())):
            better = measure(name).better
            found = [
                (value, own) for own in systems if isinstance(value := metrics.get(own, {}).get(name), int | float)
            ]
            if better in (UP, DOWN) and len(found) == len(systems):
                found.sort(key=lambda pair: (pair[1] in bad, -pair[0] if better == UP else pair[0]))
                return [own for _, own in found], measure(name)
    return list(systems), None


def _names(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Metrics in the order of a page."""
    independent, own = judged(metrics.values())
    each = {name for values in metrics.values() for name in values if name.startswith(f"{_DOWNSTREAM}_")}
    return [_FIRST, _PRECISION, *independent, *_FIGURES, *sorted(each - {*_FIGURES}), *own]


def reference(record: RunFolder) -> tuple[list[Sample], str]:
    """Describe the human requests that the samples were compared with, or say why there are none.

    Formal guarantees:
        The reference is a file that is declared public: a run refuses one that says what its private file does
        (:func:`datamodules.guards.overlap.overlapping`), and so does this. Only shares of it are shown.
    """
    given = record.reference or str(record.folder / "data" / "test.jsonl")
    if record.reference is None and record.split() is None:
        return [], "the run names no reference: human requests that anybody may see"
    try:
        path = expand_path(given)
        if not is_embedded(path) and not is_on_hub(path) and not Path(path).exists():
            return [], f"the reference {given} is not there any more"
        columns = ReferenceColumns.from_config(record.experiment.get("data") or {})
        refuse_private([("reference", given, columns)], of_runs(record.folder))
        return [Sample(turn.utterance, turn.parse) for turn in read_examples(path, "utterance", columns=columns)], ""
    except UserError as error:
        return [], str(error)


def frequency_picture(human: Sequence[Sample], samples: Sequence[Sample], called: Names) -> Markup | None:
    """Frequency of each function, human against synthetic; None where one side has no trees."""
    from commands.report.charts import scatter  # matplotlib, for which no --help waits

    sides = [[sample for sample in side if sample.tree and sample.names] for side in (human, samples)]
    if not all(sides):
        return None
    counts = [Counter(name for sample in side for name in sample.names) for side in sides]
    names = sorted({name for count in counts for name in count})
    shares = [{name: count[name] / len(side) for name in names} for count, side in zip(counts, sides, strict=True)]
    words = {name: name if called.of(name) == name else f"{called.of(name)} ({name})" for name in names}
    points = {words[name]: (shares[0][name], shares[1][name]) for name in names}
    return scatter(
        points,
        "How often each function occurs among human and among synthetic requests",
        f"{len(names)} functions, most of them near the line of equal shares if the samples are good",
    )


def length_picture(human: Sequence[Sample], by_system: Mapping[str, Sequence[Sample]]) -> Markup:
    """Draw how long utterances are."""
    from commands.report.charts import lengths

    sides = {"human requests": human, **{system(name).label: own for name, own in by_system.items()}}
    words = {name: [len(sample.utterance.split()) for sample in own] for name, own in sides.items()}
    means = ", ".join(f"{name} {fmean(own):.1f} words" for name, own in words.items() if own)
    return lengths(words, "How long the utterances are", f"On average: {means}")
