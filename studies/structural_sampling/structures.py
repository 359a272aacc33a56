"""Atoms and compounds of the programs of a pool, with the weights of Keysers et al."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import xlogy
from tqdm import tqdm

from studies.structural_sampling.programs import Tree

#: A node with more parts that have parts has compounds with none, one or all of them expanded, not with every choice.
_MAX_CHOICES = 4


@dataclass(frozen=True)
class Structures:
    """What the distinct programs of a pool are made of.

    Attributes:
        atoms: How often each atom stands in each program, (programs, atoms).
        compounds: Weight of each compound in each program, in (0, 1], (programs, compounds).
        atom_names: Label of each atom.
        compound_names: Text of each compound, such as ``filter(@org.schema.Book.Book, ==)``.
    """

    atoms: csr_matrix
    compounds: csr_matrix
    atom_names: list[str]
    compound_names: list[str]

    def entropies(self, counts: NDArray[np.integer]) -> tuple[float, float]:
        """Entropies of atoms and of compounds, H(A) and H(C) of Oren et al. (section 3.3), in nats.

        Args:
            counts: How often each program is chosen, (programs,).
        """
        return entropy(self.atoms.T @ counts), entropy(self.compounds.T @ counts)


def structures(trees: Iterable[Tree], counts: NDArray[np.integer]) -> Structures:
    """Count atoms and weigh compounds.

    An atom is a node. A compound is a part of a tree, of height 1 or 2, that holds a leaf: a node with all its parts,
    some of which with all of theirs. The document takes "any subgraph of height at most 2
    that has at least one terminal" (section 3.3, Figure 3); that a node keeps all parts or none is our reading.

    A compound G weighs in program x as in Keysers et al. (2020, section 2.1)::

        w(G, x) = max over occurrences g of G in x of (1 - max over compounds G' that hold g, in x, of P(G' | G))

    where P(G' | G) is the share of G's occurrences in the pool that lie in an occurrence of G'. So a compound that
    always stands in the same larger one weighs nothing. The weights are computed once, over the pool, never over a
    sample.

    Args:
        trees: Trees of the distinct programs.
        counts: How many rows of the pool each program has, (programs,).

    Raises:
        ValueError: There are more trees than counts, or fewer.
    """
    atom_ids: dict[str, int] = {}
    compound_ids: dict[str, int] = {}
    pair_ids: dict[tuple[int, int], int] = {}
    atom_rows, atom_columns, atom_counts = array("i"), array("i"), array("i")
    occurrence_rows, occurrence_ids = array("i"), array("i")
    pair_owners, pairs = array("i"), array("i")
    num = 0
    for num, tree in enumerate(tqdm(trees, total=len(counts), desc="compounds", disable=None), 1):
        for label, count in Counter(_labels(tree)).items():
            atom_rows.append(num - 1)
            atom_columns.append(atom_ids.setdefault(label, len(atom_ids)))
            atom_counts.append(count)
        first = len(occurrence_ids)
        inside: list[list[int]] = []
        for text, holders in _occurrences(tree):
            occurrence_rows.append(num - 1)
            occurrence_ids.append(compound_ids.setdefault(text, len(compound_ids)))
            inside.append(holders)
        for place, holders in enumerate(inside):
            for holder in holders:
                pair = occurrence_ids[first + place], occurrence_ids[first + holder]
                pair_owners.append(first + place)
                pairs.append(pair_ids.setdefault(pair, len(pair_ids)))
    if num != len(counts):
        raise ValueError(f"{num} trees, {len(counts)} counts: give one count for each tree")
    rows, ids = _numbers(occurrence_rows), _numbers(occurrence_ids)
    owners, kinds = _numbers(pair_owners), _numbers(pairs)
    frequency = np.bincount(ids, counts[rows], len(compound_ids))
    together = np.bincount(kinds, counts[rows[owners]], len(pair_ids))
    inner = np.fromiter((pair[0] for pair in pair_ids), np.int64, len(pair_ids))
    best = np.zeros(len(ids))
    np.maximum.at(best, owners, (together / frequency[inner])[kinds])
    keys, where = np.unique(rows.astype(np.int64) * max(len(compound_ids), 1) + ids, return_inverse=True)
    weights = np.zeros(len(keys))
    np.maximum.at(weights, where, 1 - best)
    shape = num, max(len(compound_ids), 1)
    compounds = csr_matrix((weights, (keys // shape[1], keys % shape[1])), shape)
    compounds.eliminate_zeros()
    atoms = csr_matrix(
        (_numbers(atom_counts).astype(float), (_numbers(atom_rows), _numbers(atom_columns))), (num, len(atom_ids))
    )
    return Structures(atoms, compounds, list(atom_ids), list(compound_ids))


def entropy(weights: NDArray[np.floating]) -> float:
    """-Σ p log p of weights ≥ 0 that are divided by their sum, in nats; 0 where all are 0."""
    total = weights.sum()
    return float(np.log(total) - xlogy(weights, weights).sum() / total) if total > 0 else 0.0


def divergence(first: NDArray[np.floating], second: NDArray[np.floating], alpha: float) -> float:
    """1 - C_α(P ‖ Q), with the Chernoff coefficient C_α = Σ p^α q^(1-α): 0 for equal distributions, 1 for disjoint.

    Keysers et al. (2020, section 2.1) take α = 0.5 for atoms and α = 0.1 for compounds, with P of the training set and
    Q of the test set, so that a compound which the training set has, however rare, is no divergence.

    Args:
        first: Weights ≥ 0 of P, (things,); they are divided by their sum.
        second: Weights of Q, likewise.
        alpha: In (0, 1).

    Raises:
        ValueError: One of them has no positive weight, or α is out of range.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}: give a number between 0 and 1")
    if not (first.sum() > 0 and second.sum() > 0):
        raise ValueError("a distribution without any weight: give one with some")
    p, q = first / first.sum(), second / second.sum()
    return float(1 - np.sum(p**alpha * q ** (1 - alpha)))


