"""The constraint on trees inside Hugging Face's ``generate``."""

from __future__ import annotations

from torch import FloatTensor, LongTensor, Tensor
from transformers import LogitsProcessor

from lightning_modules.decoding.constraint import TreeConstraint, TreeState


class TreeProcessor(LogitsProcessor):
    """Forbids tokens before ``generate`` tempers and cuts the scores; one object for each call of it.

    Args:
        constraint: What is allowed.
        num_prompt: Columns of the prompts, padding included.
        limit: Tokens that each text may have.
    """

    def __init__(self, constraint: TreeConstraint, num_prompt: int, limit: int) -> None:
        constraint.check_limit(limit)
        self.constraint = constraint
        self.num_prompt = num_prompt
        self.limit = limit
        self._states: dict[tuple[int, ...], TreeState | None] = {(): constraint.start}

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        """Scores with minus infinity for what is forbidden; a text that has ended may go on with anything."""
        texts = [tuple(row) for row in input_ids[:, self.num_prompt :].tolist()]
        self._states = {
            text: self.constraint.advance(self._states[text[:-1]], text[-1]) if text else self._states[()]
            for text in texts
        }
        num_left = self.limit - (input_ids.shape[1] - self.num_prompt)
        states = [self._states[text] for text in texts]
        masked: Tensor = scores.masked_fill(
            self.constraint.mask(states, [num_left] * len(texts), scores), -float("inf")
        )
        return masked  # type: ignore[return-value]
