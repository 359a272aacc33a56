"""What a run finds that nobody expected: private requests some of whose themes the public reference lacks.

    DOPPEL_DATA=… python -m benchmarks.unexpected topics RUNS --out FILE.csv [--data sgd] [--num 2000] [--epsilon 3]

`topics` trains p(x) once for each N and ε, into RUNS/DATA-N-epsε, and goes on where it stopped. For each draw of hidden
themes it makes topics of the reference, of the samples, and of both, and counts the private requests with noise.

Of Schema-Guided Dialogue the reference lacks five random domains of sixteen, of SMCalFlow one function. Private
requests are of ``train``, the reference is of ``valid``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import cli
from commands.report.released import Z
from commands.run.execution.code_copy import version
from datamodules.reading.example import Example, Unit
from datamodules.reading.examples import read_examples
from doppel.files import read_json_lines
from doppel.lispress import valid_function_types
from doppel.models.encoders import TextFeaturizer, minilm
from doppel.privacy.histogram import NoisyHistogram, largest_noise, unit_sums
from doppel.topics import UNLIKE, Codebook, make_codebook

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
#: Half the topics that the system has by default, with its noise; samples as of 1,000 that are kept.
NUM_TOPICS, SIGMA, NUM_SAMPLES = 40, 10.0, 5_000
#: Public texts that topics are made of at most, which saves time.
MOST_PUBLIC = 4_000
COLUMNS = (
    "epsilon",
    "system",
    "data",
    "num_samples",
    "experiment",
    "setting",
    "seed",
    "metric",
    "value",
    "commit",
    "machine",
)
#: A request that begins a task, in a tree of Schema-Guided Dialogue: other turns often do not say their theme.
_TASK = re.compile(r"\(Yield \(\w+\.[A-Z]")
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
    shuffled = random.Random(1).sample(public, len(public))  # the files are in the order of their domains
    return Trial(private, [turn for turn in shuffled if turn.label not in hidden], frozenset(hidden))


@cache
def _turns(data: str, part: str) -> list[Example]:
    folder = os.environ["DOPPEL_DATA"]
    found = read_examples(f"{folder}/{data}/{part}.dataflow_dialogues.jsonl.zip", "dialogue")
    if data == "sgd":
        return found
    types = [set(valid_function_types(turn.parse or "", "node_labels") or ()) for turn in found]
    themes = [next((name for name in FUNCTIONS if name in own), "other") for own in types]
    return [replace(turn, label=theme) for turn, theme in zip(found, themes, strict=True)]


def samples_of(name: str, num_units: int, epsilon: float, runs: Path) -> list[str]:
    """DP samples of p(x), trained on the private requests of a trial; of a run that is there, if it is."""
    run = runs / f"{name}-{num_units}-eps{epsilon:g}"
    made = run / "one_stage" / "samples.jsonl"
    if not made.is_file():
        rows = run.with_suffix(".jsonl")
        rows.write_text("".join(f"{json.dumps({'text': turn.utterance})}\n" for turn in DATA[name](num_units).private))
        words = [
            "run",
            "configs/experiments/own-data-small.yaml",
            str(run),
            "--local",
            "--systems",
            "one_stage",
            "--seed",
            "1",
        ]
        more = [f"data.train_path={rows}", f"num_samples={NUM_SAMPLES}", f"data.batch_size={num_units // 20}"]
        if cli.main([*words, "--epsilon", f"{epsilon:g}", "--set", *more]):
            raise SystemExit(f"{run} has no samples")
    return [str(line["utterance"]) for _, line in read_json_lines(made) if line["utterance"]]


def topics(trial: Trial, samples: Sequence[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """How good topics are for a trial, for each way to make them."""
    public = [turn.utterance for turn in trial.reference][:MOST_PUBLIC]
    private = [turn.utterance for turn in trial.private]
    ways: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
        "reference": ([], public),
        "samples": (samples, []),
        "both": (samples, public),
        "private requests (not private)": (private, public),
    }
    for way, (own, known) in ways.items():
        book = _book(tuple(own), tuple(known))
        yield way, _measured(trial, book, book.nearest(_embed(private)))


def _measured(trial: Trial, book: Codebook, found: Sequence[str]) -> dict[str, float]:
    """Measures of topics, of the topic that each private row has."""
    own: dict[str, Counter[str]] = {name: Counter() for name in book.bins}
    for topic, turn in zip(found, trial.private, strict=True):
        own[topic][turn.label or ""] += 1
    main = {topic: themes.most_common(1)[0][0] for topic, themes in own.items() if themes and topic != UNLIKE}
    say_it = [i for i, turn in enumerate(trial.private) if turn.label in FUNCTIONS or _TASK.match(turn.parse or "")]

    def purity(rows: Sequence[int]) -> float:
        """Share of the rows of topics that have the commonest theme of their topic."""
        named: dict[str, Counter[str | None]] = defaultdict(Counter)
        for i in rows:
            named[found[i]][trial.private[i].label] += 1
        named.pop(UNLIKE, None)
        return sum(max(themes.values()) for themes in named.values()) / sum(map(Counter.total, named.values()))

    rows = [(turn.unit, {topic: 1.0}) for topic, turn in zip(found, trial.private, strict=True)]
    true, noisy = unit_sums(rows, book.bins), NoisyHistogram(SIGMA).release(rows, book.bins)
    shown = [topic for topic in book.bins if noisy[topic] > largest_noise(len(book.bins)) * SIGMA]
    hidden = [i for i, turn in enumerate(trial.private) if turn.label in trial.hidden]
    return {
        "purity": purity(range(len(found))),
        "purity@task": purity(say_it),
        "coverage": fmean(abs(noisy[topic] - true[topic]) <= Z * SIGMA for topic in shown),
        "hidden_found": fmean(found[i] == UNLIKE or main[found[i]] in trial.hidden for i in hidden),
        "hidden_named": len({main.get(topic) for topic in shown} & trial.hidden) / len(trial.hidden),
        "unlike": found.count(UNLIKE) / len(found),
    }


@cache
def _book(own: tuple[str, ...], known: tuple[str, ...]) -> Codebook:
    """A codebook; most are the same for every draw of hidden themes."""
    return make_codebook(own, known, _embed([*own, *known]), NUM_TOPICS, "minilm")


@cache
def _featurizer() -> TextFeaturizer:
    return TextFeaturizer(minilm(), pooling="mean", max_length=256)


def _embed(texts: Sequence[str]) -> Any:
    return _featurizer()(texts).numpy()  # remembers what it has read


def main() -> None:
    """Measure, and write a line of CSV for each number, in the form of docs/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    of_topics = tasks.add_parser("topics", help="purity of topics and coverage of their intervals")
    of_topics.add_argument("runs", type=Path)
    of_topics.add_argument("--out", type=Path, required=True)
    of_topics.add_argument("--data", nargs="+", choices=DATA, default=[*DATA])
    of_topics.add_argument("--num", nargs="+", type=int, default=[2_000, 10_000])
    of_topics.add_argument("--epsilon", nargs="+", type=float, default=[3.0, 8.0])
    of_topics.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    of_words = tasks.add_parser("words", help="precision and recall of words that nobody expected")
    of_words.add_argument("--out", type=Path, required=True)
    of_words.add_argument("--data", nargs="+", choices=DATA, default=[*DATA])
    given = parser.parse_args()
    if given.task == "words":
        from benchmarks import unexpected_words  # which draws as this module does

        unexpected_words.write(given.out, given.data)
        return
    made = version(), f"CPU, {os.cpu_count()} cores"
    is_new = not given.out.exists()
    with given.out.open("a", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        if is_new:
            lines.writerow(COLUMNS)
        for name in given.data:
            for num_units in given.num:
                for epsilon in given.epsilon:
                    samples = samples_of(name, num_units, epsilon, given.runs)
                    for hide in given.seeds:
                        for way, values in topics(DATA[name](num_units, hide=hide), samples):
                            about = [
                                epsilon,
                                "topics",
                                f"{name}, N = {num_units:,}",
                                len(samples),
                                "unexpected",
                                way,
                                hide,
                            ]
                            for metric, value in values.items():
                                lines.writerow([*about, metric, f"{value:.4f}", *made])
                            file.flush()


if __name__ == "__main__":
    main()
