"""Atoms, compounds and their weights, entropy and divergence against numbers made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from studies.structural_sampling.pool import Pool
from studies.structural_sampling.programs import tree
from studies.structural_sampling.structures import Structures, divergence, entropy, structures


def weights(found: Structures, row: int) -> dict[str, float]:
    """Weight of each compound in a program."""
    return {found.compound_names[i]: found.compounds[row, i] for i in found.compounds[row].indices}


def test_atoms_are_nodes_and_compounds_hold_a_leaf() -> None:
    found = structures([tree("(F (G VALUE) (H))")], np.array([1]))
    assert sorted(found.atom_names) == ["F", "G", "H", "VALUE"]
    assert sorted(found.compound_names) == ["F(G(VALUE), H)", "F(G, H)", "G(VALUE)"]
    chain = structures([tree("(F (G (H VALUE)))")], np.array([1]))  # F(G) and F(G(H)) hold no leaf
    assert sorted(chain.compound_names) == ["G(H(VALUE))", "H(VALUE)"]


def test_atoms_are_counted_as_often_as_they_stand() -> None:
    found = structures([tree("(F VALUE VALUE (F VALUE))")], np.array([1]))
    assert dict(zip(found.atom_names, found.atoms.toarray()[0], strict=True)) == {"F": 2, "VALUE": 3}


def test_a_compound_weighs_by_how_often_it_stands_outside_of_larger_ones() -> None:
    # (F (A VALUE)) in 3 rows, (G (A VALUE)) in 1 row: A(VALUE) lies in F(A(VALUE)) in 3 of 4 occurrences.
    found = structures(map(tree, ["(F (A VALUE))", "(G (A VALUE))"]), np.array([3, 1]))
    assert weights(found, 0) == pytest.approx({"A(VALUE)": 1 - 3 / 4, "F(A(VALUE))": 1})
    assert weights(found, 1) == pytest.approx({"A(VALUE)": 1 - 1 / 4, "G(A(VALUE))": 1})


def test_a_compound_that_always_lies_in_the_same_larger_one_weighs_nothing() -> None:
    found = structures([tree("(F (A VALUE))")], np.array([5]))
    assert weights(found, 0) == {"F(A(VALUE))": 1}


def test_of_several_occurrences_the_freest_counts() -> None:
    # A(VALUE) occurs twice in the row: in F(A(VALUE)) and in G(A(VALUE)); each holds half of all occurrences
    found = structures([tree("(T (F (A VALUE)) (G (A VALUE)))")], np.array([2]))
    assert weights(found, 0)["A(VALUE)"] == pytest.approx(1 - 1 / 2)


def test_parts_expanded_one_by_one_lie_in_the_whole() -> None:
    found = structures(map(tree, ["(F (A VALUE) (B VALUE))", "(F (A VALUE) (B (C)))"]), np.array([1, 1]))
    first = weights(found, 0)
    assert first["F(A(VALUE), B(VALUE))"] == 1
    assert first["F(A(VALUE), B)"] == pytest.approx(1 - 1 / 2)  # of its two occurrences one lies in the whole
    assert "F(A, B(VALUE))" not in first  # its one occurrence lies in the whole


def test_a_wide_node_has_few_compounds() -> None:
    parts = " ".join(f"(A{i} VALUE)" for i in range(12))
    assert len(structures([tree(f"(F {parts})")], np.array([1])).compound_names) == 12 + 12 + 1


def test_counts_must_fit() -> None:
    with pytest.raises(ValueError, match="1 .*2"):
        structures([tree("(F)")], np.array([1, 1]))


def test_a_pool_of_single_leaves_has_atoms_and_no_compound() -> None:
    pool = Pool.of(["(F)", "(G)", "(F)"])
    assert pool.structures.entropies(np.array([1, 1])) == (pytest.approx(math.log(2)), 0.0)


def test_entropy_is_in_nats() -> None:
    assert entropy(np.array([2.0, 2.0, 4.0, 0.0])) == pytest.approx(1.5 * math.log(2))
    assert entropy(np.zeros(3)) == 0


def test_divergence_is_what_hand_and_paper_compute() -> None:
    p, q = np.array([3.0, 1.0]), np.array([1.0, 1.0])
    assert divergence(p, q, 0.5) == pytest.approx(1 - (math.sqrt(0.75 * 0.5) + math.sqrt(0.25 * 0.5)))
    assert divergence(p, q, 0.1) == pytest.approx(1 - (0.75**0.1 * 0.5**0.9 + 0.25**0.1 * 0.5**0.9))
    assert divergence(p, 7 * p, 0.1) == pytest.approx(0)
    assert divergence(np.array([1.0, 0.0]), np.array([0.0, 1.0]), 0.5) == 1
    assert divergence(np.array([99.0, 1.0]), np.array([0.0, 1.0]), 0.1) == pytest.approx(1 - 0.01**0.1)


@pytest.mark.parametrize(("second", "alpha", "said"), [([0.0, 0.0], 0.5, "weight"), ([1.0, 1.0], 1, "is 1")])
def test_no_divergence_of_nothing(second: list[float], alpha: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        divergence(np.array([1.0, 1.0]), np.array(second), alpha)
