"""A picture of the page: what the run's page already shows of the same numbers is taken from there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from markupsafe import Markup

from commands.runs.run_record import RunRecord

PAGE = "report.html"
#: Functions of :mod:`commands.page.charts` by what they draw of one run.
Kind = Literal["scatter", "lengths"]


def picture(record: RunRecord, kind: Kind, numbers: Mapping[str, Sequence[float]], title: str, told: str) -> Markup:
    """A picture, drawn only if the page of the run has not this very one: to draw takes a quarter of a page's time.

    A picture carries a digest of all that it is drawn from: the numbers, the texts, and the code that draws. One is
    taken from the page if its digest is the same, and the page is, byte for byte, what `page` or `report` has entered
    in the manifest. A page that was changed since is not read.

    Args:
        record: The run.
        kind: The function of :mod:`commands.page.charts` that draws it.
        numbers: What is drawn, by name, as that function takes it.
        title: Of the picture.
        told: What it shows, for who does not see it.
    """
    digest = _digest(kind, numbers, title, told)
    shown = _on_the_page(record, digest)
    if shown is not None:
        return shown
    from commands.page import charts  # matplotlib, for which no --help waits, and no page whose pictures are there

    drawn = getattr(charts, kind)(numbers, title, told)
    return Markup(str(drawn).replace("<svg ", f'<svg data-drawn="{digest}" ', 1))  # ours


def _digest(kind: Kind, numbers: Mapping[str, Sequence[float]], title: str, told: str) -> str:
    drawn = json.dumps([kind, list(numbers.items()), title, told, version("matplotlib")])
    code = Path(__file__).with_name("charts.py").read_bytes()
    return hashlib.sha256(code + drawn.encode()).hexdigest()


def _on_the_page(record: RunRecord, digest: str) -> Markup | None:
    """The picture as the page has it; None where there is no such page, or it has another picture."""
    made, path = record.manifest.files.get(PAGE), record.folder / PAGE
    if made is None or made.role != "report" or not path.is_file():
        return None
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != made.sha256:
        return None
    found = re.search(rf'<svg data-drawn="{digest}" .*?</svg>', content.decode("utf-8"), flags=re.DOTALL)
    return None if found is None else Markup(found[0])  # ours: all else on a page is escaped
