"""Asks a model for texts, and keeps every answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from doppel.errors import UserError
from doppel.evolution.candidates import Candidate, Prompt
from doppel.evolution.generators.answers import Answers
from doppel.evolution.generators.donations import Donation, nearest
from doppel.evolution.generators.reading import has_field
from doppel.evolution.generators.wording import Question, Wording

#: Times that a question is asked again whose answer held no request.
_AGAIN = 2
#: A model of which one answer in so many is the JSON that was asked for can write it: its prose is no request.
_CAN = 4


class Model(Protocol):
    """Answers questions."""

    def answer(self, questions: Sequence[Question], answers: Answers) -> None:
        """Add the answers that come, each as soon as it is there; a question without one stays unanswered."""


class AskedModel:
    """A generator that asks a model, in the words of its wording, what it was not asked before.

    An answer that holds no request is thrown away, and its question is asked again, with other random numbers. Where a
    quarter of the answers are the JSON that a server is asked for, prose is none: so a refusal is known in any
    language.

    Args:
        model: Who answers.
        wording: The words.
        answers: What was answered.
        donations: Texts that were given to be shown.
        num_examples: Of these, the nearest to a prompt that it shows.

    Attributes:
        thrown: Why an answer was thrown away, by its question.

    Raises:
        UserError: On asking, if most answers hold no request; the error says why and quotes one. Once texts have been
            varied, a vote may be paid, so a run goes on with the texts that it has.
    """

    def __init__(
        self,
        model: Model,
        wording: Wording,
        answers: Answers,
        donations: Sequence[Donation] = (),
        num_examples: int = 0,
    ) -> None:
        self._model, self._wording, self._answers = model, wording, answers
        self._donations, self._num_examples = donations, num_examples
        self.thrown: dict[Question, str] = {}
        self._may_stop = True

    def random(self, prompts: Sequence[Prompt]) -> list[str]:
        """Generate a text for each prompt."""
        shown = [nearest(self._donations, prompt, self._num_examples) for prompt in prompts]
        return self._ask([self._wording.ask(prompt, None, texts) for prompt, texts in zip(prompts, shown, strict=True)])

    def vary(self, parents: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[str]:
        """Generate a text like each candidate."""
        shown = [nearest(self._donations, prompt, self._num_examples) for prompt in prompts]
        asked = zip(prompts, parents, shown, strict=True)
        found = self._ask([self._wording.ask(prompt, own, texts) for prompt, own, texts in asked])
        self._may_stop = False
        return found

    def _ask(self, questions: Sequence[Question]) -> list[str]:
        answers = self._answer(questions)
        told = [answer for answer in answers if answer is not None]
        needs_field = 0 < len(told) <= _CAN * sum(map(has_field, told))
        texts = self._read(questions, answers, needs_field)
        failed = [place for place, text in enumerate(texts) if not text and answers[place] is not None]
        if self._may_stop and 2 * len(failed) > len(told):
            raise UserError(
                f"{len(failed)} of {len(questions)} answers of the generator hold no request "
                f"({_counted([self.thrown[questions[place]] for place in failed])}), such as "
                f"{_quoted([str(answers[place]) for place in failed])}: mend evolution.wording, raise "
                "evolution.max_new_tokens if it was cut off while it thought, or take another evolution.generator"
            )
        for time in range(1, _AGAIN + 1):
            again = [replace(questions[place], stream=f"{questions[place].stream}/again{time}") for place in failed]
            found = self._read(again, self._answer(again), needs_field)
            for place, text in zip(failed, found, strict=True):
                texts[place] = text
            failed = [place for place in failed if not texts[place]]
        return texts

    def _answer(self, questions: Sequence[Question]) -> list[str | None]:
        """The answers to questions; None to one that has none."""
        new = [question for question in dict.fromkeys(questions) if self._answers.find(question) is None]
        if new:
            self._model.answer(new, self._answers)
        return [self._answers.find(question) for question in questions]

    def _read(self, questions: Sequence[Question], answers: Sequence[str | None], needs_field: bool) -> list[str]:
        """The requests that answers hold, empty where there is none."""
        texts = []
        for question, answer in zip(questions, answers, strict=True):
            texts.append("" if answer is None else self._wording.read(question, answer, needs_field))
            if answer is not None and not texts[-1]:
                self.thrown[question] = self._wording.fault(question, answer, needs_field)
        return texts

    def thrown_away(self) -> dict[str, int]:
        """Return how many answers were thrown away for each reason, the commonest first."""
        return dict(Counter(self.thrown.values()).most_common())


def _counted(reasons: Sequence[str]) -> str:
    return ", ".join(f"{number} {why}" for why, number in Counter(reasons).most_common())


def _quoted(texts: Sequence[str]) -> str:
    """The commonest of some texts, cut, for an error."""
    ((text, _),) = Counter(texts).most_common(1)
    return json.dumps(text[:200], ensure_ascii=False)
