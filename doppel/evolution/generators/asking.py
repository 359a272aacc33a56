"""Asks a model for texts, and keeps every answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from doppel.errors import UserError
from doppel.evolution.candidates import Candidate, Prompt
from doppel.evolution.generators.answers import Answers
from doppel.evolution.generators.donations import Donation, nearest
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
        donations: Texts that were given to be shown.
        num_examples: Of these, the nearest to a prompt that it shows.

    Raises:
        UserError: On asking, if most answers hold no text; the error quotes one.
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

    def random(self, prompts: Sequence[Prompt]) -> list[str]:
        """Generate a text for each prompt."""
        shown = [nearest(self._donations, prompt, self._num_examples) for prompt in prompts]
        return self._ask([self._wording.ask(prompt, None, texts) for prompt, texts in zip(prompts, shown, strict=True)])

    def vary(self, parents: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[str]:
        """Generate a text like each candidate."""
        shown = [nearest(self._donations, prompt, self._num_examples) for prompt in prompts]
        asked = zip(prompts, parents, shown, strict=True)
        return self._ask([self._wording.ask(prompt, own, texts) for prompt, own, texts in asked])

    def _ask(self, questions: Sequence[Question]) -> list[str]:
        new = [question for question in dict.fromkeys(questions) if self._answers.find(question) is None]
        if new:
            self._model.answer(new, self._answers)
        found = [(question, self._answers.find(question)) for question in questions]
        texts = ["" if text is None else self._wording.read(question, text) for question, text in found]
        no_text = [own for (_, own), text in zip(found, texts, strict=True) if own is not None and not text]
        if 2 * len(no_text) > sum(own is not None for _, own in found):
            raise UserError(
                f"{len(no_text)} of {len(found)} answers of the generator hold no text, such as {_quoted(no_text)}: "
                "mend evolution.wording, raise evolution.max_new_tokens if it was cut off while it thought, or take "
                "another evolution.generator"
            )
        return texts


def _quoted(texts: Sequence[str]) -> str:
    """The commonest of some texts, cut, for an error."""
    ((text, _),) = Counter(texts).most_common(1)
    return json.dumps(text[:200], ensure_ascii=False)
