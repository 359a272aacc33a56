r"""Which figure orders writers as readers do: samples that are read blind, beside what a computer says of them.

    python -m studies.tables usable sheet FOLDER people=valid.jsonl 135m=runs/135m/one_stage/samples.jsonl …
    python -m studies.tables usable score FOLDER people=valid.jsonl 135m=runs/135m/one_stage/samples.jsonl … \
        --judges 135m=models/base --read ana.csv ben.csv --out docs/results/usable.csv

``sheet`` writes FOLDER/sheet.csv, as many texts of each writer, mixed, and FOLDER/key.csv, which says who wrote them.
A reader copies the sheet and fills its last column with yes or no: could somebody have said this to the assistant, as
it stands? ``score`` opens the key. ``people`` are public: one half of their file is read as a writer, every writer is
compared with the other half, on equally many texts.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import cohen_kappa_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._harness import machine
from commands.lightning.trained_model import place_of
from commands.quality.evaluate import read_synthetic
from commands.run.execution.code_copy import version
from datamodules.reading.examples import read_examples
from doppel.files import write_text
from doppel.metrics import Corpus, compare
from doppel.metrics.fluency import LanguageModel
from doppel.metrics.judged import excess_nats
from doppel.models.encoders import TextFeaturizer, minilm
from doppel.models.made import LARGER

PEOPLE, COLUMNS = "people", ("place", "text", "usable")
#: Figure → 1 where a larger value is nearer to people, -1 where a smaller one is.
FIGURES: Mapping[str, int] = {
    "typical": 1,
    "fluency_outliers": -1,
    "auc_minilm": -1,
    "auc_smollm2_135m": -1,
    "precision_minilm": 1,
    "mauve_minilm": 1,
    "mauve_smollm2_135m": 1,
    "word_overlap": 1,
}


def texts_of(files: Mapping[str, str]) -> tuple[dict[str, list[str]], list[str]]:
    """Texts of each writer, and the half of people's with which they are compared."""
    found = {name: [row.utterance for row in read_synthetic(file)] for name, file in files.items() if name != PEOPLE}
    people = [row.utterance for row in read_examples(files[PEOPLE], "utterance", needs=())]
    order = random.Random(0).sample(range(len(people)), len(people))
    half = len(people) // 2
    found[PEOPLE] = [people[place] for place in sorted(order[:half])]
    return found, [people[place] for place in sorted(order[half:])]


def write_sheet(texts: Mapping[str, Sequence[str]], num: int, seed: int, folder: Path) -> None:
    """Write the texts to read, mixed, and who wrote them."""
    rng = random.Random(seed)
    drawn = [(writer, text) for writer, own in texts.items() for text in rng.sample(list(own), num)]
    rng.shuffle(drawn)
    sheet = pd.DataFrame({"place": range(len(drawn)), "text": [text for _, text in drawn], "usable": ""})
    key = pd.DataFrame({"place": range(len(drawn)), "writer": [writer for writer, _ in drawn]})
    for name, frame in (("sheet", sheet), ("key", key)):
        write_text(folder / f"{name}.csv", frame.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC))


def readings(files: Sequence[Path], key: Path) -> pd.DataFrame:
    """What each reader found: a row a text, with its writer and a column of 0 or 1 a reader.

    Raises:
        SystemExit: A sheet has other places than the key, or a cell is neither yes nor no.
    """
    found = pd.read_csv(key).set_index("place")
    for number, file in enumerate(files, 1):
        said = pd.read_csv(file, keep_default_na=False).set_index("place")["usable"].str.strip().str.lower()
        if set(said.index) != set(found.index) or not said.isin(["yes", "no"]).all():
            sys.exit(f"{file}: give each of the {len(found)} texts of {key} one yes or no")
        found[f"reader_{number}"] = (said == "yes").astype(int)
    return found


def auc(samples_ND: torch.Tensor, people_MD: torch.Tensor, seed: int) -> float:
    """How well a linear classifier tells samples from people's texts that it has not seen; .5 is not at all.

    Args:
        samples_ND: Features of samples.
        people_MD: Features of people's texts.
        seed: Of the five folds.
    """
    features = torch.cat([samples_ND, people_MD]).double().numpy()
    is_person = np.repeat([0, 1], [len(samples_ND), len(people_MD)])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1e-3, max_iter=2000))
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    told = cross_val_predict(model, features, is_person, cv=folds, method="decision_function")
    return float(roc_auc_score(is_person, told))


def typical(texts: Sequence[str], people: Sequence[str], nats: Callable[[Sequence[str]], Sequence[float]]) -> float:
    """Share of texts whose loss is between the 5th and the 95th percentile of people's at that length; no empty one."""
    above, usual = excess_nats([text for text in texts if text.split()], people, nats)
    low, high = np.quantile(usual, [0.05, 0.95])
    return float(((above >= low) & (above <= high)).sum() / len(texts))


