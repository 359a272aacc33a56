"""The public vectors that are nearest to a private one: exactly, whatever is beside it in a matrix.

Formal guarantees:
    What a row is nearest to depends on this row and on the public vectors *to the last bit*. Entries are cut to [-1, 1]
    and rounded to multiples of 2⁻²⁰, each by itself (:func:`whole`). So products and sums of at most 2,048 of them are
    whole numbers below 2⁵³, exact in float64 in whatever order they are added, and no row changes what another is
    nearest to by being in one matrix with it, as rounding would where two vectors are about as near.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int32]
#: Entries of vectors are whole multiples of 1/_WHOLE, so that sums of their products are exact.
_WHOLE = 2.0**20
#: Entries of the longest vector: three sums of so many products are whole numbers below 2⁵³.
MAX_DIMENSIONS = 2**11
#: Scores that are held at a time, of 8 bytes each, and as many entries of rows.
_PART = 2**22


def whole(vectors_ND: NDArray[np.floating]) -> Whole:
    """Return vectors as whole numbers, multiples of 2⁻²⁰ of entries in [-1, 1]; each entry by itself.

    Raises:
        ValueError: The vectors have more than 2,048 entries.
    """
    if vectors_ND.shape[1] > MAX_DIMENSIONS:
        raise ValueError(f"embeddings of {vectors_ND.shape[1]} entries: give at most {MAX_DIMENSIONS}")
    found = np.empty(vectors_ND.shape, dtype=np.int32)
    part = max(1, _PART // max(1, vectors_ND.shape[1]))
    for start in range(0, len(found), part):
        some = np.asarray(vectors_ND[start : start + part], dtype=np.float64)
        found[start : start + part] = np.rint(np.clip(some, -1.0, 1.0) * _WHOLE)
    return found


def normalised(vectors_MD: NDArray[np.floating]) -> Whole:
    """Return public vectors as whole numbers, scaled to norm 1."""
    vectors = np.asarray(vectors_MD, dtype=np.float64)
    return whole(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def cosines(rows_ND: Whole, public_MD: Whole, places: Sequence[int]) -> NDArray[np.float64]:
    """Return ⟨x, c⟩ of each row and the public vector at its place, exactly: for unit vectors the cosine."""
    found, chosen = np.empty(len(rows_ND)), np.asarray(places)
    for place, public_D in enumerate(public_MD.astype(np.float64)):
        found[chosen == place] = rows_ND[chosen == place].astype(np.float64) @ public_D
    return found / _WHOLE**2


def nearest(rows_ND: Whole, public_MD: Whole, k: int) -> Iterator[list[int]]:
    """Yield the k public vectors nearest to each row in angle, ties in their order; all of them where there are fewer.

    Scores are ⟨x, c⟩, which are exact; a row's own length does not change their order. Memory beside the arguments does
    not grow with the rows.

    Args:
        rows_ND: Of :func:`whole`.
        public_MD: Of :func:`normalised`.
        k: How many.

    Yields:
        Places of the public vectors, for each row.
    """
    public = public_MD.astype(np.float64)
    part = max(1, _PART // max(1, *public.shape))
    for start in range(0, len(rows_ND), part):
        scores = rows_ND[start : start + part].astype(np.float64) @ public.T
        if k == 1:
            yield from scores.argmax(axis=1)[:, None].tolist()  # the first of equal ones
        else:
            yield from np.argsort(-scores, axis=1, kind="stable")[:, :k].tolist()
