"""What was released of a private table, kept beside its rows so that it is drawn and paid for once."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from doppel.errors import DataError, UserError
from doppel.files import read_json_lines, whole_file
from doppel.privacy.ledger import Ledger
from doppel.tables.marginals import MODEL_SEED, Measurement


def releases_of(rows: Path) -> Path:
    """Where the releases lie that rows were drawn by."""
    return rows.with_name(f"{rows.name}.releases.jsonl")


def try_folder(folder: Path) -> None:
    """Make a folder, and find out whether it can be written to, before anything is spent.

    Raises:
        DataError: It cannot.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(f"cannot be written to ({error.strerror or error}): give another --out", about=folder) from None


def read_releases(path: Path) -> tuple[dict[str, Any], list[Measurement]]:
    """What was measured of a table of attributes: its terms, and the marginals in their order.

    Raises:
        UserError: They are not there: nobody measures them a second time, which would be spent on top.
    """
    if not path.is_file():
        raise UserError(f"there are no releases at {path}: restore the file; another release would be spent")
    terms, *records = (record for _, record in read_json_lines(path))
    found = [record for record in records if "marginal" in record]
    return terms, [Measurement(tuple(r["marginal"]), np.array(r["counts"]), r["sigma"]) for r in found]


def finished_terms(path: Path) -> dict[str, Any] | None:
    """What was asked of a table all of whose budget is used, so that nobody need open it again; None for others."""
    if not path.is_file():
        return None
    terms, *records = [record for _, record in read_json_lines(path)] or [{}]
    sigma, spent = terms.get("noise_multiplier"), sum(record.get("mu_squared", 0.0) for record in records)
    return terms if sigma and math.isclose(spent, sigma**-2, rel_tol=1e-9) else None


class KeptReleases:
    """JSON lines: first what was asked of which table, then one release a line.

    Formal guarantees:
        A line is on disk before anybody sees its release, and the ledger notes the fingerprint of the file with it
        before the next one is drawn. A command that goes on reads the file only if it is what the ledger has noted
        last, or one line more: a kill between the two leaves that. So no release is drawn a second time, under other
        noise, for one payment, and whoever puts an earlier state back is refused. The first line is there before the
        ledger pays, and nothing is drawn before: a kill between these two loses nothing either.

    Args:
        path: The file.
        terms: What is asked, ready for JSON.

    Attributes:
        records: Releases that are on file.

    Raises:
        DataError: The file holds something else.
    """

    def __init__(self, path: Path, terms: dict[str, Any]) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._terms = json.loads(json.dumps({**terms, "model_seed": MODEL_SEED}))
        if path.exists():
            lines = [record for _, record in read_json_lines(path)]
            differ = [name for name, value in self._terms.items() if not lines or lines[0].get(name) != value]
            if differ:
                raise DataError(
                    f"it holds releases of another command, which differs in {', '.join(differ)}: give another --out, "
                    "whose releases are paid for again",
                    about=path,
                )
            self._terms, *self.records = lines

    def open(self, ledger: Ledger, mechanism: str) -> None:
        """Pay, unless this was paid for before; what is on file must be what the ledger has noted then.

        Raises:
            DataError: It is another one.
            BudgetExceededError: The ledger cannot pay; nothing was spent.
        """
        if self.records and ledger.noise_on_file(mechanism) is None:
            raise DataError(
                f"{ledger.path} has not paid for these as {mechanism}: name the ledger and the scope that have",
                about=self.path,
            )
        spent = ledger.spent_steps(mechanism)
        if not self.path.exists():
            if not ledger.affordable(mechanism):
                ledger.spend(mechanism)  # refuses and says why
            self._write()
            spent = 0
        if not spent:
            ledger.spend(mechanism)
            self._note(ledger, mechanism)
            return
        noted = ledger.noted(mechanism, spent)
        is_ahead = len(noted) == len(self.records)
        last = self._digest(self.records[:-1]) if self.records else None
        if is_ahead and (last is None or last in noted):
            self._note(ledger, mechanism)
        elif self._digest(self.records) not in noted or len(noted) != 1 + len(self.records):
            raise DataError(
                f"it is not what {ledger.path} has noted last of {mechanism}: restore the file, or give another --out, "
                "whose releases are paid for again",
                about=self.path,
            )

    def add(self, record: dict[str, Any], ledger: Ledger, mechanism: str) -> None:
        """Write a release, before anybody sees it."""
        self.records.append(record)
        self._write()
        self._note(ledger, mechanism)

    def _content(self, records: list[dict[str, Any]]) -> bytes:
        return "".join(f"{json.dumps(record)}\n" for record in (self._terms, *records)).encode()

    def _digest(self, records: list[dict[str, Any]]) -> str:
        return hashlib.sha256(self._content(records)).hexdigest()

    def _write(self) -> None:
        with whole_file(self.path) as file:
            file.write(self._content(self.records))

    def _note(self, ledger: Ledger, mechanism: str) -> None:
        ledger.note_weights(mechanism, ledger.spent_steps(mechanism), self._digest(self.records))