def _numbers(values: array[int]) -> NDArray[np.int32]:
    return np.frombuffer(values, np.int32) if values else np.zeros(0, np.int32)


def _labels(tree: Tree) -> Iterator[str]:
    todo = [tree]
    while todo:
        label, parts = todo.pop()
        yield label
        todo += parts


def _occurrences(tree: Tree) -> list[tuple[str, list[int]]]:
    """Every compound of a tree: its text, and the places in this list of compounds that hold it."""
    occurrences: list[tuple[str, list[int]]] = []
    todo: list[tuple[Tree, int | None]] = [(tree, None)]
    while todo:
        (label, parts), above = todo.pop()
        inner = [place for place, part in enumerate(parts) if part[1]]
        num = len(inner)
        has_leaf = num < len(parts)
        masks = range(1 << num) if num <= _MAX_CHOICES else [0, *(1 << j for j in range(num)), (1 << num) - 1]
        index: dict[int, int] = {}
        for mask in reversed(masks):
            chosen = [place for j, place in enumerate(inner) if mask >> j & 1]
            if not has_leaf and not any(not part[1] for place in chosen for part in parts[place][1]):
                continue
            texts = [_flat(part) if place in chosen else part[0] for place, part in enumerate(parts)]
            holders = [at for other, at in index.items() if other & mask == mask]
            if not mask and above is not None:
                holders.append(above)
            index[mask] = len(occurrences)
            occurrences.append((f"{label}({', '.join(texts)})", holders))
        todo += [(parts[place], index.get(1 << j)) for j, place in enumerate(inner)]
    return occurrences


def _flat(node: Tree) -> str:
    """A node and its parts, without theirs."""
    return f"{node[0]}({', '.join(part[0] for part in node[1])})"
