"""The words that a model is asked with, from public templates."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from doppel.errors import UserError
from doppel.evolution.candidates import Candidate, Prompt
from doppel.evolution.generators.reading import Task, go_on, read

_FIELDS = {"random": {"about", "style", "examples"}, "vary": {"about", "style", "examples", "text", "begin"}}
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
    """Prompts of a generator; all of it is public.

    Args:
        random: Prompt for a text. ``{about}`` is its label and attributes in brackets, or nothing; ``{style}`` one of
            ``styles``; ``{examples}`` similar public texts, one per line under a heading, or nothing.
        vary: Prompt for a variation of a candidate, ``{text}``; may use the others too. ``{begin}`` instead, at the
            end, is the first words of the candidate, for models that only continue text.
        styles: Sentences, of which each prompt gets a random one.
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
            raise UserError("evolution.wording.vary has {begin}, which the model continues: put it at the end")

    def ask(self, prompt: Prompt, parent: Candidate | None = None, examples: Sequence[str] = ()) -> Question:
        """Return the question for a text, or for one like a candidate, which may show some examples."""
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

    def read(self, question: Question, answer: str, needs_field: bool = False) -> str:
        """Return the request that an answer holds; empty where it holds none.

        Args:
            question: What was asked.
            answer: What the model wrote.
            needs_field: Whether only the JSON that a server is asked for will do.
        """
        return self._read(question, answer, needs_field)[0]

    def fault(self, question: Question, answer: str, needs_field: bool = False) -> str:
        """Return in a few words why an answer holds no request; empty where it holds one."""
        return self._read(question, answer, needs_field)[1]

    def _read(self, question: Question, answer: str, needs_field: bool) -> tuple[str, str]:
        task = Task(_FIELD.sub(" ", f"{self.random} {self.vary}"), tuple(self.styles))
        return go_on(question.begin, answer, task) if question.begin else read(answer, task, needs_field)
