"""Fills the page's templates: every value is escaped, and nothing on the page can ask a network for anything."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

#: The page of a run, in its folder.
PAGE = "report.html"
TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """Render a page, with its style and its script in it.

    Samples are text of which nobody vouches: they are escaped wherever they stand, and a policy in the head of the page
    forbids any script but ours (by its hash) and any request, should one slip through.
    """
    script = (TEMPLATES / "script.js").read_text(encoding="utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            script=Markup(script),  # ours
            script_hash=digest,
            style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),  # ours
            **values,
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"of": of, "percent": percent, "of_hundred": of_hundred, "number": number, "capital": capital}
    return made


def percent(share: float) -> str:
    """Write a share as people read it: ``9.3 %``, ``0.42 %``."""
    value = 100 * share
    digits = 0 if value >= 99.95 or value == 0 else 1 if value >= 1 else 2
    return f"{value:.{digits}f} %"


def capital(text: str) -> str:
    """Begin a sentence with a capital; jinja's own filter makes all other letters small."""
    return text[:1].upper() + text[1:]


def of(value: float, top: float) -> str:
    """Return where a value stands on a line from 0 to ``top``, for a style."""
    return f"{100 * min(1.0, max(0.0, value) / top) if top else 0:.1f}%"


def of_hundred(share: float) -> str:
    """Write how many of a hundred, for a sentence: ``9``, ``0.4``."""
    value = 100 * share
    return f"{value:.0f}" if value >= 2 else f"{value:.1f}"


def number(value: float | None) -> str:
    """Three digits, or a dash."""
    if value is None:
        return "–"
    return f"{value:.3f}".lstrip("0") if 0 < abs(value) < 1 else f"{value:.3g}"
