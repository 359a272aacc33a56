"""What was released of a private table, kept beside its rows so that it is drawn and paid for once."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from doppel.errors import DataError
from doppel.files import read_json_lines
from doppel.privacy.ledger import Ledger


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


class KeptReleases:
    """JSON lines: first what was asked of which table, then one release a line.

    Formal guarantees:
        Before a line is written, the ledger notes the fingerprint of the file with it. A command that goes on reads the
        file only if it is what the ledger has noted last: whoever puts an earlier state back does not get the later
        releases drawn a second time, under other noise, for one payment. A crash between the two leaves a file that is
        not gone on from.

    Args:
        path: The file.
        terms: What is asked, ready for JSON.

    Raises:
        DataError: The file holds something else.
    """

    def __init__(self, path: Path, terms: dict[str, Any]) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._terms = json.loads(json.dumps(terms))
        self._digest = hashlib.sha256()
        if path.exists():
            self._digest.update(path.read_bytes())
            lines = [record for _, record in read_json_lines(path)]
            differ = [name for name, value in self._terms.items() if not lines or lines[0].get(name) != value]
            if differ:
                raise DataError(
                    f"it holds releases of another command, which differs in {', '.join(differ)}: give another --out, "
                    "whose releases are paid for again",
                    about=path,
                )
            self.records = lines[1:]

    def exists(self) -> bool:
        """Whether something was released."""
        return self.path.exists()

    def check(self, ledger: Ledger, mechanism: str) -> None:
        """Refuse a file that is not what the ledger has noted last.

        Raises:
            DataError: It is another one.
        """
        noted = ledger.noted(mechanism, ledger.spent_steps(mechanism))
        if self._digest.hexdigest() not in noted or len(noted) != 1 + len(self.records):
            raise DataError(
                f"it is not what {ledger.path} has noted last of {mechanism}: restore the file, or give another --out, "
                "whose releases are paid for again",
                about=self.path,
            )

    def begin(self, ledger: Ledger, mechanism: str) -> None:
        """Write the first line."""
        self._append(self._terms, ledger, mechanism)

    def add(self, record: dict[str, Any], ledger: Ledger, mechanism: str) -> None:
        """Write a release, before anybody sees it."""
        self._append(record, ledger, mechanism)
        self.records.append(record)

    def _append(self, record: dict[str, Any], ledger: Ledger, mechanism: str) -> None:
        line = f"{json.dumps(record)}\n".encode()
        self._digest.update(line)
        ledger.note_weights(mechanism, ledger.spent_steps(mechanism), self._digest.hexdigest())
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
