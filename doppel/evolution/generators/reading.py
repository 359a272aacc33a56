"""What an answer of a model holds: one request, or a reason why it is none.

A server is asked for JSON with one field (:data:`SCHEMA`), so a request is what stands in that field, and a refusal in
any language is what does not: prose beside JSON, or null. Where a server's models cannot write JSON, an answer is read
by its form alone: markup, quotation marks, roles of a dialogue and numbers of a list are none of a request's, in any
language. No phrase is known here.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

#: The field of the JSON that a server is asked for, and the schema.
KEY = "request"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {KEY: {"type": ["string", "null"]}},
    "required": [KEY],
    "additionalProperties": False,
}
_NO_TEXT, _NOT_ASKED, _CONTROL = "no text", "not the JSON asked for", "control tokens or markup"
_REFUSED, _ECHO, _BLANKS, _BROKEN = (
    "no request, by the model's word",
    "the prompt's words",
    "blanks",
    "broken characters",
)

_TAG = re.compile(r"<(\w[\w-]*)(?: [^<>]*)?>(.*?)</\1\s*>|\[([A-Z_]+)\](.*?)\[/\3\]|◁(\w+)▷(.*?)◁/\5▷", re.DOTALL)
_INLINE = re.compile(r"</?(?:b|i|em|strong|u|code|span|mark|p|q|br)\s*/?>", re.IGNORECASE)
_OPENING, _CLOSING = r"(?:<\w[\w-]*>|\[[A-Z_]+\]|◁\w+▷)", r"(?:</\w[\w-]*>|\[/[A-Z_]+\]|◁/\w+▷)"
_TOKEN = re.compile(r"<[|｜][^<>|｜]{1,40}[|｜]>")
_FENCE = re.compile(r"```[\w-]*[ \t]*\n?(.*?)(?:```|\Z)", re.DOTALL)
#: Roles of the protocol's messages, and the field asked for, as a label before a text.
_ROLE = re.compile(
    rf"(?:\A|\n)[*_#<\s]*(system|user|human|assistant|ai|model|{KEY})\b[*_]*(?:[:：][*_]*|[ \t]*\n)"
    r"|(?<=\s)(?-i:(Assistant|AI)):\s",
    re.IGNORECASE,
)
_ROLES = {"user", "human", KEY}
_BOLD = re.compile(r"\A\s*(\*\*|__)[^*_\n]{1,40}?(?:[:：]\1|\1[:：])\s*")
_ITEM, _FIRST = (re.compile(rf"\A(?:[-*•>–]|\(?{number}[.)])\s+") for number in (r"\d{1,2}", "1"))
_FIRST_OF_LIST = re.compile(r"\A\(?1[.)]\s+(.*?)\s+\(?2[.)]\s+\S")
_QUOTES = (
    *(('"', '"'), ("“", "”"), ("„", "“"), ("„", "”"), ("«", "»"), ("»", "«"), ("‘", "’"), ("「", "」"), ("『", "』")),
    *((mark, mark) for mark in ("'", "`", "***", "**", "*", "__", "_", "~~")),
)
_BLANK = re.compile(r"\{\s*[\w ]+\s*\}|\[[A-Za-z][\w '/-]*\]|<[A-Za-z]+[ _-][\w -]*>|_{3,}")
#: How data formats write that there is nothing.
_NOTHING = {"n/a", "na", "none", "null", "nil", "nan", "undefined", "empty", "missing", "unknown", "tbd"}


@dataclass(frozen=True)
class Task:
    """What a model was told to do, in words that its answers are no part of.

    Attributes:
        text: The templates without their fields.
        styles: What may be added.
    """

    text: str
    styles: tuple[str, ...] = ()

    def is_echoed(self, text: str) -> bool:
        """Whether a text repeats the task: half of its sequences of three words are the task's, or it is a style."""
        words = _plain(text)
        found, told = set(_runs(words)), set(_runs(_plain(" ".join((self.text, *self.styles)))))
        return words in map(_plain, self.styles) or (bool(found) and 2 * len(found & told) >= len(found))

    def is_discussed(self, text: str) -> bool:
        """Whether a text speaks of the request that was asked for: names it, and another long word of the task."""
        long = {word[:5] for word in _plain(self.text) if len(word) >= 5}
        return _names_request(text) and len({word[:5] for word in _plain(text)} & long) >= 2


