"""How true themes and topics are on messages whose themes are known: purity, and whether their sentences name them.

    python -m benchmarks.themes FOLDER [--num 10000] [--seeds 1 2 3]

FOLDER has ``truth_N.csv`` (theme, message, user_id) and ``public_N.txt``, a public reference that lacks some themes. No
model is trained: topics are of the reference alone. Purity is the share of the messages of known themes whose topic's,
or theme's, most frequent one is theirs; the ceiling is that of the messages clustered by themselves, which nobody may.
A sentence is right if the theme of most of the fifteen messages nearest to it is that of most messages of its topic.
What the reference lacks is found where it is unlike all topics.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from commands.privacy.feature_extractors import embed
from commands.privacy.release_settings import Topics
from doppel.topics import UNLIKE, Codebook, make_codebook

_NEAR = 15


def measure(
    messages: Sequence[str], themes: Sequence[str], public: Sequence[str], lacking: set[str], seeds: Sequence[int]
) -> list[dict[str, float]]:
    """Measure the codebook of a reference, for each seed of k-means.

    Args:
        messages: Messages.
        themes: Of each its theme.
        public: The reference.
        lacking: Themes that the reference lacks.
        seeds: Seeds.
    """
    own, known = embed(messages, "minilm"), embed(public, "minilm")
    truth, number = np.array(themes), Topics().num_topics
    is_known = ~np.isin(truth, [*lacking])
    nearest = {text: np.argsort(-(own @ vector))[:_NEAR] for text, vector in zip(public, known, strict=True)}

    def purity(found: Sequence[str]) -> float:
        groups = np.array(found)[is_known]
        counts = (Counter(truth[is_known][groups == group]) for group in set(groups))
        return sum(count.most_common(1)[0][1] for count in counts) / is_known.sum()

    def right(found: Sequence[str]) -> float:
        labels = np.array(found)
        shown = {" ".join(text.split()): places for text, places in nearest.items()}
        names = [name for name in set(found) if name in shown]
        mostly = {name: Counter(truth[labels == name]).most_common(1)[0][0] for name in names}
        return sum(Counter(truth[shown[name]]).most_common(1)[0][0] == mostly[name] for name in names)

    def of(book: Codebook) -> tuple[list[str], list[str]]:
        topics = replace(book, least_cosine=None).nearest(own)
        theme = dict(zip(book.names, book.themes, strict=True))
        return topics, [theme[name] for name in topics]

    told = []
    for seed in seeds:
        book = make_codebook([], public, known, number, "minilm", seed)
        topics, wide = of(book)
        ceiling = [purity(found) for found in of(make_codebook([], messages, own, number, "minilm", seed))]
        is_unlike = np.array(book.nearest(own)) == UNLIKE
        told.append(
            {
                "purity_topics": purity(topics),
                "purity_themes": purity(wide),
                "ceiling_topics": ceiling[0],
                "ceiling_themes": ceiling[1],
                "sentences_right_topics": right(topics),
                "sentences_right_themes": right(wide),
                "num_themes": len(set(wide)),
                "lacking_unlike": float(is_unlike[~is_known].mean()) if lacking else 0.0,
                "known_unlike": float(is_unlike[is_known].mean()),
            }
        )
    return told


def main() -> None:
    """Print the measures of each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--lacking", nargs="+", default=["esim", "parcel_scam", "ship", "bereavement", "bnpl"])
    given = parser.parse_args()
    with (given.folder / f"truth_{given.num}.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    public = (given.folder / f"public_{given.num}.txt").read_text(encoding="utf-8").splitlines()
    messages, themes = [row["message"] for row in rows], [row["theme"] for row in rows]
    for seed, values in zip(given.seeds, measure(messages, themes, public, {*given.lacking}, given.seeds), strict=True):
        print(f"seed {seed}: " + ", ".join(f"{name} {value:.3g}" for name, value in values.items()))


if __name__ == "__main__":
    main()
