"""Conversations, one a line in OpenAI's form, as rows: what their users said."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from datamodules.reading.columns import Row
from datamodules.reading.example import Unit
from doppel.errors import DataError
from doppel.files import kind_of

#: The column of what was said.
_TEXT = "utterance"
#: Who says what a model is to write, and what such a message, or part of one, calls its text.
_USER, _PARTS = "user", ("text", "input_text")


def user_turns(rows: Iterable[Row], unit: Unit) -> Iterator[Row]:
    """Yield a row for each message of a user, with the other columns of its conversation.

    Formal guarantees:
        A row is a function of its own conversation, which is a record: of one more or less, the rows of this one alone
        are more or less. Where no column names whose it is, a conversation is named by its content, and the next of
        equal ones by their number, so that all its rows are one unit, which no other line renames: ``keep_share``
        chooses units by their names. Users cannot be told without a column, and are never taken for conversations.

    Args:
        rows: Of a file. A column of each holds a list of ``{"role": …, "content": …}``; the content is a text, or a
            list of parts ``{"type": "text", "text": …}``.
        unit: What is protected.

    Raises:
        DataError: A record has no such list.
    """
    equal, number = Counter[str](), count(1)
    for row in rows:
        messages, unit_column = str(row.layout.messages), row.layout.unit
        listed = row.cells.get(messages)
        if not isinstance(listed, list):
            what = f"no {messages!r}" if listed is None else f"{messages!r} is {kind_of(listed)}, not a list"
            raise DataError(
                f"{what}: data.columns.messages names the column with a conversation's list of "
                '{"role": "user", "content": "…"}',
                about=row.where if messages in row.cells else row.head,
            )
        others = {name: value for name, value in row.cells.items() if name not in (messages, _TEXT, "text")}
        owners = [name for name in row.layout.owners if name in others]
        if unit != "user" and unit_column not in others:
            content = json.dumps(row.cells, sort_keys=True, default=str).encode()
            digest = hashlib.sha256(content).hexdigest()
            equal[digest] += 1
            others[unit_column] = f"conversation {digest}, {equal[digest]}"
            owners.append(unit_column)
        layout = replace(row.layout, text=_TEXT, owners=tuple(owners), is_dialogue=False)
        for place, message in enumerate(listed):
            at = f"{row.where}, message {place}"
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise DataError('no "role" and "content": every message needs both', about=at)
            if message["role"] == _USER:
                cells = {**others, _TEXT: _text(message.get("content"), at)}
                yield Row(row.where, row.where, cells, layout, next(number))


def _text(content: Any, where: str) -> str | None:
    """What a message says; None where it has no text, such as a picture alone."""
    if isinstance(content, str | None):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise DataError(f'"content" is {kind_of(content)}: give a text, or a list of parts with a "type"', about=where)
    said = [part.get("text") for part in content if part.get("type") in _PARTS]
    return "\n".join(text for text in said if isinstance(text, str)) or None