def figures(
    texts: Mapping[str, Sequence[str]], people: Sequence[str], judges: Mapping[str, str], seed: int
) -> dict[str, dict[str, float]]:
    """What a computer says of each writer.

    Args:
        texts: Of each writer.
        people: With which they are compared.
        judges: Writer → model that tells the loss, where SmolLM2-135M is kin of its base.
        seed: Of what is drawn.
    """
    of_sentences, larger = TextFeaturizer(minilm(), pooling="mean"), LanguageModel(place_of(LARGER))
    named = {model: LanguageModel(place_of(model)) for model in set(judges.values())}
    number = min(len(people), *map(len, texts.values()))
    found = {}
    for writer, own in texts.items():
        judge = named.get(judges.get(writer, ""), larger)
        ours, theirs = (random.Random(seed).sample(list(side), number) for side in (own, people))
        corpora = [Corpus(tuple(side), (None,) * number) for side in (ours, theirs)]
        told: dict[str, Any] = compare(
            *corpora,
            featurizers={"minilm": of_sentences, "smollm2_135m": larger},
            nats=judge.nats,
            seed=seed,
        )
        told |= {
            "typical": typical(ours, theirs, judge.nats),
            "auc_minilm": auc(of_sentences(ours), of_sentences(theirs), seed),
            "auc_smollm2_135m": auc(larger(ours), larger(theirs), seed),
        }
        found[writer] = {name: float(told[name]) for name in FIGURES} | {"num_compared": number}
    return found


def nearness(values: NDArray[np.float64], people: float, sign: int) -> NDArray[np.float64]:
    """How much values lack of what people have, negative; 0 for all that have it.

    Args:
        values: Of the writers.
        people: People's own.
        sign: See :data:`FIGURES`.
    """
    return np.minimum(sign * (values - people), 0.0)


def score(read: pd.DataFrame, told: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """The table: of each writer the shares that readers found usable and its figures; of each figure its rank
    correlation (Spearman) with them over the writers; of two readers how often they agree, and Cohen's κ.
    """
    readers = [name for name in read.columns if name != "writer"]
    by_writer = read.groupby("writer")[readers].mean()
    rows = [(name, f"usable_{reader}", value) for name, own in by_writer.iterrows() for reader, value in own.items()]
    usable = by_writer.mean(axis=1)
    rows += [(name, "usable", value) for name, value in usable.items()]
    rows += [(name, figure, value) for name, own in told.items() for figure, value in own.items()]
    for figure, sign in FIGURES.items():
        near = nearness(np.array([told[name][figure] for name in usable.index]), told[PEOPLE][figure], sign)
        rows.append(("all writers", f"rank_correlation@{figure}", float(spearmanr(usable, near).statistic)))
    for one, other in zip(readers, readers[1:], strict=False):
        rows.append(("all writers", "agreement", float((read[one] == read[other]).mean())))
        rows.append(("all writers", "kappa", float(cohen_kappa_score(read[one], read[other]))))
    return pd.DataFrame(rows, columns=["setting", "metric", "value"]).round({"value": 4})


def main(argv: Sequence[str] | None = None) -> None:
    """Which figure orders writers as readers do: samples that are read blind, beside what a computer says of them."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.tables usable",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", choices=["sheet", "score"])
    parser.add_argument("folder", type=Path, help="where sheet.csv and key.csv are")
    parser.add_argument("writers", nargs="+", metavar="NAME=FILE", help="files of texts; one is people=PUBLIC")
    parser.add_argument("--num", type=int, default=40, help="texts to read of each writer (default: 40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--judges", nargs="*", default=[], metavar="NAME=MODEL", help="who tells the loss of a writer")
    parser.add_argument("--read", nargs="*", type=Path, default=[], help="sheets that were filled, one a reader")
    parser.add_argument("--data", default="SMCalFlow", help="what the requests are called in the table")
    parser.add_argument("--out", type=Path, help="the table, a CSV file")
    options = parser.parse_args(argv)
    files, judges = (dict(word.split("=", 1) for word in words) for words in (options.writers, options.judges))
    if PEOPLE not in files:
        parser.error(f"one writer is {PEOPLE}=FILE, a public file")
    texts, people = texts_of(files)
    if options.task == "sheet":
        write_sheet(texts, options.num, options.seed, options.folder)
        print(f"{options.folder / 'sheet.csv'}: {options.num * len(texts)} texts of {len(texts)} writers")
        return
    if not options.read or options.out is None:
        parser.error("score takes --read SHEET … and --out FILE")
    read = readings(options.read, options.folder / "key.csv")
    table = score(read, figures(texts, people, judges, options.seed))
    system = table["setting"].str.partition(",")[0]  # of "one_stage, top_p .9"
    common = {"data": options.data, "experiment": "usable", "seed": options.seed}
    table = table.assign(system=system, **common, machine=machine("cpu"), commit=version())
    write_text(options.out, table.to_csv(index=False))
    print(table.pivot_table(index="setting", columns="metric", values="value").round(3).T.to_string())
