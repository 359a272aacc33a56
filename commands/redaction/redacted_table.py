"""Rows of a table or of dialogues, written anew with other texts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from datamodules.reading.columns import Columns
from datamodules.reading.embedded import embedded_records, is_embedded
from datamodules.reading.files import expand_path
from datamodules.reading.records import head_of, read_records
from doppel.errors import DataError
from doppel.files import kind_of, whole_file
from doppel.redaction.mask import Redacted, Redactor

#: What is kept of a turn of a dialogue, beside its utterance, tree and domain; all else may repeat what was said.
_OF_A_TURN = ("turn_index", "skip")
#: What a text becomes; None: its row is left out.
Hide = Callable[[str], Redacted | None]


def texts(path: str, columns: Columns) -> Iterator[str]:
    """Yield what was said in a table or in dialogues, without empty texts."""
    for where, record in tqdm(_records(path), "reading", unit="row", disable=None):
        if columns.is_dialogue(record):
            said = [turn["user_utterance"]["original_text"] for turn in _turns_of(record, where)]
        else:
            said = [_said(record, where, columns)]
        yield from (text for text in said if text.strip())


def redacted_rows(path: str, columns: Columns, redactor: Redactor, hide: Hide) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, or dialogues of a file, with other texts, and with trees redacted alike.

    Args:
        path: Any file that `run` reads.
        columns: What its columns are called.
        redactor: Redacts the trees.
        hide: Redacts the texts.

    Raises:
        DataError: The file cannot be read, or a row of it has no text.
    """
    for where, record in tqdm(_records(path), Path(path).stem, unit="row", disable=None):
        if columns.is_dialogue(record):
            turns = (_redacted_turn(turn, redactor, hide) for turn in _turns_of(record, where))
            if kept := [turn for turn in turns if turn is not None]:
                yield {**{key: value for key, value in record.items() if key == "dialogue_id"}, "turns": kept}
        elif (said := hide(_said(record, where, columns))) is not None:
            (column,) = columns.of("text", record) or ["text"]
            row = {**record, column: said.text}
            for tree in columns.of("parse", record):
                if isinstance(row.get(tree), str):
                    row[tree] = redactor.redact_tree(row[tree], said)
            yield row


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows: a table of the columns of the first one if the name ends in .csv, else JSON lines."""
    names: list[str] = []
    with whole_file(path, "give another --out") as file:
        for row in rows:
            if path.suffix != ".csv":
                file.write(f"{json.dumps(row, ensure_ascii=False, default=str)}\n".encode())
                continue
            text = io.StringIO()
            table = csv.writer(text, lineterminator="\n")
            if not names:
                names = list(row)
                table.writerow(names)
            if row.keys() - names:
                raise DataError(
                    "a row has columns that the first one lacks, as in JSON lines: call the file .jsonl, and what is "
                    "written will be such lines",
                    about=path.name,
                )
            table.writerow(["" if row.get(name) is None else row[name] for name in names])
            file.write(text.getvalue().encode())


def _records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a table with their places."""
    path = expand_path(path)
    return embedded_records(path, "dialogue") if is_embedded(path) else read_records(path)


def _turns_of(record: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The user turns of a dialogue, what is read of each."""
    turns = record["turns"]
    own = [turn.get("user_utterance") if isinstance(turn, dict) else None for turn in turns or ()]
    if not isinstance(turns, list) or not all(
        isinstance(said, dict) and isinstance(said.get("original_text"), str) for said in own
    ):
        raise DataError("a turn without 'user_utterance' or its 'original_text': give every turn one", about=where)
    return turns


def _said(record: dict[str, Any], where: str, columns: Columns) -> str:
    """The text of a row of a table."""
    (name,) = columns.of("text", record) or ["text"]
    text = record.get(name)
    if text is not None and not isinstance(text, str):
        raise DataError(f"{name!r} is {kind_of(text)}: give a text", about=where)
    if name not in record:
        raise DataError(f"no {name!r}: name the column of what was said as --columns.text", about=head_of(where))
    return text or ""


def _redacted_turn(turn: dict[str, Any], redactor: Redactor, hide: Hide) -> dict[str, Any] | None:
    """A turn of a dialogue with its utterance and tree redacted; None where it is left out."""
    said = hide(turn["user_utterance"]["original_text"])
    if said is None:
        return None
    kept = {key: turn[key] for key in _OF_A_TURN if key in turn}
    tags = turn.get("tags")
    if isinstance(tags, dict) and "domain" in tags:
        kept["tags"] = {"domain": tags["domain"]}
    if isinstance(turn.get("lispress"), str):
        kept["lispress"] = redactor.redact_tree(turn["lispress"], said)
    return {**kept, "user_utterance": {"original_text": said.text}}
