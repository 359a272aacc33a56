"""Tied embeddings: one weight that is both the token embedding and the output head."""

from __future__ import annotations

from torch import Tensor

from doppel.privacy.clipping.arithmetic import batched_matmul, inner
from doppel.privacy.clipping.embedding import EmbeddingRule
from doppel.privacy.clipping.linear import LinearRule


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
