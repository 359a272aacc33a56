"""The grammar that a sampling setting names, for our own decoder and for Hugging Face's."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch import FloatTensor, LongTensor, Tensor
from transformers import LogitsProcessor

from datamodules.linearisation import Linearisation
from doppel.errors import UserError
from doppel.lispress.api_table import read_api_names
from doppel.lispress.incremental import Recognizer
from lightning_modules.decoding.byte_trie import token_bytes
from lightning_modules.decoding.constraint import TreeConstraint, TreeState

if TYPE_CHECKING:
    from datamodules.codec import Codec

NOTATION = "lispress"
"""Names the notation alone, with any names in it."""


def tree_constraint(codec: Codec, grammar: str | list[str] | None) -> TreeConstraint | None:
    """The constraint on what a model of trees writes.

    Args:
        codec: Of the model.
        grammar: As in :class:`lightning_modules.sampling.SamplingArguments`.

    Returns:
        The constraint, remembered for the next call; None where there is no grammar.

    Raises:
        UserError: The model writes no trees, its tokenizer is not of the kind, or a table cannot be read.
    """
    if not grammar:
        return None
    if codec.target != "parse":
        raise UserError(
            f"sampling.grammar is for models that write parse trees, and this one writes the {codec.target}: set it to "
            "null, or give it to the parse-tree model alone"
        )
    tables = (grammar,) if isinstance(grammar, str) else tuple(grammar)
    return _constraint(tables, codec.linearisation, codec.tokenizer, codec.eos_id)


@lru_cache(maxsize=4)
def _constraint(tables: tuple[str, ...], layout: Linearisation, tokenizer: Any, eos_id: int) -> TreeConstraint:
    names = None if tables == (NOTATION,) else read_api_names(tables)
    return TreeConstraint(Recognizer(names, layout, only_calls=True), token_bytes(tokenizer), eos_id)


class TreeProcessor(LogitsProcessor):
    """Forbids tokens in ``generate``, before it tempers and cuts the scores; one object for each call of it.

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
