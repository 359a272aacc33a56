"""Precision and recall of the words that nobody expected, by the share of what the reference lacks.

    python -m benchmarks.unexpected words --out OUT.csv [--data sgd smcalflow]

No model is trained. The reference is of the same source as the private requests (other dialogues of the same file), and
of Schema-Guided Dialogue also of its ``valid``, whose services speak otherwise. A word is right if at least half of the
private rows that say it are of a hidden theme; a theme is named if it is the commonest of a word that is right.
"""

from __future__ import annotations

import csv
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from benchmarks.unexpected import COLUMNS, FUNCTIONS, NUM_HIDDEN, Trial, _turns, draw
from commands.privacy.release_settings import Words
from commands.run.execution.code_copy import version
from datamodules.reading.example import Unit
from doppel.privacy.histogram import add_noise, unit_sums
from doppel.privacy.spec import PrivacyArguments
from doppel.words import ENGLISH, UnexpectedWords, read_vocabulary, words_of

#: Rows of a reference of the same source.
NUM_REFERENCE = 10_000
#: Data and source of the reference → unit and numbers of units.
SETTINGS: dict[tuple[str, str], dict[Unit, list[int]]] = {
    ("smcalflow", "same source"): {"utterance": [2_000, 10_000], "dialogue": [2_000]},
    ("sgd", "same source"): {"utterance": [2_000, 10_000, 40_000], "dialogue": [2_000, 10_000]},
    ("sgd", "other services"): {"utterance": [10_000], "dialogue": [2_000]},
}
SEEDS, EPSILONS = (1, 2, 3, 4, 5), (1.0, 3.0, 8.0)


def trial(data: str, source: str, num_units: int, unit: Unit, seed: int) -> Trial:
    """Private requests and a reference without the hidden themes, whose rows are in the order of their dialogues."""
    own = _turns(data, "train")
    themes = sorted({turn.label or "" for turn in own})
    hidden = random.Random(seed).sample(themes, NUM_HIDDEN) if data == "sgd" else [FUNCTIONS[seed % len(FUNCTIONS)]]
    public = _turns(data, "valid")
    if data == "sgd" and source == "same source":
        names = sorted({turn.unit for turn in own})
        random.Random(seed).shuffle(names)
        chosen, rows = set[str](), Counter(turn.unit for turn in own)
        while sum(rows[name] for name in chosen) < NUM_REFERENCE:
            chosen.add(names.pop())
        public = [turn for turn in own if turn.unit in chosen]
        own = [turn for turn in own if turn.unit not in chosen]
    reference = [turn for turn in public if turn.label not in hidden]
    return Trial(draw(own, num_units, unit, seed), reference, frozenset(hidden))


def measure(made: Trial, unit: Unit, seed: int) -> Iterator[tuple[float, dict[str, float]]]:
    """ε, and what its noise finds."""
    given, vocabulary = Words(), read_vocabulary(ENGLISH)
    texts = [turn.utterance for turn in made.reference]
    rule = UnexpectedWords(vocabulary, texts, given.per_unit, unit != "utterance")
    vectors = dict(rule.vectors((turn.unit, turn.utterance) for turn in made.private))
    sums, num_units = unit_sums(vectors.items(), rule.bins), len(vectors)
    gives = Counter(word for vector in vectors.values() for word in vector)
    of_word: dict[str, Counter[str]] = defaultdict(Counter)
    has: dict[str, set[str]] = defaultdict(set)
    for turn in made.private:
        has[turn.label or ""].add(turn.unit)
        for word in {*words_of(turn.utterance)}:
            of_word[word][turn.label or ""] += 1
    for epsilon in EPSILONS:
        privacy = PrivacyArguments(epsilon, words_noise_multiplier=given.noise_multiplier)
        sigma = privacy.words_noise(num_units) or 0.0
        found = rule.found(add_noise(sums, sigma), num_units, sigma)
        right, named = 0, set[str]()
        for word in found.words:
            themes = of_word[word.word]
            theme, _ = max(
                ((t, n) for t, n in themes.items() if t in made.hidden), key=lambda own: own[1], default=("", 0)
            )
            if 2 * sum(n for own, n in themes.items() if own in made.hidden) >= themes.total():
                right += 1
                named.add(theme)
        values: dict[str, float] = {"num_words": len(found.words), "num_right": right, "sigma": sigma}
        held = sum(word.low <= gives[word.word] / num_units <= word.high for word in found.words)
        values |= {"num_intervals_right": held, "least": found.least, "cost_in_sigma": cost(epsilon, num_units)}
        for theme in sorted(made.hidden):
            values[f"named@{len(has[theme]) / num_units:.4f}"] = theme in named
        yield epsilon, values


@cache
def cost(epsilon: float, num_units: int) -> float:
    """By which part the noise of a training of ten epochs grows, by the accountant."""
    noises = []
    for words in (Words().noise_multiplier, None):
        privacy = PrivacyArguments(epsilon, words_noise_multiplier=words)
        noises.append(privacy.plan(num_units, num_units // 20, [10], "utterance").noise_multiplier)
    return noises[0] / noises[1] - 1


def write(out: Path, chosen: Sequence[str]) -> None:
    """Measure, and write a line of CSV for each number, in the form of docs/results.

    Args:
        out: The file.
        chosen: Which data.
    """
    made = version(), f"CPU, {os.cpu_count()} cores"
    with out.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for (data, source), units in SETTINGS.items():
            for unit, num_units in ((u, n) for u, numbers in units.items() for n in numbers if data in chosen):
                for seed in SEEDS:
                    for epsilon, values in measure(trial(data, source, num_units, unit, seed), unit, seed):
                        about = [epsilon, "words", f"{data}, {source}", "", "unexpected", f"{unit}, N = {num_units:,}"]
                        for metric, value in values.items():
                            lines.writerow([*about, seed, metric, f"{float(value):.4f}", *made])
                file.flush()
