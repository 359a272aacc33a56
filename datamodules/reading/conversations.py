"""Conversations, one a line in OpenAI's form, as rows: what their users said."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from datamodules.reading.example import Unit
from datamodules.reading.records import Record, head_of
from doppel.errors import DataError
from doppel.files import kind_of

#: Columns of the rows.
TEXT, UNIT = "utterance", "unit"
#: Who says what a model is to write, and what such a message, or part of one, calls its text.
_USER, _PARTS = "user", ("text", "input_text")


def user_turns(records: Iterable[Record], messages: str, unit: Unit, unit_column: str | None) -> Iterator[Record]:
    """Yield a row for each message of a user, with the other columns of its conversation.

    Formal guarantees:
        A row is a function of its own conversation, which is a record: of one more or less, the rows of this one alone
        are more or less. Where no column names whose it is, a conversation is named by its content, and the next of
        equal ones by their number, so that all its rows are one unit, which no other line renames: ``keep_share``
        chooses units by their names. Users cannot be told without a column, and are never taken for conversations.

    Args:
        records: Of a file.
        messages: The column with a list of ``{"role": …, "content": …}``; the content is a text, or a list of parts
            ``{"type": "text", "text": …}``.
        unit: As of :func:`~datamodules.reading.examples.read_examples`.
        unit_column: The column that names whose a conversation is, if it is called otherwise than ``unit``.

    Raises:
        DataError: A record has no such list.
    """
    equal = Counter[str]()
    for where, record in records:
        listed = record.get(messages)
        if not isinstance(listed, list):
            what = f"no {messages!r}" if listed is None else f"{messages!r} is {kind_of(listed)}, not a list"
            raise DataError(
                f"{what}: data.columns.messages names the column with a conversation's list of "
                '{"role": "user", "content": "…"}',
                about=where if messages in record else head_of(where),
            )
        others = {name: value for name, value in record.items() if name not in (messages, TEXT, "text")}
        if unit != "user" and (unit_column or UNIT) not in others:
            content = json.dumps(record, sort_keys=True, default=str).encode()
            digest = hashlib.sha256(content).hexdigest()
            equal[digest] += 1
            others[unit_column or UNIT] = f"conversation {digest}, {equal[digest]}"
        for place, message in enumerate(listed):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise DataError('no "role" and "content": every message needs both', about=f"{where}, message {place}")
            if message["role"] == _USER:
                yield where, {**others, TEXT: _text(message.get("content"), f"{where}, message {place}")}


def _text(content: Any, where: str) -> str | None:
    """What a message says; None where it has no text, such as a picture alone."""
    if isinstance(content, str | None):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise DataError(f'"content" is {kind_of(content)}: give a text, or a list of parts with a "type"', about=where)
    said = [part.get("text") for part in content if part.get("type") in _PARTS]
    return "\n".join(text for text in said if isinstance(text, str)) or None
