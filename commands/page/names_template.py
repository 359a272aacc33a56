"""The names of a page as a file to fill in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from commands.page.asked import Asked
from commands.page.html import percent
from commands.page.names import PLUMBING, Names
from doppel.errors import UserError
from doppel.files import write_text
from doppel.tables.schema import plain


def write_template(path: Path, asked: Asked, called: Names) -> None:
    """Write the names of a page as a file to fill in and to read: each below its share and a sample.

    Raises:
        UserError: The file is there, and may be filled in.
    """
    if path.exists():
        raise UserError("is there already: fill that in, or give a new file", about=f"--names-template {path}")
    rows = sorted(asked.rows, key=lambda row: -row.share.value)
    told = {row.name: f"# {percent(row.share.value)} {json.dumps(row.examples[:1])}\n" for row in rows}
    told |= dict.fromkeys(asked.too_rare, "")
    lines = [about + _yaml({name: called.words.get(plain(name), "")}) for name, about in told.items()]
    head = "# What people call these; where nothing stands, the name itself is shown.\n"
    write_text(path, head + "".join(lines) + _yaml({PLUMBING: sorted(row.name for row in asked.plumbing)}))


def _yaml(content: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(content, allow_unicode=True)
    return text
