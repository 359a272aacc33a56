"""Asks a model for texts, and keeps every answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from doppel.evolution.candidates import Candidate, Prompt
from doppel.evolution.generators.answers import Answers
from doppel.evolution.generators.wording import Question, Wording


class Model(Protocol):
    """Answers questions."""

    def answer(self, questions: Sequence[Question], answers: Answers) -> None:
        """Add the answers that come, each as soon as it is there; a question without one stays unanswered."""


class AskedModel:
    """A generator that asks a model, in the words of its wording, what it was not asked before.

    Args:
        model: Who answers.
        wording: The words.
        answers: What was answered.
    """

    def __init__(self, model: Model, wording: Wording, answers: Answers) -> None:
        self._model, self._wording, self._answers = model, wording, answers

    def random(self, prompts: Sequence[Prompt]) -> list[str]:
        """A text for each prompt."""
        return self._ask([self._wording.ask(prompt) for prompt in prompts])

    def vary(self, parents: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[str]:
        """A text like each candidate."""
        return self._ask([self._wording.ask(prompt, own) for own, prompt in zip(parents, prompts, strict=True)])

    def _ask(self, questions: Sequence[Question]) -> list[str]:
        new = [question for question in dict.fromkeys(questions) if self._answers.find(question) is None]
        if new:
            self._model.answer(new, self._answers)
        found = ((question, self._answers.find(question)) for question in questions)
        return ["" if text is None else self._wording.read(question, text) for question, text in found]
