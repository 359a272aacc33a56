"""The text format of the models: how a turn becomes token ids, and ids become text again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datamodules.linearisation import Linearisation, delinearise, linearise
from datamodules.turn import Field, Turn
from doppel.errors import UserError

#: Longest example in tokens where a model does not say another: utterances have some 12, trees up to 250.
MAX_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of one example.

    Attributes:
        input_ids: Prompt, separator, target and end of text.
        num_prompt: Leading ids without loss (prompt and separator).
    """

    input_ids: list[int]
    num_prompt: int


@dataclass
class Codec:
    """Writes examples as ``" {prompt}" <bos> " {target}" <eos>``.

    =============  =======================  ==================
    prompt of      with the task's prefix   without, as paper
    =============  =======================  ==================
    p(x)           ``utterance``            none
    p(y)           ``parse``                none
    p(x|y)         ``utterance: {source}``  ``{source}``
    =============  =======================  ==================

    With the prefix the first token says what is to be written, and a base model that was trained with it never answers
    one task with another's text; without (Mireshghallah et al., 2023), p(x) and p(y) have one prompt, ``<bos>`` alone.
    The prefix is public and the same for all rows. GPT-2 has a single special token, ``<|endoftext|>``, which then
    plays both parts.

    Args:
        tokenizer: A Hugging Face tokenizer with an end-of-text token.
        source: Field of the turn used as the prompt, or None for an unconditional model.
        target: Field of the turn that the model learns to write.
        max_length: Longest example in tokens; longer ones contribute zero.
        linearisation: How parse trees are written, see :data:`datamodules.linearisation.Linearisation`.
        task_prefix: Whether the prompt names the field that is to be written.
    """

    tokenizer: Any
    source: Field | None
    target: Field
    max_length: int
    linearisation: Linearisation = "raw"
    task_prefix: bool = False
    bos_id: int = field(init=False)
    eos_id: int = field(init=False)
    pad_id: int = field(init=False)

    def __post_init__(self) -> None:
        eos = self.tokenizer.eos_token_id
        if eos is None:
            raise UserError(
                f"the tokenizer {self.tokenizer.name_or_path!r} has no end-of-text token: "
                "set eos_token in its tokenizer_config.json"
            )
        self.eos_id = eos
        self.bos_id = eos if self.tokenizer.bos_token_id is None else self.tokenizer.bos_token_id
        self.pad_id = eos if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id

    @property
    def needs(self) -> tuple[Field, ...]:
        """Fields that every turn must have."""
        return (self.target,) if self.source is None else (self.source, self.target)

    def text(self, turn: Turn, name: Field) -> str:
        """The field of a turn as the model reads it.

        Raises:
            UserError: The turn lacks the field.
        """
        value = getattr(turn, name)
        if value is None:
            raise UserError(f"a turn has no {name!r}, which this model needs: give data with {name!r} on every line")
        return self.linearise(value, name)

    def linearise(self, text: str, name: Field) -> str:
        """A field's text as the model reads it: trees are linearised, other text is taken as it is."""
        return linearise(text, self.linearisation) if name == "parse" else text

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """Ids of texts without special tokens, each text preceded by a space as inside a sentence."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer([" " + t for t in texts], add_special_tokens=False)["input_ids"]
        return ids

    def encode_all(self, turns: list[Turn]) -> list[Encoded]:
        """Encode many turns with batched tokenizer calls."""
        targets = self.tokenize([self.text(t, self.target) for t in turns])
        source = self.source
        prompts = self._prompts([None if source is None else self.text(t, source) for t in turns])
        return [Encoded([*p, *t, self.eos_id], len(p)) for p, t in zip(prompts, targets, strict=True)]

    def encode(self, turn: Turn) -> Encoded:
        """Encode one turn."""
        return self.encode_all([turn])[0]

    def encode_prompt(self, prompt: str | None) -> list[int]:
        """Ids after which the model writes its target: the prompt, if any, and the separator."""
        return self.encode_prompts([prompt])[0]

    def encode_prompts(self, sources: Sequence[str | None]) -> list[list[int]]:
        """Ids of the prompts of many sources, separators included, with batched tokenizer calls.

        Args:
            sources: Fields of turns; None for a prompt without source.
        """
        field = self.source
        return self._prompts([None if s is None or field is None else self.linearise(s, field) for s in sources])

    def _prompts(self, texts: Sequence[str | None]) -> list[list[int]]:
        if self.task_prefix:
            texts = [self.target if text is None else f"{self.target}: {text}" for text in texts]
        ids = iter(self.tokenize([text for text in texts if text is not None]))
        return [[*(() if text is None else next(ids)), self.bos_id] for text in texts]

    def decode(self, ids: list[int]) -> str:
        """Text of generated target ids, up to the first end of text, without the leading space."""
        if self.eos_id in ids:
            ids = ids[: ids.index(self.eos_id)]
        special = {self.bos_id, self.pad_id}
        text: str = self.tokenizer.decode([i for i in ids if i not in special], clean_up_tokenization_spaces=False)
        text = text.removeprefix(" ")
        return delinearise(text, self.linearisation) if self.target == "parse" else text

    def text_format(self) -> dict[str, str]:
        """What must be alike for one model's weights to serve another: tokenizer (a digest), linearisation, prefix."""
        tokenizer = _digest(self._tokenizer_state(), f"{self.bos_id},{self.eos_id}")
        prefix = "yes" if self.task_prefix else "no"
        return {"tokenizer": tokenizer, "linearisation": self.linearisation, "task_prefix": prefix}

    def other_format(self, saved: Mapping[str, str]) -> str | None:
        """Which part of the :meth:`text_format` differs from that of weights; None if they fit."""
        return next((name for name, value in self.text_format().items() if saved.get(name) != value), None)

    def _tokenizer_state(self) -> str:
        if self.tokenizer.is_fast:
            state: str = self.tokenizer.backend_tokenizer.to_str()
            return state
        return repr(sorted(self.tokenizer.get_vocab().items()))


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
