"""Answers of a model on disk, by what was asked: a run that goes on asks nothing twice."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from doppel.errors import DataError
from doppel.evolution.generators.wording import Question
from doppel.files import append_json_line, cut_torn_line, read_json_lines


class Answers:
    """JSON lines, one for each answer: ``key``, a hash of model and question; ``text``; and what it cost.

    Formal guarantees:
        Questions are public or released (:mod:`doppel.evolution.evolve`), and answers are made of them. So the file
        holds nothing that its scope has not paid for. It has the questions as hashes alone.

    A line is on disk (fsync) before anybody sees the answer. A last line that a crash tore is cut off.

    Args:
        path: The file, which need not be there.
        model: All that an answer depends on but the question: the model and how it is sampled.

    Raises:
        DataError: The file holds something else.
    """

    def __init__(self, path: Path, model: str) -> None:
        self.path, self._model = path, model
        self._texts: dict[str, str] = {}
        self.spent: dict[str, float] = {"calls": 0, "tokens": 0, "money": 0.0}
        if path.exists():
            cut_torn_line(path)
            for number, record in read_json_lines(path):
                try:
                    self._enter(record)
                except (KeyError, TypeError):
                    raise DataError("no answer of a generator: restore the file", about=f"{path}:{number}") from None

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, question: Question) -> str | None:
        """Return the answer to a question; None if it was never answered."""
        return self._texts.get(self._key(question))

    def add(self, question: Question, text: str, **cost: float) -> None:
        """Keep an answer."""
        self._append({"key": self._key(question), "text": text, **cost})

    def charge(self, **cost: float) -> None:
        """Keep what a call cost that brought no answer."""
        self._append({"key": None, "text": "", **cost})

    def _key(self, question: Question) -> str:
        told = json.dumps([self._model, question.words, question.begin, question.stream])
        return hashlib.sha256(told.encode()).hexdigest()

    def _enter(self, record: dict[str, Any]) -> None:
        if record["key"] is not None:
            self._texts[str(record["key"])] = str(record["text"])
        for name in self.spent:
            self.spent[name] += record.get(name, 0)

    def _append(self, record: dict[str, Any]) -> None:
        append_json_line(self.path, record)
        self._enter(record)
