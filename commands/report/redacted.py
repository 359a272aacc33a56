"""What a page says of words that were hidden before training: settings, and measurements of public data."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commands.run_folder.places import ROOT
from commands.run_folder.run_folder import RunFolder
from datamodules.guards.redaction import Redaction

#: The curves that docs/redaction.md shows.
_CURVES = ROOT / "docs" / "results" / "redaction.png"
_PATTERNS = {"email": "e-mail addresses", "phone": "phone numbers", "number": "words with a digit"}


@dataclass(frozen=True)
class Hidden:
    """What was hidden of the rows of a run.

    Attributes:
        what: What rules and ranker hide, in words.
        curves: What redaction leaves of another data set, measured once: a picture as a ``data:`` address; None where
            the code is there without its documentation.
    """

    what: list[str]
    curves: str | None


def hidden(record: RunFolder) -> Hidden | None:
    """Return what was hidden of the rows of a run; None where nothing was.

    Formal guarantees:
        All of it are settings of the run, which are public, and measurements of a public data set. How many words were
        hidden, and what is left in the rows of this run, are exact numbers of private rows: they are not told.
    """
    found = [Redaction.from_config(value) for value in record.redactions]
    what = list(dict.fromkeys(text for redaction in found if redaction is not None for text in _told(redaction)))
    if not what:
        return None
    curves = base64.b64encode(_CURVES.read_bytes()).decode() if _CURVES.is_file() else None
    return Hidden(what, None if curves is None else f"data:image/png;base64,{curves}")


def _told(redaction: Redaction) -> Iterator[str]:
    if redaction.sensitive is not None and redaction.safe is not None:
        files = [Path(path).name for path in (redaction.sensitive, redaction.safe)]
        yield (
            f"of each request {redaction.level:.4g} of its words, rounded up: those that tell most whether it is like "
            f"the public texts of {files[0]} or those of {files[1]}"
        )
    if redaction.words is not None:
        yield f"words and phrases of the list {Path(redaction.words).name}"
    if redaction.patterns:
        yield " and ".join(_PATTERNS[name] for name in redaction.patterns)
    if redaction.entities:
        yield "names, dates and sums that a public model of language finds; it misses some"
    if redaction.pseudonyms:
        yield "made-up names stand in place of names; all else has the mask [MASK]"
