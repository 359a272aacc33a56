"""Reads what pages hold: fenced blocks, the shell commands in them, links and names of files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: What stands behind its fence; empty: nothing.
        text: What it holds.
        line: Line of the page where it begins.
    """

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in _FENCE.finditer(text)]


def commands(page: Path) -> list[str]:
    """Shell commands of a page (lines of its ``bash`` blocks) or of the comments of another file.

    Continued lines are joined, comments left out.
    """
    if page.suffix == ".md":
        text = "".join(block.text for block in blocks(page) if block.language == "bash")
    else:
        text = "\n".join(re.findall(r"^#   +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    lines = (line.partition(" #")[0] for line in text.replace("\\\n", " ").splitlines())
    return [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#")]


def words(command: str) -> list[str]:
    """Words of a command as the shell splits them, without variables that are set in front of it."""
    split = shlex.split(command)
    while split and re.fullmatch(r"\w+=.*", split[0]):
        split.pop(0)
    return split


def links(page: Path) -> Iterator[str]:
    """Targets of the links outside fenced blocks."""
    return (match[1] for match in _LINK.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))))


def code(page: Path) -> Iterator[str]:
    """What stands in backticks, outside fenced blocks."""
    return (match[1] for match in _CODE.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))))


def anchors(page: Path) -> set[str]:
    """Names by which links reach the headings of a page, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.strip().lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}
