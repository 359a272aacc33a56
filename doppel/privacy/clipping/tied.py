"""Weights that several modules use: the embedding tied to the output head, and any sharing of materialised ones."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from doppel.privacy.clipping.arithmetic import batched_matmul, inner, squared_norm
from doppel.privacy.clipping.embedding import EmbeddingRule
from doppel.privacy.clipping.linear import LinearRule
from doppel.privacy.clipping.materialize import MaterializeRule
from doppel.privacy.clipping.rule import LayerRule


class TiedPair:
    """The cross term of a weight whose gradient is GᵀA (as the head) plus EᵀD (as the embedding).

    ‖GᵀA + EᵀD‖² = ‖GᵀA‖² + ‖EᵀD‖² + 2⟨GᵀA, EᵀD⟩ and, E being one-hot, ⟨GᵀA, EᵀD⟩ = Σ_{s,t} G[s, id_t]
    (ADᵀ)_st: only n × n entries of G, gathered at the ids, are needed. Leaving the term out (as if the two
    uses were two weights) lets the norm of a clipped gradient exceed the bound.

    Args:
        embedding: The rule of the embedding.
        head: The rule of the head, built with ``keep_factors``.
    """

    def __init__(self, embedding: EmbeddingRule, head: LinearRule) -> None:
        self.rules: tuple[LayerRule, ...] = (embedding, head)
        self.embedding = embedding
        self.head = head

    def cross_term(self) -> Tensor | None:
        """2⟨GᵀA, EᵀD⟩ of each unit [U]; None if one of the two got no gradient."""
        if self.embedding.squared_norms is None or self.head.squared_norms is None:
            return None
        ids, D = self.embedding.kept["ids"], self.embedding.kept["grads"]
        if self.head.fused_head is not None:
            return 2.0 * self.head.fused_head.cross_product(D)
        A, G = self.head.kept["inputs"], self.head.kept["grads"]
        G_at_ids = G.gather(2, ids.unsqueeze(1).expand(-1, G.shape[1], -1))
        AD = batched_matmul(A.to(D.dtype), D.transpose(1, 2))
        return 2.0 * inner(G_at_ids.to(AD.dtype), AD)


class SharedParameter:
    """A parameter whose gradients are formed in several modules: its norm is that of their sum.

    Args:
        uses: The rules of the modules, each with the parameter's name there.
    """

    def __init__(self, uses: Sequence[tuple[MaterializeRule, str]]) -> None:
        self.rules: tuple[LayerRule, ...] = tuple(rule for rule, _ in uses)
        self._uses = uses
        for rule, name in uses:
            rule.shared.add(id(rule.parameters[name]))

    def cross_term(self) -> Tensor | None:
        """Squared norms [U], which no rule has counted; None if no use got a gradient."""
        grads = [rule.kept[name] for rule, name in self._uses if name in rule.kept]
        return squared_norm(sum(grads[1:], start=grads[0])) if grads else None