def has_field(answer: str) -> bool:
    """Whether an answer is the JSON that was asked for."""
    return any(KEY in record for record in _records(_without_markup(answer)))


def read(answer: str, task: Task, needs_field: bool = False) -> tuple[str, str]:
    """Return the request of an answer, or an empty text and the reason why there is none.

    Args:
        answer: What the model wrote.
        task: What it was told.
        needs_field: Whether only JSON will do, as other answers of the model are JSON.
    """
    text = _without_markup(answer)
    records = list(_records(text))
    values = [record[KEY] for record in records if KEY in record]
    if values:
        if not isinstance(values[0], str):
            return "", _REFUSED
        line = " ".join(values[0].split())
    elif needs_field or records or re.match(r'\{\s*"', text):
        return "", _NOT_ASKED
    else:
        listed = _decoded(text)
        listed = next(iter(listed), None) if isinstance(listed, list) else listed
        line = " ".join(listed.split()) if isinstance(listed, str) else _line_of(text)
    line = _bare(line)
    return (line, "") if not (why := fault_of(line, task)) else ("", why)


def go_on(begin: str, answer: str, task: Task) -> tuple[str, str]:
    """Return a text of which a model was given the first words, and which goes on with its answer's first line."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    why = fault_of(line := f"{begin} {lines[0] if lines else ''}".strip(), task)
    return ("", why) if why else (line, "")


def fault_of(line: str, task: Task) -> str:
    """Return why a line is no request; empty where it may be one."""
    if "\ufffd" in line:
        return _BROKEN
    if not any(character.isalnum() for character in line) or line.casefold().strip(".!* ") in _NOTHING:
        return _NO_TEXT
    if _TOKEN.search(line) or re.search(_CLOSING, line) or re.match(r"[<\[◁][!?/]?[\w-]+[ >\]▷]", line):
        return _CONTROL
    if _BLANK.search(line):
        return _BLANKS
    return _ECHO if task.is_echoed(line) or task.is_discussed(line) else ""


def _without_markup(answer: str) -> str:
    """What is left of an answer without control tokens, elements that stand before it, and fences around it."""
    parts = [part for part in _TOKEN.split(_INLINE.sub("", answer)) if part.strip()]
    text = _trimmed(parts[-1]) if parts else ""
    while _TAG.search(text):
        outside = _trimmed(_TAG.sub("\n", text))
        inside = [match[2] or match[4] or match[6] or "" for match in _TAG.finditer(text)]
        text = outside or (_trimmed(inside[0]) if len(inside) == 1 else "")
    before, after = _last_closing(text)
    text = after or before
    text = _trimmed(re.sub(rf"(?<=\S)\s*{_OPENING}\Z", "", text))
    fenced = _FENCE.search(text)
    return _trimmed(fenced[1]) if fenced else text


def _last_closing(text: str) -> tuple[str, str]:
    """Return what stands before and behind the last closing tag, whose opening one was cut off or never written."""
    tags = list(re.finditer(_CLOSING, text))
    return (_trimmed(text[: tags[-1].start()]), _trimmed(text[tags[-1].end() :])) if tags else (text, "")


def _trimmed(text: str) -> str:
    """A text without space and invisible characters around it."""
    start, end = 0, len(text)
    while start < end and (text[start].isspace() or unicodedata.category(text[start]) in ("Cf", "Cc")):
        start += 1
    while end > start and (text[end - 1].isspace() or unicodedata.category(text[end - 1]) in ("Cf", "Cc")):
        end -= 1
    return text[start:end]


def _decoded(text: str) -> Any:
    """The value of a text that is JSON as a whole; None of another one."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _records(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, inner ones too."""
    decoder, place = json.JSONDecoder(strict=False), text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
            yield from _inner(value)
        except (ValueError, RecursionError):
            end = place + 1
        place = text.find("{", end)


