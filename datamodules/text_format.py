"""The text format of the models: how a turn becomes token ids, and ids become text again."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from datamodules.reading.example import Example, Field
from doppel.errors import UserError
from doppel.grammar.slot_table import SlotTable, slot_table
from doppel.lispress.slots import distinct_values, fill_tree, fill_utterance, slots_of, to_slots

#: Longest example in tokens where a model does not say another: utterances have some 12, trees up to 250.
MAX_LENGTH = 512

#: How a tree is written. ``raw``: the Lispress text as it is. ``spaced``: a space inside each quote, so that a
#: byte-level tokenizer cuts the words of a quoted name as it cuts them in the utterance, which makes copying names easy
#: for a small model.
Linearisation = Literal["raw", "spaced"]
#: What :meth:`TextFormat.compatibility` calls what stands around prompts.
_AROUND = "begin of texts"
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SPACED_STRING = re.compile(r'" ((?:[^"\\]|\\.)*) "')


class Encoded(NamedTuple):
    """Token ids of one example.

    Attributes:
        input_ids: What begins a text, prompt, separator, target and end of text.
        num_prompt: Leading ids without loss (all before the target).
    """

    input_ids: list[int]
    num_prompt: int


@dataclass(frozen=True, slots=True)
class Filled:
    """A text of a model with values in place of its slots.

    Attributes:
        text: The text.
        num_given: Slots of its prompt.
        num_said: Those of them that the text says.
        num_own: Slots of the text that its prompt lacks.
    """

    text: str
    num_given: int = 0
    num_said: int = 0
    num_own: int = 0


@dataclass
class TextFormat:
    """Writes examples as ``" {prompt}" <sep> " {target}" <eos>``, behind ``<bos>`` where the tokenizer puts it itself.

    So a base reads what it was trained on: Llama 3 and Gemma have seen no text without their ``<bos>`` at place 0, and
    none with one inside. The separator is the tokenizer's ``sep_token``; a tokenizer without one has a line feed, which
    costs a base of web text less than its ``<bos>`` (``benchmarks/text_start.py``). The shipped base's is ``<bos>``, as
    it was trained; where that parts, it stands nowhere else. A target without a prompt stands behind ``<bos>`` alone.

    The prompt of p(x) is ``utterance``, of p(y) ``parse`` and of p(x|y) ``utterance: {source}``: with this public
    prefix a model that was trained with it never answers one task with another's text. Without it, as in Mireshghallah
    et al. (2023), it is empty, or ``{source}``. GPT-2's only special token, ``<|endoftext|>``, is both ``<bos>``
    and ``<eos>``.
    With a table of placeholders, a model never sees the names in trees: turns and prompts have placeholders instead
    (:func:`doppel.lispress.slots.to_slots`). :meth:`fill` puts the prompt's names into what the model wrote, and public
    ones where the prompt has none.

    Args:
        tokenizer: A Hugging Face tokenizer with an end-of-text token.
        source: Field of the turn used as the prompt, or None for an unconditional model.
        target: Field of the turn that the model learns to write.
        max_length: Longest example in tokens; longer ones contribute zero.
        linearisation: How parse trees are written, see :data:`Linearisation`.
        task_prefix: Whether the prompt names the field that is to be written.
        slots: The table of slots (:func:`doppel.grammar.slot_table.slot_table`); None trains on names as they are.
    """

    tokenizer: Any
    source: Field | None
    target: Field
    max_length: int
    linearisation: Linearisation = "raw"
    task_prefix: bool = False
    slots: str | None = None
    bos_id: int = field(init=False)
    eos_id: int = field(init=False)
    pad_id: int = field(init=False)
    first_ids: list[int] = field(init=False)
    separator_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        from doppel.models.texts import first_of_all  # imports torch, which the constants above do without

        eos = self.tokenizer.eos_token_id
        if eos is None:
            raise UserError(
                f"the tokenizer {self.tokenizer.name_or_path!r} has no end-of-text token: "
                "set eos_token in its tokenizer_config.json"
            )
        self.eos_id = eos
        self.bos_id = eos if self.tokenizer.bos_token_id is None else self.tokenizer.bos_token_id
        self.pad_id = eos if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id
        self.separator_ids = self._separator()
        is_separator = self.tokenizer.sep_token_id == self.bos_id  # as in models of before, and no text has two
        self.first_ids = [] if is_separator else first_of_all(self.tokenizer)
        self._table = None if self.slots is None else slot_table(self.slots)

    @property
    def slot_table(self) -> SlotTable | None:
        """The table of slots, where the model reads or writes trees; None where names stay as they are."""
        return self._table if "parse" in (self.source, self.target) else None

    @property
    def needs(self) -> tuple[Field, ...]:
        """Fields that every turn must have."""
        return (self.target,) if self.source is None else (self.source, self.target)

    def text(self, turn: Example, name: Field) -> str:
        """Return the field of a turn as the model reads it.

        Raises:
            UserError: The turn lacks the field.
        """
        value = getattr(turn, name)
        if value is None:
            raise UserError(f"a request has no {name!r}, which this model needs: give data with {name!r} on every line")
        return self.linearise(value, name)

    def linearise(self, text: str, name: Field) -> str:
        """Return a field's text as the model reads it: trees are linearised, other text is taken as it is."""
        return spaced(text) if name == "parse" and self.linearisation == "spaced" else text

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """Tokenise texts without special tokens, each text preceded by a space as inside a sentence.

        A special token that somebody typed, such as ``<|eos|>``, is text: no row ends or begins where its words say so.
        """
        return self._ids([" " + text for text in texts])

    def _ids(self, texts: list[str]) -> list[list[int]]:
        found = self._ids_as_they_are(texts)
        wrong = self._no_text
        return [
            self._apart(text) if wrong and not wrong.isdisjoint(ids) else ids
            for text, ids in zip(texts, found, strict=True)
        ]

    def _ids_as_they_are(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        if not self.tokenizer.is_fast:
            ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False, split_special_tokens=True)[
                "input_ids"
            ]
            return ids
        backend = self.tokenizer.backend_tokenizer
        backend.encode_special_tokens = True
        backend.no_truncation()
        backend.no_padding()
        return [found.ids for found in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def _apart(self, text: str) -> list[int]:
        """The ids of a text that says a special token, which some vocabularies (Unigram) have among their words.

        Behind its first character it is cut, and what a cut cannot help is left out.
        """
        said = "|".join(re.escape(token) for token in sorted(self._special, key=len, reverse=True))
        parts = re.sub(f"({said})", lambda match: f"{match[0][0]}\0{match[0][1:]}", text).split("\0")
        return [i for ids in self._ids_as_they_are(parts) for i in ids if i not in self._no_text]

    @cached_property
    def _special(self) -> list[str]:
        """Texts of special tokens longer than a character, but for that of what is unknown."""
        unknown = self.tokenizer.unk_token
        return [token for token in self.tokenizer.all_special_tokens if token != unknown and len(token) > 1]

    @cached_property
    def _no_text(self) -> set[int]:
        """Their ids, which no text has."""
        return set(self.tokenizer.convert_tokens_to_ids(self._special))

    def encode_all(self, turns: Sequence[Example]) -> list[Encoded]:
        """Encode many turns with batched tokenizer calls.

        Formal guarantees:
            What a turn becomes is a function of this turn, the public table of slots and the tokenizer.
        """
        turns = [self._with_slots(turn) for turn in turns]
        targets = self.tokenize([self.text(t, self.target) for t in turns])
        source = self.source
        prompts = self._ids_of_prompts([self._prompt(None if source is None else self.text(t, source)) for t in turns])
        return [Encoded([*p, *t, self.eos_id], len(p)) for p, t in zip(prompts, targets, strict=True)]

    def encode(self, turn: Example) -> Encoded:
        """Encode one turn."""
        return self.encode_all([turn])[0]

    def encode_prompt(self, prompt: str | None) -> list[int]:
        """Return the ids after which the model writes its target: all that stands before it."""
        return self.encode_prompts([prompt])[0]

    def encode_prompts(self, sources: Sequence[str | None]) -> list[list[int]]:
        """Tokenise the prompts of many sources, as :meth:`encode_prompt` does, with batched tokenizer calls."""
        return self._ids_of_prompts([self.prompt_text(source) for source in sources])

    def prompt_text(self, source: str | None) -> str:
        """Return the text before the separator: the prompt for the model, after a blank; empty without a prompt."""
        field, table = self.source, self.slot_table
        if source is None or field is None:
            return self._prompt(None)
        if field == "parse" and table is not None:
            source = to_slots(source, "", table.kinds).tree
        return self._prompt(self.linearise(source, field))

    def _prompt(self, text: str | None) -> str:
        if self.task_prefix:
            text = self.target if text is None else f"{self.target}: {text}"
        return "" if text is None else f" {text}"

    def _ids_of_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        distinct = [text for text in dict.fromkeys(texts) if text]  # often one for all rows
        ids = dict(zip(distinct, self._ids(distinct), strict=True))
        around = {text: self.around(text) for text in ids} | {"": self.around("")}
        return [[*around[text][0], *ids.get(text, ()), *around[text][1]] for text in texts]

    def around(self, prompt: str) -> tuple[list[int], list[int]]:
        """Return the ids before and behind a prompt as :meth:`prompt_text` gives it."""
        return (self.first_ids, self.separator_ids) if prompt else ([], [self.bos_id])

    def _separator(self) -> list[int]:
        if self.tokenizer.sep_token_id is not None:
            return [self.tokenizer.sep_token_id]
        line = self._ids(["\n"])[0]
        is_said = bool(line) and self.tokenizer.unk_token_id not in line
        return line if is_said else [self.bos_id]

    def decode(self, ids: list[int]) -> str:
        """Decode generated target ids, up to the first end of text, without the leading space."""
        if self.eos_id in ids:
            ids = ids[: ids.index(self.eos_id)]
        special = {self.bos_id, self.pad_id}
        text: str = self.tokenizer.decode([i for i in ids if i not in special], clean_up_tokenization_spaces=False)
        text = text.removeprefix(" ")
        is_spaced = self.target == "parse" and self.linearisation == "spaced"
        return _SPACED_STRING.sub(r'"\1"', text) if is_spaced else text  # one that lacks a space stays as it is

    def _with_slots(self, turn: Example) -> Example:
        table = self.slot_table
        if table is None or turn.parse is None:
            return turn
        slotted = to_slots(turn.parse, turn.utterance, table.kinds)
        return replace(turn, utterance=slotted.utterance, parse=slotted.tree)

    def fill(self, text: str, prompt: str | None, name: str) -> Filled:
        """Put names in place of the slots of a text that the model wrote.

        Slots of the prompt's names become these names; others draw a public value each. A string of a tree that has a
        kind gets such a value even where the model wrote something else.

        Formal guarantees:
            Post-processing of what the model wrote: the values are those of the prompt, which is public or a release
            itself, or draws of a public list by a generator that the name alone seeds.

        Args:
            text: As :meth:`decode` gives it.
            prompt: Of the text, with its names; None for a model without prompts.
            name: Names the random stream of the draws.
        """
        table = self.slot_table
        if table is None:
            return Filled(text)
        given = to_slots(prompt, "", table.kinds).values if prompt is not None and self.source == "parse" else {}
        if self.target == "parse":
            text = to_slots(text, "", table.kinds).tree
        said = slots_of(text, table.kinds)
        rng = random.Random(name)
        drawn = distinct_values(lambda kind: table.draw(rng, kind), taken=given.values())

        def value_of(slot: str) -> str:
            return given[slot] if slot in given else drawn(slot)

        fill = fill_tree if self.target == "parse" else fill_utterance
        num_said = sum(slot in given for slot in said)
        return Filled(fill(text, table.kinds, value_of), len(given), num_said, len(said) - num_said)

    def compatibility(self) -> dict[str, str]:
        """Return what must be alike for one model's weights to serve another: tokenizer, linearisation, prefix, slots,
        and what stands around prompts.

        The tokenizer and the table of slots by their digests; without such a table nothing is said of it, nor of
        prompts that ``<bos>`` ends.
        """
        own = self.tokenizer
        state = own.backend_tokenizer.to_str() if own.is_fast else repr(sorted(own.get_vocab().items()))
        tokenizer = hashlib.blake2b(f"{state}\0{self.bos_id},{self.eos_id}".encode(), digest_size=16).hexdigest()
        prefix = "yes" if self.task_prefix else "no"
        slots = {} if self._table is None else {"slots": self._table.digest}
        around = {} if self._is_first_form else {_AROUND: f"{self.first_ids} {self.separator_ids}"}
        return {"tokenizer": tokenizer, "linearisation": self.linearisation, "task_prefix": prefix, **slots, **around}

    @property
    def _is_first_form(self) -> bool:
        """Whether ``<bos>`` ends a prompt and nothing stands before it, as in every model of before."""
        return not self.first_ids and self.separator_ids == [self.bos_id]

    def other_format(self, saved: Mapping[str, str]) -> str | None:
        """Return which part of the :meth:`compatibility` differs from that of weights; None if they fit."""
        own = self.compatibility()
        name = next((name for name in {**own, **saved} if saved.get(name) != own.get(name)), None)
        if name != _AROUND or _AROUND in saved:
            return name
        bos = self.tokenizer.convert_ids_to_tokens(self.bos_id)
        keeps = f'"sep_token": "{bos}" in the tokenizer_config.json of its base keeps that form'
        return f"{_AROUND} (it is of before: {bos} ended its prompts; {keeps})"


def spaced(tree: str) -> str:
    """Write a tree with a space inside each quote."""
    return _STRING.sub(r'" \1 "', tree)
