"""The words that a model is asked with, from public templates."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from doppel.errors import UserError
from doppel.evolution.candidates import Candidate, Prompt

_FIELDS = {"random": {"about", "style", "examples"}, "vary": {"about", "style", "text", "begin"}}
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Question:
    """What a model is asked.

    Attributes:
        words: What it reads.
        begin: Words that its answer begins with, which stand at the end of ``words`` already.
        stream: Names the random stream of the answer.
    """

    words: str
    begin: str
    stream: str


@dataclass(frozen=True)
class Wording:
    """How a model is asked. All of it is public.

    Args:
        random: For a text. ``{about}`` is its label and attributes in brackets, or nothing, ``{style}`` one of
            ``styles``, ``{examples}`` donated texts that are like it, a line each under a heading, or nothing.
        vary: For a text like a candidate, ``{text}``. ``{begin}`` in place of it, at the end, stands for the first
            words of the candidate, which the model goes on from: for a model that cannot be told what to do.
        styles: Sentences of which each question has one, by chance.
    """

    random: str = (
        "Write one request that somebody says to an assistant{about}. {style} Answer with the request alone.{examples}"
    )
    vary: str = (
        "Say this request to an assistant{about} in other words. {style} Answer with the request alone.\n\n{text}"
    )
    styles: list[str] = field(
        default_factory=lambda: ["Be short.", "Be polite.", "Be casual.", "Name a person.", "Name a time.", "Be blunt."]
    )

    def __post_init__(self) -> None:
        for name, known in _FIELDS.items():
            for found in _FIELD.findall(getattr(self, name)):
                if found not in known:
                    raise UserError(
                        f"evolution.wording.{name} has {{{found}}}: there are "
                        f"{', '.join(f'{{{one}}}' for one in sorted(known))}"
                    )
        if "{begin}" in self.vary and not self.vary.endswith("{begin}"):
            raise UserError("evolution.wording.vary has {begin}, which the model goes on from: put it at the end")

    def ask(self, prompt: Prompt, parent: Candidate | None = None, examples: Sequence[str] = ()) -> Question:
        """The question for a text, which may show some examples, or for one like a candidate."""
        chance = random.Random(f"{prompt.stream}/wording")
        told = [("", prompt.label)] if prompt.label else []
        told += list(prompt.attributes)
        about = ", ".join(f"{name}: {value}" if name else str(value) for name, value in told)
        values = {"about": f" ({about})" if about else "", "style": chance.choice(self.styles) if self.styles else ""}
        shown = "".join(f"\n- {' '.join(text.split())}" for text in examples)
        values["examples"] = f"\n\nExamples:{shown}" if shown else ""
        template, begin = self.random, ""
        if parent is not None:
            words = parent.text.split()
            begin = " ".join(words[: int(chance.random() * len(words))]) if "{begin}" in self.vary else ""
            template, values = self.vary, {**values, "text": parent.text, "begin": begin}
        said = _FIELD.sub(lambda match: values[match[1]], template)
        return Question(said if begin or parent is None else said.rstrip(), begin, prompt.stream)

    def read(self, question: Question, answer: str) -> str:
        """The text of an answer: its first line, without quotation marks around it, behind what it began with."""
        line = next((line for line in answer.strip().splitlines() if line.strip()), "").strip()
        if len(line) > 1 and line[0] == line[-1] == '"':
            line = line[1:-1].strip()
        return f"{question.begin} {line}".strip()
