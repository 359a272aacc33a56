"""The words that a model is asked with, from public templates."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from doppel.errors import UserError
from doppel.evolution.candidates import Candidate, Prompt

_FIELDS = {"random": {"about", "style", "examples"}, "vary": {"about", "style", "examples", "text", "begin"}}
_FIELD = re.compile(r"\{(\w+)\}")
#: What a model thinks before it answers: up to the last end of it, or all where it does not end.
_THOUGHT = "(?:think|thinking|thought|thoughts|reasoning|reflection|analysis)"
_THINKS = re.compile(
    rf"\A.*(?:[<\[◁]/{_THOUGHT}[>\]▷]|final<\|message\|>)|[<\[◁]{_THOUGHT}[>\]▷].*\Z", re.IGNORECASE | re.DOTALL
)
_SURE = r"(?:sure(?: thing)?|certainly|of course|absolutely|okay|ok|al+ ?right|got it|no problem|great|yes)\b[\s,.!]*"
#: What announces a text, before it in its line ("Sure! Here is a request:", "**Request:**"), or alone in one.
_ANNOUNCES = re.compile(
    rf"\W*(?:{_SURE})?(?:here(?:['’]s| is| are)?\s+(?:you go|it is|one"
    r"|(?:one|an?|the|your|some|another)\b[^:：\n]{0,60}"
    r"\b(?:request|way|version|paraphras\w*|re(?:phras|word|writ)\w*|example|option|suggestion|response|answer|message"
    r"|sentence|utterance|query|question|command|text|review|statement|phrase)s?\b[^:：\n]{0,40})"
    r"|(?:(?:my|the|user|example|sample|possible|alternative|rephrased|reworded|rewritten|paraphrased|final)\s+)*"
    r"(?:request|answer|response|reply|output|paraphrase|version|utterance|query|user|assistant|rewrite))[*_\s]*"
    r"[:：][*_]*(?=\s|\Z)",
    re.IGNORECASE,
)
_AGREES = re.compile(_SURE, re.IGNORECASE)
_REFUSES = re.compile(
    r"\W*(?:as an? (?:ai|artificial|large|language)\b|(?:[^.!?\n]{0,40}\b(?:sorry|apologi[sz]e)\b[^\n]{0,40}?)?"
    r"\b(?:i|we)(?:['’]m|['’]re| am| are)?\s+(?:can['’]?t|can ?not|won['’]t|will not|do ?n['’]t|not able to|unable to)"
    r"\s+(?:\w+\s+){0,2}?(?:(?:help|assist)(?: you)? with (?:that|this|your)|comply|fulfil|generate|produce|engage"
    r"|(?:provide|create|write|do|answer) (?:that|this|a request|such|any)))",
    re.IGNORECASE,
)
_ITEM = re.compile(r"\A(?:[-*•]|\d{1,2}[.)])\s+")
_QUOTES = (('"', '"'), ("“", "”"), ("«", "»"), ("「", "」"), ("**", "**"))


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

    def read(self, question: Question, answer: str) -> str:
        """Return the text of an answer: its first line of text, without its lead; empty where there is none.

        What a model thinks, what announces the text, and quotation marks around it are no part of it. A refusal, in
        English, is no text, nor is one with a broken character.
        """
        lines = [line.strip() for line in _THINKS.sub("", answer).splitlines() if line.strip()]
        if not question.begin:
            while lines and (announced := _ANNOUNCES.match(lines[0])):
                lines[:1] = [rest] if (rest := lines[0][announced.end() :].strip()) else []
            while len(lines) > 1 and (lines[0].endswith((":", "：")) or _AGREES.fullmatch(lines[0])):
                del lines[0]
        line = lines[0] if lines else ""
        line = line if question.begin else _ITEM.sub("", line, count=1)
        for begin, end in _QUOTES:
            if len(line) > 1 and line.startswith(begin) and line.endswith(end):
                line = line[len(begin) : -len(end)].strip()
        return "" if _REFUSES.match(line) or "\ufffd" in line else f"{question.begin} {line}".strip()
