"""How often words and function types occur in two sets of samples, and how alike the counts are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from doppel.lispress import Counting, valid_function_types


def count_words(utterances: Iterable[str]) -> Counter[str]:
    """Count words: what stands between blanks, case and punctuation kept."""
    return Counter(word for utterance in utterances for word in utterance.split())


def count_function_types(trees: Iterable[str | None], counting: Counting = "node_labels") -> Counter[str]:
    """Count function types over the valid trees; absent (None) and invalid trees count nothing.

    Args:
        trees: linearised trees.
        counting: what a function type is: ``node_labels`` (labels of the graph, literals and let-variables left out) or
            ``call_heads``.
    """
    total: Counter[str] = Counter()
    for tree in trees:
        total.update((valid_function_types(tree, counting) if tree is not None else None) or ())
    return total


def type_overlap(synthetic: Counter[str], reference: Counter[str]) -> float:
    """Return |V_syn ∩ V_ref| / |V_ref|: the share of the reference's types in the samples (nan: no reference).

    W.Overlap and F.Overlap of Mireshghallah et al. (2023). It grows with the number of samples: compare systems on
    equally many.
    """
    if not reference:
        return float("nan")
    return len(synthetic.keys() & reference.keys()) / len(reference)


def chi_square_distance(synthetic: Counter[str], reference: Counter[str]) -> float:
    """Return ½ Σ (p−q)² / (p+q) over the types of either side, p and q their relative frequencies.

    χ² of Mireshghallah et al. (2023). Two samples of one distribution differ by chance, the more the fewer they are:
    random halves of 11,771 SMCalFlow turns are 0.0038 apart.

    Returns:
        0 for equal distributions, 1 for disjoint ones, nan where a side is empty.
    """
    num_synthetic, num_reference = synthetic.total(), reference.total()
    if not num_synthetic or not num_reference:
        return float("nan")
    distance = 0.0
    for name in sorted(synthetic.keys() | reference.keys()):
        p, q = synthetic[name] / num_synthetic, reference[name] / num_reference
        distance += (p - q) ** 2 / (p + q)
    return distance / 2


def top_k_overlap(synthetic: Counter[str], reference: Counter[str], k: int) -> float:
    """Return |top-k(reference) ∩ top-k(synthetic)| / k (Mireshghallah et al., 2023); nan without a reference.

    The divisor stays k where the reference has fewer than k types.
    """
    if not reference:
        return float("nan")
    return len(top_k(synthetic, k) & top_k(reference, k)) / k


def top_k(counts: Counter[str], k: int) -> set[str]:
    """Return the k most frequent types; equal counts are ordered by name, so input order does not matter."""
    return {name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:k]}
