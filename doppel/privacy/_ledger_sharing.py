"""One ledger that serves many runs: a line in the folder of each names it, and what the run is called there."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

from doppel.privacy._ledger_file import LedgerError, LedgerFile, make_private
from doppel.privacy._ledger_notes import has_paid


def follow(path: Path) -> tuple[Path, str]:
    """Return the ledger that a file is or names, and the prefix of the run's scopes there, "" in its own ledger."""
    try:
        with open(path, "rb") as file:
            record = json.loads(file.readline(65_536))
        if record["type"] == "see":
            return Path(record["ledger"]), f"{record['run']}/"
    except (OSError, ValueError, TypeError, KeyError):  # whoever reads the ledger says what is wrong with it
        pass
    return path, ""


def join(own: Path, shared: Path) -> None:
    """Give a run folder a ledger that serves many runs: where its own would be, one line names it and the run.

    Args:
        own: Where the run folder has its ledger.
        shared: The ledger, which need not be there yet.

    Raises:
        LedgerError: The folder has another ledger already, or cannot be written to.
    """
    shared = shared.resolve()
    if own.resolve() == shared:
        return
    name = f"{own.resolve().parent.name}-{secrets.token_hex(4)}"
    draft = own.with_name(f".{own.name}.{secrets.token_hex(8)}")
    try:
        make_private(own.parent)
        draft.write_text(json.dumps({"type": "see", "ledger": str(shared), "run": name}) + "\n", encoding="utf-8")
        try:
            os.link(draft, own)  # of several processes one wins
        except FileExistsError:
            known = follow(own)[0]
            if known != shared:
                raise LedgerError(
                    f"this run was begun with {'a ledger of its own' if known == own else known}, now {shared} "
                    "is asked: restore it, for what is spent stays where it was written.",
                    about=own,
                ) from None
        finally:
            draft.unlink()
    except OSError as error:
        raise LedgerError(f"{error.strerror or error}: the run folder must be writable.", about=own) from error


def leave(own: Path, lock_timeout: float = 60.0) -> None:
    """Forget the ledger of a failed start, so that its run folder may have another one; it stays where a run has paid.

    Formal guarantees:
        Nothing of the run is lost: no step was paid, by the ledger and by the notes beside the key, which outlive it,
        and nothing was said of what is released without noise. A process that has opened the old one, and has yet to
        take its first step, is refused that (:meth:`~doppel.privacy.ledger.Ledger.spend`).

    Args:
        own: Where the run folder has its ledger, or the line that names it.
        lock_timeout: Seconds to wait for another process.

    Raises:
        LedgerError: The ledger cannot be read, or stays locked.
    """
    path, prefix = follow(own)
    file = LedgerFile(path, lock_timeout)
    with file.locked() if file.exists() else contextlib.nullcontext():
        spent = [name for name, record in file.mechanisms.items() if record.done_steps]
        if not has_paid(path, prefix) and not any(name.startswith(prefix) for name in (*spent, *file.caveats)):
            own.unlink(missing_ok=True)
