"""Published dialogues (SMCalFlow 2.0, TreeDST) as rows: every user turn, without context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from datamodules.reading.cells import text_of
from datamodules.reading.columns import Row
from datamodules.reading.example import Unit
from doppel.errors import DataError


def dialogue_turns(rows: Iterable[Row], unit: Unit) -> Iterator[Row]:
    """Yield rows as they are, and in place of a dialogue a row for each of its turns.

    Args:
        rows: Of a file.
        unit: What is protected.

    Raises:
        DataError: A dialogue is none, or does not say what is protected.
    """
    for row in rows:
        if not row.layout.is_dialogue:
            yield row
            continue
        turns, called = row.cells["turns"], row.cells.get("dialogue_id")
        if unit == "user":
            raise DataError(
                "a published dialogue does not say which user held it: give plain lines "
                '{"utterance", "parse", "unit"} whose "unit" names the user, or train with unit=dialogue',
                about=row.where,
            )
        if unit == "dialogue" and called is None:
            raise DataError(
                "no 'dialogue_id', which names the privacy unit: add one to every dialogue, "
                "or train with unit=utterance (each request protected by itself)",
                about=row.where,
            )
        if not isinstance(turns, list):
            raise DataError("'turns' is not a list: give the turns of the dialogue as a JSON list", about=row.where)
        layout = replace(row.layout, text="original_text", parse="lispress", labels=("domain",), unit="dialogue_id")
        for position, turn in enumerate(turns):
            at = f"{row.where}, turn {position}"
            if not isinstance(turn, dict) or not isinstance(turn.get("user_utterance"), dict):
                raise DataError("no 'user_utterance' object: every turn needs one with 'original_text'", about=at)
            tags = turn.get("tags")
            cells = {
                "original_text": text_of(turn["user_utterance"], "original_text", at),
                "lispress": turn.get("lispress"),
                "domain": tags.get("domain") if isinstance(tags, dict) else None,
                "dialogue_id": row.number if called is None else called,
            }
            yield Row(row.where, at, cells, layout, turn.get("turn_index", position))
