"""Published dialogues (SMCalFlow 2.0, TreeDST) as turns: every user turn, without context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from datamodules.reading.attribute_codes import AttributeCodes
from datamodules.reading.cells import label_of, text_of, tree_of
from datamodules.reading.example import Example
from datamodules.reading.rows import Reading
from doppel.errors import DataError

#: Which key holds a field.
KEYS = {"utterance": "original_text", "parse": "lispress", "label": "domain"}


class Dialogues:
    """Makes turns of the dialogues of one file.

    Args:
        how: How they are read.
    """

    def __init__(self, how: Reading) -> None:
        self._how = how
        self._places: dict[str, str] = {}  # of each dialogue that is a unit, by its name

    def examples(self, dialogue: dict[str, Any], where: str, number: int) -> Iterator[Example]:
        """Yield the turns of a dialogue, by its keys, place and number in the file, from 1.

        Raises:
            DataError: It is none, or does not say what is protected.
        """
        owner, called = self._name(dialogue, where), dialogue.get("dialogue_id")
        called = number if called is None else called
        if not isinstance(dialogue["turns"], list):
            raise DataError("'turns' is not a list: give the turns of the dialogue as a JSON list", about=where)
        for position, turn in enumerate(dialogue["turns"]):
            at = f"{where}, turn {position}"
            if not isinstance(turn, dict) or not isinstance(turn.get("user_utterance"), dict):
                raise DataError("no 'user_utterance' object: every turn needs one with 'original_text'", about=at)
            utterance = text_of(turn["user_utterance"], KEYS["utterance"], at)
            tags, of_tree = turn.get("tags"), KEYS["parse"]
            label = label_of({KEYS["label"]: tags.get(KEYS["label"])}, at) if isinstance(tags, dict) else None
            has_tree = self._how.reads_trees and turn.get(of_tree) is not None
            tree = tree_of(text_of(turn, of_tree, at), at, of_tree) if has_tree else None
            name = owner or f"{called}/{turn.get('turn_index', position)}"
            yield with_attributes(Example(utterance, tree, name, label, where, "dialogue_id"), self._how.codes, at)

    def _name(self, dialogue: dict[str, Any], where: str) -> str | None:
        """The name of a dialogue that is a unit; None where its turns are units of their own."""
        if self._how.unit == "user":
            raise DataError(
                "a published dialogue does not say which user held it: give plain lines "
                '{"utterance", "parse", "unit"} whose "unit" names the user, or train with unit=dialogue',
                about=where,
            )
        if self._how.unit != "dialogue":
            return None
        if dialogue.get("dialogue_id") is None:
            raise DataError(
                "no 'dialogue_id', which names the privacy unit: add one to every dialogue, "
                "or train with unit=utterance (each request protected by itself)",
                about=where,
            )
        name = self._how.name(dialogue, "dialogue_id", where)
        first = self._places.setdefault(name, where)
        if first != where:
            raise DataError(
                f"the dialogue_id of line {first.rpartition(':')[2]} again, so that two dialogues "
                "would be one unit: give every dialogue an id of its own, or drop the line",
                about=where,
            )
        return name


def with_attributes(turn: Example, codes: AttributeCodes | None, where: str) -> Example:
    """Return a turn that is no row of a table, whose attributes are all made of itself."""
    if codes is None:
        return turn
    return replace(turn, label=codes.of_row({}, where, turn.utterance, turn.parse, turn.label))
