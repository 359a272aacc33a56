"""Which tokens keep a text inside the grammar of parse trees, as llguidance finds them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Protocol

import llguidance.hf
import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import (  # its module for torch loads torch's compiler, two seconds
    allocate_token_bitmask,
    fill_next_token_bitmask_par,
)
from torch import FloatTensor, LongTensor, Tensor
from transformers import LogitsProcessor

from doppel.errors import UserError
from doppel.lispress.api_table import read_api_names
from doppel.lispress.lark import lark_grammar
from doppel.lispress.tree_names import TREES, read_tree_names


class TextFormat(Protocol):
    """What sampling asks of the format of a model's texts: fields, special ids, and ids as text."""

    @property
    def source(self) -> str | None: ...
    @property
    def target(self) -> str: ...
    @property
    def linearisation(self) -> str: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def bos_id(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    @property
    def pad_id(self) -> int: ...
    def decode(self, ids: list[int]) -> str: ...


class TreeConstraint:
    """Lets only those tokens through after which a text is still the beginning of a well-formed tree.

    The end of text is allowed where the tree is complete. The model's distribution is only cut to these tokens and
    renormalised. Nothing makes a tree end within a limit: one that does not is cut off, and drawn again as any other
    text that is no sample.

    Privacy: the constraint is a function of public names and of what the model has written so far. Sampling under it is
    post-processing of the trained model, whose (ε, δ) covers the samples unchanged; that holds only as long as no name
    in its tables was read off the private data.

    Args:
        grammar: In the syntax of Lark.
        tokenizer: A Hugging Face tokenizer.
        eos_id: The token that ends a text.

    Raises:
        UserError: llguidance cannot read the tokenizer.
    """

    def __init__(self, grammar: str, tokenizer: Any, eos_id: int) -> None:
        try:
            own = llguidance.hf.from_tokenizer(tokenizer, eos_token=eos_id)
        except (ValueError, AssertionError) as error:
            raise UserError(
                f"sampling.grammar cannot be had with the tokenizer {tokenizer.name_or_path!r}: it needs a byte-level "
                "one, as GPT-2, Llama 3 or models/base have; set sampling.grammar=null for this model"
            ) from error
        self._num_tokens = len(tokenizer)
        self._executor = LLExecutor(1)
        self._start = LLMatcher(own, LLMatcher.grammar_from_lark(grammar))
        if self._start.is_error():
            raise RuntimeError(self._start.get_error())

    def start(self) -> LLMatcher:
        """Return the state before the first token."""
        return self._start.deep_copy()

    @staticmethod
    def advance(state: LLMatcher, token: int) -> None:
        """Move a state past one more token."""
        if not state.consume_token(token):
            raise RuntimeError(f"the grammar of trees does not go on: {state.get_error()}")

    def mask(self, states: Sequence[LLMatcher | None], like: Tensor) -> Tensor:
        """Return booleans of the shape of the scores ``like`` [texts, vocabulary], true where a token is forbidden.

        A text with no state may go on with any token. Columns and ids of tokens may each be more than the other.
        """
        bits = allocate_token_bitmask(len(states), self._num_tokens)  # all are set
        running = [(state, row) for row, state in enumerate(states) if state is not None]
        fill_next_token_bitmask_par(self._executor, running, bits)
        forbidden = np.unpackbits((~bits).view(np.uint8), axis=1, count=like.shape[-1], bitorder="little")
        forbidden[:, self._num_tokens :] = 1
        return torch.from_numpy(forbidden).view(torch.bool).to(like.device)


def tree_constraint(text_format: TextFormat, grammar: str | list[str] | None) -> TreeConstraint | None:
    """Build the constraint on what a model of trees writes.

    Args:
        text_format: Of the model.
        grammar: As in :class:`doppel.decoding.sampling.SamplingArguments`.

    Returns:
        The constraint, remembered for the next call; None where there is no grammar, or its files hold no tree.

    Raises:
        UserError: The model writes no trees, its tokenizer is not of the kind, or a table cannot be read.
    """
    if not grammar:
        return None
    if text_format.target != "parse":
        raise UserError(
            f"sampling.grammar is for models that write parse trees, and this one writes the {text_format.target}: "
            "set it to null, or give it to the parse-tree model alone"
        )
    files = (grammar,) if isinstance(grammar, str) else tuple(grammar)
    return _constraint(files, text_format.linearisation == "spaced", text_format.tokenizer, text_format.eos_id)


@lru_cache(maxsize=4)
def _constraint(files: tuple[str, ...], spaced: bool, tokenizer: Any, eos_id: int) -> TreeConstraint | None:
    tables = [file for file in files if not file.endswith(TREES)]
    trees = [read_tree_names(file) for file in files if file.endswith(TREES)]
    names = reduce(or_, [*([read_api_names(tables)] if tables else []), *trees])
    if names.is_empty:  # nothing is known of the API
        return None
    return TreeConstraint(lark_grammar(names, spaced), tokenizer, eos_id)


class TreeProcessor(LogitsProcessor):
    """Forbids tokens in ``generate``, before it tempers and cuts the scores; one object for each call of it.

    Args:
        constraint: What is allowed.
        num_prompt: Columns of the prompts, padding included.
        eos_id: After which a text may go on with anything.
    """

    def __init__(self, constraint: TreeConstraint, num_prompt: int, eos_id: int) -> None:
        self.constraint = constraint
        self.num_prompt = num_prompt
        self.eos_id = eos_id
        self._states: dict[tuple[int, ...], LLMatcher | None] = {(): constraint.start()}

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        """Scores with minus infinity for what is forbidden."""
        texts = [tuple(row) for row in input_ids[:, self.num_prompt :].tolist()]
        self._states = {text: self._after(text) for text in dict.fromkeys(texts)}
        rows = {text: row for row, text in enumerate(self._states)}  # equal texts have one state
        forbidden = self.constraint.mask(list(self._states.values()), scores[: len(rows)])
        masked: Tensor = scores.masked_fill(forbidden[[rows[text] for text in texts]], -float("inf"))
        return masked  # type: ignore[return-value]

    def _after(self, text: tuple[int, ...]) -> LLMatcher | None:
        """The state after a text, whose beginning was there at the last call: several beams may go on from one.

        None after the end of a text, and for a beam that has no score left, which may hold any token.
        """
        if not text:
            return self._states[()]
        before = self._states[text[:-1]]
        if before is None or text[-1] == self.eos_id or not before.validate_tokens([text[-1]]):
            return None
        after = before.deep_copy()
        self.constraint.advance(after, text[-1])
        return after
