"""How true themes and topics are on messages whose themes are known, and the headline that an analyst reads.

    python -m benchmarks.themes FOLDER [--num 10000] [--samples RUN/topics/one_stage/samples.jsonl] [--seeds 1 2 3]

FOLDER has ``truth_N.csv`` (theme, message, user_id) and ``public_N.txt``, a public reference that lacks some themes. No
model is trained: themes and topics are of the reference alone, which no seed changes; seeds are of the noise.

Purity is the share of the messages of known themes whose topic's, or theme's, most frequent one is theirs; the ceiling
is that of the messages clustered by themselves, which nobody may. How much a true theme is whole is the share of the
messages of known themes that are in the theme of ours which has most of their own. A text's own theme is that of most
of the fifteen messages nearest to it. A sentence is right if its own theme is that of most messages of its topic.

The headline is right if each of its first three sentences, by the released shares of users, is of one of the true first
four themes; it repeats nothing if they are of three. Coverage is that of the intervals of what is shown. With samples,
one fits if its own theme is that of its theme's sentence.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np

from commands.privacy.feature_extractors import embed
from commands.privacy.release_settings import Topics
from commands.report.released import Release
from doppel.files import read_json_lines
from doppel.privacy.histogram import add_noise, unit_sums
from doppel.text.topics import UNLIKE, Codebook, Floats, make_codebook

_NEAR, _FIRST, _TRUE_FIRST = 15, 3, 4


@dataclass(frozen=True)
class Field:
    """Messages whose themes are known, and a public reference.

    Attributes:
        messages: Messages.
        themes: Of each its theme.
        users: Of each who wrote it.
        public: The reference.
        lacking: Themes that the reference lacks.
    """

    messages: Sequence[str]
    themes: Sequence[str]
    users: Sequence[str]
    public: Sequence[str]
    lacking: frozenset[str]

    @cached_property
    def vectors(self) -> Floats:
        """Of the messages."""
        return embed(self.messages, "minilm")

    @cached_property
    def public_vectors(self) -> Floats:
        """Of the reference."""
        return embed(self.public, "minilm")

    @cached_property
    def is_known(self) -> np.ndarray:
        """Which messages are of themes that the reference has."""
        return ~np.isin(self.themes, [*self.lacking])

    @cached_property
    def first(self) -> set[str]:
        """The themes that most users ask for."""
        sums = unit_sums(zip(self.users, ({theme: 1.0} for theme in self.themes), strict=True), sorted({*self.themes}))
        return {*sorted(sums, key=lambda theme: -sums[theme])[:_TRUE_FIRST]}

    def own_themes(self, vectors_ND: Floats) -> list[str]:
        """Of each text the theme of most messages near to it."""
        truth = np.array(self.themes)
        return [_most(truth[np.argsort(-(self.vectors @ vector))[:_NEAR]]) for vector in vectors_ND]

    @cached_property
    def own_of_public(self) -> list[tuple[str, str]]:
        """Each text of the reference, as a sentence has it, and its own theme."""
        texts = [" ".join(text.split()) for text in self.public]
        return [*zip(texts, self.own_themes(self.public_vectors), strict=True)]

    def own_theme(self, sentence: str) -> str:
        """Of a sentence of the reference, which may be cut, its own theme; empty where it is none."""
        return next((own for text, own in self.own_of_public if text.startswith(sentence.removesuffix("…"))), "")

    def purity(self, found: Sequence[str]) -> float:
        """Of known messages, how many are of the most frequent theme of their group."""
        return _purity(np.array(found)[self.is_known], np.array(self.themes)[self.is_known])

    def whole(self, found: Sequence[str]) -> float:
        """Of known messages, how many are in the group that most messages of their theme are in."""
        return _purity(np.array(self.themes)[self.is_known], np.array(found)[self.is_known])

    def num_right(self, found: Sequence[str]) -> int:
        """How many sentences are of the theme of most messages of their group."""
        labels, truth = np.array(found), np.array(self.themes)
        return sum(self.own_theme(name) == _most(truth[labels == name]) for name in set(found))


def measure(field: Field) -> dict[str, float]:
    """Measure the codebook of a reference."""
    number = Topics().num_topics
    book = make_codebook([], field.public, field.public_vectors, number, "minilm")
    topics, themes = _read(replace(book, least_cosine=None), field.vectors)
    own = make_codebook([], field.messages, field.vectors, number, "minilm")
    ceiling = [field.purity(found) for found in _read(replace(own, least_cosine=None), field.vectors)]
    is_unlike = np.array(book.nearest(field.vectors)) == UNLIKE
    return {
        "purity_topics": field.purity(topics),
        "purity_themes": field.purity(themes),
        "ceiling_topics": ceiling[0],
        "ceiling_themes": ceiling[1],
        "whole_themes": field.whole(themes),
        "sentences_right_topics": field.num_right(topics),
        "sentences_right_themes": field.num_right(themes),
        "num_themes": len(set(book.themes)),
        "lacking_unlike": float(is_unlike[~field.is_known].mean()) if field.lacking else 0.0,
        "known_unlike": float(is_unlike[field.is_known].mean()),
    }


def releases(field: Field, seeds: Sequence[int]) -> list[tuple[list[str], dict[str, float]]]:
    """What is read of the counts with noise, for each seed: the first sentences, and how true that is."""
    book = make_codebook([], field.public, field.public_vectors, Topics().num_topics, "minilm")
    found, sigma = book.nearest(field.vectors), Topics().noise_multiplier
    sums = unit_sums(zip(field.users, ({topic: 1.0} for topic in found), strict=True), book.bins)
    themes, num_users = dict(zip(book.names, book.themes, strict=True)), len(set(field.users))
    true = Release({name: own / num_users for name, own in sums.items()}, {}, sigma, num_users, "user", themes)
    told = []
    for seed in seeds:
        noisy = {name: own / num_users for name, own in add_noise(sums, sigma, seed=seed).items()}
        topics = replace(true, shares=noisy, deviations=dict.fromkeys(noisy, sigma / num_users))
        wide = topics.of_themes()
        ranked = sorted(set(book.themes), key=lambda name: -wide.shares[name])[:_FIRST]
        first = [field.own_theme(name) for name in ranked]
        values = {
            "headline_right": float({*first} <= field.first),
            "headline_repeats": float(len({*first}) < _FIRST),
            "coverage_topics": _coverage(topics, true.shares),
            "coverage_themes": _coverage(wide, _together(true.shares, themes)),
        }
        told.append(([f"{name} ({100 * wide.shares[name]:.1f} of 100)" for name in ranked], values))
    return told


def fitting(field: Field, samples: Sequence[str]) -> dict[str, float]:
    """How well samples fit the sentence of the theme that they are kept under, and what nobody expected.

    Args:
        field: The messages.
        samples: Of a private model.
    """
    vectors = embed(samples, "minilm")
    both = np.concatenate([vectors, field.public_vectors])
    book = make_codebook(samples, field.public, both, Topics().num_topics, "minilm")
    themes, own = _read(book, vectors)[1], field.own_themes(vectors)
    kinds = {theme: field.own_theme(theme) for theme in set(themes) if theme != UNLIKE and theme not in book.unexpected}
    expected = [(kinds[theme], kind) for theme, kind in zip(themes, own, strict=True) if theme in kinds]
    hidden = [kind for theme, kind in zip(themes, own, strict=True) if theme in book.unexpected]
    return {
        "samples_fitting": fmean(meant == kind for meant, kind in expected),
        "num_unexpected": len(book.unexpected),
        "unexpected_right": fmean(kind in field.lacking for kind in hidden) if hidden else 0.0,
    }


def _read(book: Codebook, vectors_ND: Floats) -> tuple[list[str], list[str]]:
    """Of each text its topic and its theme."""
    topics = book.nearest(vectors_ND)
    theme = dict(zip(book.names, book.themes, strict=True))
    return topics, [theme.get(name, name) for name in topics]


def _together(shares: Mapping[str, float], themes: Mapping[str, str]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for name, share in shares.items():
        total[themes.get(name, name)] += share
    return total


def _coverage(release: Release, true: Mapping[str, float]) -> float:
    """Of what is shown, how many intervals hold the true share."""
    shown = [name for name in release.shares if release.is_above_noise(name)]
    return fmean(low <= true[name] <= high for name in shown for low, high in [release.interval(name)])


def _purity(groups: np.ndarray, truth: np.ndarray) -> float:
    return sum(Counter(truth[groups == group]).most_common(1)[0][1] for group in set(groups)) / len(truth)


def _most(kinds: np.ndarray) -> str:
    return str(Counter(kinds).most_common(1)[0][0])


def _line(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in values.items())


def main() -> None:
    """Print the measures, then the headline of each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--samples", type=Path, help="JSON lines of utterances that a private model wrote")
    support = ["esim", "parcel_scam", "ship", "bereavement", "bnpl"]
    parser.add_argument("--lacking", nargs="*", default=support, help="themes of FOLDER that its reference lacks")
    given = parser.parse_args()
    with (given.folder / f"truth_{given.num}.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    public = (given.folder / f"public_{given.num}.txt").read_text(encoding="utf-8").splitlines()
    messages, themes, users = ([row[name] for row in rows] for name in ("message", "theme", "user_id"))
    if unknown := {*given.lacking} - {*themes}:
        parser.error(f"no message is of {sorted(unknown)}: give what the reference lacks as --lacking")
    field = Field(messages, themes, users, public, frozenset(given.lacking))
    print(_line(measure(field)))
    found = releases(field, given.seeds)
    for seed, (first, values) in zip(given.seeds, found, strict=True):
        print(f"seed {seed}: {_line(values)}: {'; '.join(first)}")
    print("mean: " + _line({name: fmean(values[name] for _, values in found) for name in found[0][1]}))
    if given.samples is not None:
        print(_line(fitting(field, [str(line["utterance"]) for _, line in read_json_lines(given.samples)])))


if __name__ == "__main__":
    main()
