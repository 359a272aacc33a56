"""Which public value of a column a language model finds likeliest for a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from doppel.models.judges import continuation_log_likelihoods, first_token
from doppel.models.texts import token_ids

#: Where the text stands in a prompt.
TEXT = "{text}"


class ValueChooser:
    """A causal language model that chooses among values, of which it writes none, so that no answer is unreadable.

    A value's score is log p(value | prompt with the text) − log p(value | prompt with an empty text), summed over the
    tokens of the value and the end of its line. The second part takes away how usual the value's words are anyhow
    (domain-conditional PMI; Holtzman et al., 2021, *Surface Form Competition*). On 80 reviews SmolLM2-135M so found ten
    categories in 26 %, without it in 13 %; stars in 28 % and 31 %.

    Formal guarantees:
        A value is a function of one text, of public weights, and of public values and words. Each text goes through the
        model alone, beside no other text, so that not even rounding in a batch lets one record change another's value.
        Adding or removing a record then changes no other, and filling a column costs no ε. The model must be public:
        what it learnt from the private records without privacy would show in the values.

    Args:
        model: A causal language model in evaluation mode, where it is to run.
        tokenizer: Of the model.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._first = first_token(tokenizer)
        self._longest = int(getattr(model.config, "max_position_embeddings", None) or 1 << 20)
        self._usual: dict[tuple[str, tuple[str, ...]], Tensor] = {}  # scores for an empty text

    def likeliest(self, text: str, values: Sequence[str], ask: str) -> str | None:
        """Choose the value that fits a text best; the first of equals, and None for an empty text.

        Args:
            text: Of one record; one that is too long for the model is cut at its end.
            values: Public values.
            ask: Words before the value, with :data:`TEXT` where the text stands.
        """
        if not text.strip():
            return None
        key = ask, tuple(values)
        if key not in self._usual:
            self._usual[key] = self._scores("", values, ask)
        return values[int((self._scores(text, values, ask) - self._usual[key]).argmax())]

    def _scores(self, text: str, values: Sequence[str], ask: str) -> Tensor:
        """log p(value | prompt) of each value [K], in nats."""
        head, tail, own = token_ids(self._tokenizer, [*ask.split(TEXT), text])
        ids_KL = token_ids(self._tokenizer, [f" {value}\n" for value in values])
        room = self._longest - 1 - len(head) - len(tail) - max(map(len, ids_KL))
        return continuation_log_likelihoods(self._model, [self._first, *head, *own[: max(room, 0)], *tail], ids_KL)
