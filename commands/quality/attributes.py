"""The attributes of samples, read in their texts by what is public, beside those of human turns."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

from commands.lightning.trained_model import value_chooser
from commands.quality.labels import regression
from datamodules.reading.attribute_codes import AttributeCodes
from doppel.errors import DataError, UserError
from doppel.tables.made import OF_TREE, make
from doppel.tables.schema import OTHER, Column

if TYPE_CHECKING:
    from doppel.models.text_reader import Keep

#: Means over attributes: of what is read in the texts, and of what samples, human turns and the commonest value teach.
_OF_TEXTS = ("attribute_jsd", "human_attribute_jsd", "attribute_adherence")
_OF_TEXTS += ("attribute_adherence_chance", "human_attribute_adherence")
_TAUGHT = ("attribute_downstream", "human_attribute_downstream", "attribute_downstream_majority")
#: Texts that teach a classifier, at least.
_FEWEST = 20
#: Sentence vectors [texts, D] of texts.
_Vectors = Callable[[tuple[str, ...]], Any]


@dataclass(frozen=True)
class Side:
    """Texts of one side of a comparison.

    Attributes:
        texts: What is said.
        codes: Attributes that each was written for, or has; None where it has none.
        trees: That a semantic parser reads in them; None: there is no parser.
    """

    texts: tuple[str, ...]
    codes: Sequence[str | None]
    trees: Sequence[str | None] | None = None

    def part(self, rows: Sequence[int]) -> Side:
        """Return the side with some of its rows."""
        trees = None if self.trees is None else [self.trees[row] for row in rows]
        return Side(tuple(self.texts[row] for row in rows), [self.codes[row] for row in rows], trees)


def attribute_metrics(
    codes: AttributeCodes,
    samples: Side,
    reference: Side,
    encoder: str = "minilm",
    seed: int = 0,
    keep: Keep | None = None,
) -> tuple[dict[str, float | None], list[str]]:
    """Return how near attributes of samples are to those of human turns, and how often to those of the prompt.

    One half of the reference teaches a classifier of each attribute that stands in a column: a logistic regression over
    sentence vectors. Number of words is counted. Function and number of calls are read by a semantic parser, and what a
    model fills is read by that model. Samples and the other half of the reference are read in the same way.

    What samples teach is asked besides: the regression of ``python cli.py label-accuracy`` learns an attribute from
    the samples, by what they were written for, and is tested on the half of the reference that is compared. Beside it
    stands what as many turns of the other half teach, and the commonest value. A number of words, which anybody can
    count, and what a model fills, which the reference lacks, are left out.

    Formal guarantees:
        A function of samples, of a public reference and of public models.

    Args:
        codes: Of the attributes.
        samples: With the codes that they were written for, if any.
        reference: Human turns that anybody may see.
        encoder: Whose vectors the classifiers read.
        seed: Of the halves.
        keep: How the encoder reads, see :data:`~doppel.models.text_reader.Keep`.

    Returns:
        ``attribute_jsd`` (mean Jensen–Shannon divergence over the attributes, in bits) and ``human_attribute_jsd`` (of
        two parts of the reference); ``attribute_adherence``, ``attribute_adherence_chance`` (of samples that are dealt
        out anew) and ``human_attribute_adherence``; ``attribute_downstream`` (accuracy),
        ``human_attribute_downstream`` and ``attribute_downstream_majority``, all null for samples that were not
        written for attributes. JSD, adherence and the last three also for each attribute. And notes.
    """
    from commands.privacy.feature_extractors import embed  # need torch, which no --help waits for
    from doppel.metrics.attributes import adherence, jensen_shannon

    rows = random.Random(seed).sample(range(len(reference.texts)), len(reference.texts))
    taught, judged = reference.part(rows[: len(rows) // 2]), reference.part(rows[len(rows) // 2 :])
    values: dict[str, float | None] = {}
    notes: list[str] = []
    means: dict[str, list[float]] = {kind: [] for kind in (*_OF_TEXTS, *_TAUGHT)}

    def add(kind: str, score: float, attribute: str | None = None) -> None:
        means[kind].append(score)
        if attribute is not None:
            values[f"{kind}_{attribute.lower().replace(' ', '_')}"] = score

    wanted, gold, lesson = (_places(codes, side) for side in (samples, judged, taught))
    vectors: _Vectors = cache(lambda texts: embed(texts, encoder, keep=keep))
    attributes = list(zip(codes.names, codes.schema.columns, strict=True))
    for place, (name, column) in enumerate(attributes):
        try:
            read, human = _read(column, place, taught, lesson, (samples, judged), vectors)
        except UserError as error:
            notes.append(f"the attribute {name!r} is not read in the texts: {error}")
            continue
        middle = len(human) // 2
        add("attribute_jsd", jensen_shannon(read, human), name)
        if middle:
            add("human_attribute_jsd", jensen_shannon(human[:middle], human[middle:]))
        if wanted is not None:
            own, by_chance = adherence([row[place] for row in wanted], read)
            add("attribute_adherence", own, name)
            add("attribute_adherence_chance", by_chance)
            if gold is not None and column.by is None:  # else the model that reads it has given it
                add("human_attribute_adherence", adherence([row[place] for row in gold], human)[0])
    try:
        for place, (name, column) in enumerate(attributes):
            if column.made in ("words", "model") or wanted is None or gold is None or lesson is None:
                continue
            lessons = [(side, [row[place] for row in rows]) for side, rows in ((samples, wanted), (taught, lesson))]
            scores = _downstream(lessons, (judged, [row[place] for row in gold]), vectors, seed)
            for kind, score in zip(_TAUGHT, scores, strict=True):
                add(kind, score, name)
    except UserError as error:
        notes.append(f"nothing says what samples teach of attributes: {error}")
    return {**{kind: fmean(own) if own else None for kind, own in means.items()}, **values}, notes


def _places(codes: AttributeCodes, side: Side) -> list[list[int]] | None:
    """Places of the values that a side has by its codes; None where it has no such codes."""
    try:
        return [codes.read(code or "") for code in side.codes]
    except DataError:
        return None


def _read(
    column: Column,
    place: int,
    taught: Side,
    lesson: Sequence[Sequence[int]] | None,
    sides: Sequence[Side],
    vectors: _Vectors,
) -> list[list[int]]:
    """Places of the values of an attribute that are read in the texts of two sides.

    Raises:
        UserError: Nothing reads it.
    """
    if column.by is not None:
        return _asked(column, [side.texts for side in sides])
    if column.made is not None and column.made != "label":
        if column.made in OF_TREE and any(side.trees is None for side in sides):
            raise UserError("it is made of the tree, and no semantic parser reads one (--parser)")
        read = []
        for side in sides:
            trees = side.trees or [None] * len(side.texts)
            cells = (
                make(column.made, column.values, text, tree, None) for text, tree in zip(side.texts, trees, strict=True)
            )
            read.append([column.code(cell) for cell in cells])
        return read
    if lesson is None:
        raise UserError("the reference has no columns of attributes, from which it could be learnt")
    if len(lesson) < _FEWEST:
        raise UserError(f"{len(lesson)} requests of the reference are too few to learn it from")
    return _classified(taught.texts, [row[place] for row in lesson], [side.texts for side in sides], vectors)


def _asked(column: Column, sides: Sequence[Sequence[str]]) -> list[list[int]]:
    """What the model that fills a column says of texts, each by itself.

    Raises:
        UserError: The model cannot be loaded.
    """
    from tqdm import tqdm

    model, values = value_chooser(str(column.by)), [value for value in column.values if value != OTHER]
    read = []
    with tqdm(total=sum(map(len, sides)), desc=f"   {column.name}", unit="text", leave=False, disable=None) as bar:
        for texts in sides:
            read.append(list[int]())
            for text in texts:
                read[-1].append(column.code(model.likeliest(text, values, str(column.ask))))
                bar.update()
    return read


def _classified(
    texts: tuple[str, ...], values: Sequence[int], sides: Sequence[tuple[str, ...]], vectors: _Vectors
) -> list[list[int]]:
    """What a classifier says of texts that has learnt from others."""
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression

    model: Any = LogisticRegression(C=10.0, max_iter=2000) if len(set(values)) > 1 else DummyClassifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rare value may have one text
        model.fit(vectors(texts), values)
    return [[int(value) for value in model.predict(vectors(side))] for side in sides]


def _downstream(
    lessons: Sequence[tuple[Side, Sequence[int]]], judged: tuple[Side, Sequence[int]], vectors: _Vectors, seed: int
) -> list[float]:
    """Accuracy on the judged texts after equally many texts of each lesson, and that of their commonest value."""
    size = min(len(values) for _, values in lessons)
    truth, found = [str(value) for value in judged[1]], []
    for side, values in lessons:
        learn = regression(vectors(side.texts), vectors(judged[0].texts), balanced=False)
        rows = random.Random(seed).sample(range(len(values)), size)
        guesses = learn(rows, [str(values[row]) for row in rows], seed)
        found.append(sum(guess == true for guess, true in zip(guesses, truth, strict=True)) / len(truth))
    return [*found, max(Counter(truth).values()) / len(truth)]
