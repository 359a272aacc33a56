"""Who may read a file of a run folder, as the table of docs/privacy.md says."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "privacy.md"
READERS = ("anybody", "who holds the run", "nobody outside")


@cache
def rows() -> list[tuple[re.Pattern[str], str]]:
    """Pattern of paths and their reader, in the order of the table; later rows win."""
    (table,) = re.findall(r"^\| file \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"), flags=re.M)
    found = []
    for line in table.splitlines():
        files, _, reader = (cell.strip() for cell in line.strip("|").split(" | "))
        assert reader in READERS, line
        found += [(_pattern(text), reader) for text in re.findall(r"`([^`]+)`", files)]
    return found


def reader(path: str) -> str | None:
    """Who may read a file, by its place in the run folder; None where no row names it."""
    return next((who for pattern, who in reversed(rows()) if pattern.fullmatch(path)), None)


def _pattern(text: str) -> re.Pattern[str]:
    """``SYSTEM`` and ``STAGE`` are folders as the page says, ``*`` is any part of a name, ``**`` anything below."""
    system = r"[^/]+(?:/draws/\d+)?"
    parts = {"SYSTEM": system, "STAGE": f"(?:{system}/)?[^/]+", "**": ".*", "*": "[^/]*"}
    return re.compile("".join(parts.get(part, re.escape(part)) for part in re.split(r"(SYSTEM|STAGE|\*\*|\*)", text)))