def _inner(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        if KEY not in value:
            for own in value.values():
                yield from _inner(own)
    elif isinstance(value, list):
        for own in value[:1]:
            yield from _inner(own)


def _line_of(text: str) -> str:
    """The line of prose that holds the request: behind labels and announcements, of a list or a table the first."""
    text = _spoken(text)
    blocks = re.split(r"\n\s*\n", text)
    while len(blocks) > 1 and _BOLD.match(blocks[0]):
        del blocks[0]
    text = _BOLD.sub("", "\n".join(blocks), count=1)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if cell := _first_cell(lines):
        return cell
    items = [line for line in lines if _ITEM.match(line)]
    if len(items) > 1 or (items and _ITEM.match(lines[-1])):
        lines = items
    while len(lines) > 1 and (lines[0].endswith((":", "：")) or _exclaims(lines[0])):
        del lines[0]
    line = lines[0] if lines else ""
    first = _FIRST_OF_LIST.match(line)
    return _without_comments(first[1] if first else line)


def _spoken(text: str) -> str:
    """What the user says of a dialogue, or else what stands before the first role or behind the last."""
    marks = list(_ROLE.finditer(text))
    if not marks:
        return text
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    said = [
        ((mark[1] or mark[2]).casefold(), text[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=True)
    ]
    users = [own for role, own in said if role in _ROLES and own]
    return users[0] if users else text[: marks[0].start()].strip() or said[-1][1]


def _first_cell(lines: list[str]) -> str:
    """The text of a table's first row: its longest cell, where a header of plain names stands over it."""
    if len(lines) < 2:
        return ""
    for mark in (",", "\t", "|", ";"):
        rows = [[cell.strip() for cell in line.strip("| ").split(mark)] for line in lines]
        rows = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
        header = rows[0] if rows else []
        is_header = all(re.fullmatch(r"\w+", cell) for cell in header) and (len(header) > 1 or lines[0][0] == "|")
        if len(rows) > 1 and is_header and len(rows[1]) >= len(header):
            return max(rows[1], key=len)
    return ""


def _exclaims(line: str) -> bool:
    return line.endswith(("!", "！")) and len(line.split()) <= 3


def _without_comments(line: str) -> str:
    """A line without what is said about its request before or behind it."""
    for begin, end in _QUOTES[:9]:
        quoted = re.match(rf"{begin}([^{begin}{end}]+){end}\s+[–—(-]", line)
        if quoted:
            return quoted[1]
    lead, mark, rest = line.partition(":")
    if mark and (_names_request(lead) or (re.search(r"[.!] ", lead) and _bare(rest) != rest.strip())):
        line = rest
    elif (exclaimed := re.match(r"\W?\w+(?: \w+)?[!！]\s+(?=\w)", line)) is not None:
        line = line[exclaimed.end() :]
    said, mark, tail = re.sub(r"\s+([–—(]|--?(?=\s))", "\0", line, count=1).partition("\0")
    return said if mark and _names_request(tail) else line


def _bare(line: str) -> str:
    """A line without marks of a list, symbols before it and quotation marks around it."""
    before = None
    while line != before:
        before = line = _trimmed(line)
        if len(line) > 1 and unicodedata.category(line[0]) in ("So", "Mn", "Sk") and line[0] not in "`^\ufffd":
            line = line[1:]
        line = _FIRST.sub("", line, count=1)
        for begin, end in _QUOTES:
            inner = line[len(begin) : -len(end)]
            is_quoted = len(line) > len(begin + end) and line.startswith(begin) and line.endswith(end)
            if is_quoted and begin not in inner and end not in inner:
                line = inner
    return line


def _names_request(text: str) -> bool:
    return re.search(rf"\b{KEY}", text, re.IGNORECASE) is not None


def _plain(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _runs(words: Collection[str]) -> Iterator[tuple[str, ...]]:
    own = list(words)
    return zip(own, own[1:], own[2:], strict=False)
