"""Sampled texts beside the true ones, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist


class SampledTexts:
    """Texts that a module samples during ``test``, and those that they stand for.

    It is no module and has no state: no text enters a checkpoint. What is computed of the joined texts must not depend
    on their order, for ranks hold any share of them.
    """

    def __init__(self) -> None:
        self._synthetic: list[str] = []
        self._reference: list[str] = []

    def update(self, synthetic: Sequence[str], reference: Sequence[str]) -> None:
        """Add texts of this rank."""
        self._synthetic += synthetic
        self._reference += reference

    def join(self) -> tuple[list[str], list[str]]:
        """Gather the texts of all ranks, synthetic and reference, and empty this object. All ranks must call it."""
        of_this_rank = self._synthetic, self._reference
        self._synthetic, self._reference = [], []
        if not (dist.is_available() and dist.is_initialized()):
            return of_this_rank
        parts: list[tuple[list[str], list[str]]] = [([], [])] * dist.get_world_size()
        dist.all_gather_object(parts, of_this_rank)
        return [text for part, _ in parts for text in part], [text for _, part in parts for text in part]
