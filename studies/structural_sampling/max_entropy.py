"""Samples of a pool whose atoms and compounds are as evenly spread as a greedy choice can make them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import xlogy
from tqdm import trange

from doppel.selection.samplers import Rows, check_num
from studies.structural_sampling.pool import Pool

#: Scores this near to the best, in nats, are ties, which chance decides.
TIE = 1e-9


def cmaxent(pool: Pool, num: int, seed: int) -> Rows:
    """Compound maximum entropy sampling (Oren et al., 2021, section 3.3).

    Start empty. Add, again and again, the query (program without entities) that makes H(C) + H(A), the entropies of
    compounds and atoms of the sample, largest; of equal ones a random one; of its rows a random unused one.

    Nothing is computed twice: see :class:`Gain`.

    Args:
        pool: The pool.
        num: Rows wanted.
        seed: Equal seeds give equal rows; fewer rows are the first of more.

    Returns:
        Places of rows in the pool, in the order of choice, (num,).

    Raises:
        ValueError: The pool has fewer rows, or ``num`` is below 1.
        ProgramError: A program is not in the grammar.
    """
    check_num(len(pool.query_of_row), num)
    rng = np.random.default_rng(seed)
    gains = Gain(pool.structures.atoms), Gain(pool.structures.compounds)
    shuffled = rng.permutation(len(pool.query_of_row))
    rows = shuffled[np.argsort(pool.query_of_row[shuffled], kind="stable")]
    ends = np.cumsum(pool.counts)
    following = ends - pool.counts
    left = np.arange(len(pool.queries))  # queries that have rows left
    chosen = np.empty(num, np.int64)
    for step in trange(num, desc="cmaxent", disable=None, unit="row"):
        scores = gains[0].entropy_with(left) + gains[1].entropy_with(left)
        ties = np.flatnonzero(scores >= scores.max() - TIE)
        place = int(ties[rng.integers(len(ties))])
        query = int(left[place])
        chosen[step] = rows[following[query]]
        following[query] += 1
        if following[query] == ends[query]:
            left = np.delete(left, place)
        for gain in gains:
            gain.add(query)
    return chosen


class Gain:
    """The entropy that a sample would have after one more query, for every query.

    With W the sum of the sample's weights and S = Σ W_c log W_c over its compounds c, the entropy is log W - S / W. A
    query adds ΔW, which never changes, and ΔS, a sum over its own compounds. So after a choice, ΔS is renewed for the
    queries that share a compound with the chosen one, which an inverted index names, and by the change of this compound
    alone. In the index the queries of a compound are ordered by its weight in them, and few weights occur: logarithms
    are taken once for each weight.

    Args:
        weights: Weight of each compound (or count of each atom) in each query, (queries, compounds).
    """

    def __init__(self, weights: csr_matrix) -> None:
        self._own = weights.tocsr()
        by_column = weights.tocoo()
        order = np.lexsort((by_column.data, by_column.col))
        columns, values = by_column.col[order], by_column.data[order]
        self._queries = by_column.row[order].astype(np.int32)
        is_new = np.ones(len(order), bool)
        is_new[1:] = (np.diff(columns) != 0) | (np.diff(values) != 0)
        starts = np.flatnonzero(is_new)
        self._values, self._sizes = values[starts], np.diff(np.append(starts, len(order)))
        wanted = np.arange(weights.shape[1] + 1)
        self._segments = np.searchsorted(columns[starts], wanted)  # of a compound, among weights
        self._bounds = np.searchsorted(columns, wanted)  # likewise, among queries
        self._totals = np.zeros(weights.shape[1])
        self._added = np.asarray(weights.sum(axis=1)).ravel()
        self._change = np.asarray(
            csr_matrix((xlogy(weights.data, weights.data), weights.indices, weights.indptr), weights.shape).sum(axis=1)
        ).ravel()
        self._sum = self._sum_of_logs = 0.0

    def entropy_with(self, queries: NDArray[np.integer] | slice) -> NDArray[np.float64]:
        """Entropy of the sample and one of each of these queries, in nats, (queries,)."""
        total = self._sum + self._added[queries]
        safe = np.maximum(total, 1e-300)
        return np.where(total > 0, np.log(safe) - (self._sum_of_logs + self._change[queries]) / safe, 0.0)

    def add(self, query: int) -> None:
        """Put one of a query into the sample."""
        compounds = slice(self._own.indptr[query], self._own.indptr[query + 1])
        for column, weight in zip(self._own.indices[compounds], self._own.data[compounds], strict=True):
            old = self._totals[column]
            new = self._totals[column] = old + weight
            segments = slice(self._segments[column], self._segments[column + 1])
            values = self._values[segments]
            base = xlogy(new, new) - xlogy(old, old)
            change = xlogy(new + values, new + values) - xlogy(old + values, old + values) - base
            queries = self._queries[self._bounds[column] : self._bounds[column + 1]]
            self._change[queries] += np.repeat(change, self._sizes[segments])
            self._sum += weight
            self._sum_of_logs += base
