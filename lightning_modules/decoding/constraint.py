"""Which tokens keep a text inside the grammar of parse trees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doppel.errors import UserError
from doppel.lispress.forms import Form, Kind
from doppel.lispress.incremental import Left, Recognizer, Stack, State
from doppel.lispress.reader import MAX_DEPTH
from lightning_modules.decoding.byte_trie import ByteTrie

_NEVER = np.iinfo(np.int16).max
_MEMORY = 1 << 27  # bytes of remembered masks, at two a token
_CONTINUATION = range(0x80, 0xC0)
#: By the byte that begins a character of several bytes: how many follow, and which the next may be.
_LEADS = {
    **dict.fromkeys(range(0xC2, 0xE0), (1, 0x80, 0xBF)),
    **dict.fromkeys(range(0xE1, 0xF0), (2, 0x80, 0xBF)),
    **dict.fromkeys(range(0xF1, 0xF4), (3, 0x80, 0xBF)),
    0xE0: (2, 0xA0, 0xBF),
    0xED: (2, 0x80, 0x9F),
    0xF0: (3, 0x90, 0xBF),
    0xF4: (3, 0x80, 0x8F),
}
_WHOLE = (0, 0, 0)
#: A string is walked as if this form, which is complete with it, were around it. So tokens inside strings do the same
#: whatever form is around.
_STRING_FORM = Form(Kind.ASCRIPTION, 1)


class TreeState(NamedTuple):
    """Where a text is in the grammar.

    Attributes:
        state: Of the recogniser, after all whole characters.
        partial: Bytes that the last character still lacks, and the range of the next.
    """

    state: State
    partial: tuple[int, int, int] = _WHOLE


class _Left(NamedTuple):
    """Inside a token, the outermost form at hand is complete; the rest of the token depends on the forms around it."""

    left: Left
    node: int
    character: str


class _Reach(NamedTuple):
    """What the tokens do within the forms at hand.

    Attributes:
        ids: Tokens that end within them.
        ends: For each, how many characters would then end those forms.
        left: Where tokens leave them.
    """

    ids: np.ndarray
    ends: np.ndarray
    left: tuple[_Left, ...]


class TreeConstraint:
    """Lets only those tokens through after which a well-formed tree can still be completed in time.

    A token is allowed if the text goes on in the grammar and the shortest way to end the tree, one character a token,
    fits into the tokens that are left; the end of text is allowed where the tree is complete. So every text ends as a
    well-formed tree within its limit, and where the limit is far, the model's distribution is only cut to the tokens
    of the grammar and renormalised.

    What a token does depends on the innermost open form, and on the forms around it only if the token closes it. So the
    tokens are walked once for each innermost form, with the part beyond left open, and put together for each text.

    Privacy: the constraint is a function of public names and of what the model has written so far. Sampling under it is
    post-processing of the trained model, whose (ε, δ) covers the samples unchanged; that holds only as long as no name
    in its tables was read off the private data.

    Args:
        recognizer: The grammar.
        spellings: Bytes of each token id; empty for tokens that are never written.
        eos_id: The token that ends a text.

    Attributes:
        start: The state before the first token.

    Raises:
        UserError: The vocabulary cannot spell what ends a tree.
    """

    def __init__(self, recognizer: Recognizer, spellings: Sequence[bytes], eos_id: int) -> None:
        self.recognizer = recognizer
        self.eos_id = eos_id
        self._spellings = list(spellings)
        self._trie = ByteTrie((i, spelling) for i, spelling in enumerate(spellings) if spelling and i != eos_id)
        missing = sorted(c for c in recognizer.names.characters if not self._trie.has(ord(c)))
        if missing:
            raise UserError(
                f"sampling.grammar: the vocabulary has no token for {''.join(missing)!r} alone, so trees could not be "
                "ended in time: take a byte-level tokenizer with all bytes, or leave sampling.grammar at null"
            )
        self._can_continue = all(map(self._trie.has, _CONTINUATION))
        self._longest = max(map(len, spellings))
        self.start = TreeState(recognizer.start(after_blank=True))
        self._reach = lru_cache(max(256, _MEMORY // (2 * len(spellings))))(self._reach_of)
        self._reach_outside = lru_cache(1 << 16)(self._reach_after)

    @property
    def shortest(self) -> int:
        """Tokens that every tree fits into, the end of text included."""
        return self.recognizer.shortest_end(self.start.state) + 1

    def check_limit(self, limit: int) -> None:
        """Refuse a longest text into which no tree fits.

        Raises:
            UserError: It is too short.
        """
        if limit < self.shortest:
            raise UserError(
                f"sampling.grammar: a text of {limit} tokens has no room for a tree: set sampling.max_new_tokens to at "
                f"least {self.shortest}"
            )

    def allowed(self, state: TreeState | None, num_left: int) -> np.ndarray:
        """The tokens that may come next.

        Args:
            state: Of the text so far; None, of a text that has left the grammar, allows everything.
            num_left: Tokens that may still be written, at least the shortest end of the text and its end-of-text token.

        Returns:
            Booleans, one for each token id; some are true.
        """
        if state is None:
            return np.ones(len(self._spellings), dtype=bool)
        stack = state.state.stack
        is_deep = stack.depth + self._longest >= MAX_DEPTH - 4
        depth = stack.depth if is_deep else 0
        lex, text, _ = state.state
        form, up, outer = stack.form, stack.up, stack.outer
        if state.state.is_in_string:
            form, up, outer = _STRING_FORM, self.recognizer.end_after_item(form) + up, stack
        ends, left = self._reach(lex, text, state.partial, form, depth)
        room = num_left - 2  # this token, and the end of text
        allowed: np.ndarray = ends <= min(room - up, _NEVER - 1)
        waiting = [(one, outer) for one in left]
        while waiting:
            one, outer = waiting.pop()
            assert outer is not None
            reach = self._reach_outside(one, outer.form, outer.depth if is_deep else 0)
            allowed[reach.ids] = reach.ends <= room - outer.up
            waiting += ((further, outer.outer) for further in reach.left)
        allowed[self.eos_id] = state.partial == _WHOLE and self.recognizer.accepts(state.state)
        return allowed

    def advance(self, state: TreeState | None, token: int) -> TreeState | None:
        """The state after one more token; None if the text leaves the grammar."""
        if state is None or token == self.eos_id or not self._spellings[token]:
            return None
        for byte in self._spellings[token]:
            after = self._step(state, byte)
            assert not isinstance(after, Left)
            if after is None:
                return None
            state = after
        return state

    def mask(self, states: Sequence[TreeState | None], num_left: Sequence[int], like: Tensor) -> Tensor:
        """Which scores are to be cut off.

        Args:
            states: Of each text.
            num_left: Tokens that each may still write.
            like: Scores of shape [texts, vocabulary], with at least as many columns as there are token ids.

        Returns:
            Booleans of the same shape, true where a token is forbidden.
        """
        allowed = np.zeros((len(states), like.shape[-1]), dtype=bool)
        for row, (state, number) in enumerate(zip(states, num_left, strict=True)):
            allowed[row, : len(self._spellings)] = self.allowed(state, number)
        return ~torch.from_numpy(allowed).to(like.device)

    def _step(self, state: TreeState, byte: int) -> TreeState | Left | None:
        inner, partial = state
        if byte < 0x80:
            if partial != _WHOLE:
                return None
            after = self.recognizer.advance_within(inner, chr(byte))
            return TreeState(after) if isinstance(after, State) else after
        # Whether a character of several bytes may come at all is asked before it begins.
        after = self.recognizer.advance_within(inner, "é") if inner.is_in_string and self._can_continue else None
        if after is None:
            return None
        if partial == _WHOLE:
            return TreeState(inner, _LEADS[byte]) if byte in _LEADS else None
        number, least, most = partial
        if not least <= byte <= most:
            return None
        if number > 1:
            return TreeState(inner, (number - 1, 0x80, 0xBF))
        return TreeState(after) if isinstance(after, State) else after

    def _end(self, state: TreeState) -> int:
        """Characters, or bytes, that end the forms at hand."""
        if state.partial == _WHOLE:
            return self.recognizer.shortest_end(state.state)
        after = self.recognizer.advance_within(state.state, "é")
        assert isinstance(after, State)
        return state.partial[0] + self.recognizer.shortest_end(after)

    def _reach_of(
        self, lex: int, text: str, partial: tuple[int, int, int], form: Form, depth: int
    ) -> tuple[np.ndarray, tuple[_Left, ...]]:
        """The ends that tokens lead to within a form, for all tokens, and where they leave it."""
        start = TreeState(State(lex, text, Stack(form, None, 0, depth)), partial)
        reach = self._walk([(start, 0)], [], [])
        ends = np.full(len(self._spellings), _NEVER, dtype=np.int16)
        ends[reach.ids] = reach.ends
        return ends, reach.left

    def _reach_after(self, one: _Left, form: Form, depth: int) -> _Reach:
        """What the rest of a token does after it has closed all within `form`."""
        after: State | TreeState | Left | None = self.recognizer.resume(Stack(form, None, 0, depth), one.left)
        if isinstance(after, State):
            # A character that is no part of what it closed is yet to be read.
            after = TreeState(after) if one.left.is_read else self._step(TreeState(after), ord(one.character))
        if isinstance(after, TreeState):
            ids = self._trie.tokens[one.node]
            return self._walk([(after, one.node)], list(ids), [self._end(after)] * len(ids))
        nothing = np.empty(0, dtype=np.int64)
        return _Reach(nothing, nothing, () if after is None else (one._replace(left=after),))

    def _walk(self, todo: list[tuple[TreeState, int]], ids: list[int], ends: list[int]) -> _Reach:
        """Follow the tokens from nodes of the trie for as long as they stay within the forms at hand."""
        left = []
        while todo:
            state, node = todo.pop()
            for byte, child in self._trie.children[node].items():
                after = self._step(state, byte)
                if after is None:
                    continue
                if isinstance(after, Left):
                    left.append(_Left(after, child, chr(byte)))
                    continue
                tokens = self._trie.tokens[child]
                if tokens:
                    ids += tokens
                    ends += [self._end(after)] * len(tokens)
                if self._trie.children[child]:
                    todo.append((after, child))
        return _Reach(np.array(ids, dtype=np.int64), np.array(ends, dtype=np.int16), tuple(left))
