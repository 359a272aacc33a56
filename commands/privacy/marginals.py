"""Marginals of a private table: paid for once, measured within the budget, and kept in the ledger one by one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm import tqdm

from doppel.errors import DataError, UserError
from doppel.files import read_json_lines, write_json_lines
from doppel.privacy.fingerprint import key_path, keyed_fingerprint
from doppel.privacy.ledger import Ledger
from doppel.privacy.release import once
from doppel.tables.marginals import MODEL_SEED, Measurement, Table
from doppel.tables.schema import Schema

if TYPE_CHECKING:
    from doppel.tables.mixture import Mixture

Method = Literal["aim", "independent"]
_BAR = "{desc}: {n:.0f} % of the budget |{bar}| {elapsed}"


class Marginals:
    """What a ledger holds of one table: what was asked of it, and the marginals and choices that were released.

    Formal guarantees:
        What is asked stands in the line that pays. Under it stand, of each release, a line with what it costs, before
        it is drawn, and a line with its values, before anybody sees it. So a process that is killed at any moment goes
        on with what it has released, draws no release a second time under other noise but at a price of its own, and
        all of it costs what was paid (:mod:`doppel.privacy.ledger`). Of two processes that go on at once, one finds
        lines that it has not read where it is about to write, and is refused: nothing that it has drawn was kept.

    Args:
        ledger: What pays.
        mechanism: Id of the mechanism there; it need not be declared yet.

    Attributes:
        terms: What was asked; empty where nothing is paid.
        records: Releases, in their order.
    """

    def __init__(self, ledger: Ledger, mechanism: str) -> None:
        self.ledger, self.mechanism = ledger, mechanism
        self._read()

    def _read(self) -> None:
        """Read what is on file; of terms that a crash cut nothing is left, and none held a number of the table."""
        found = [own for own in self.ledger.releases(self.mechanism) if own.sha256 is None]
        self._num_read = len(found)
        told = [dict[str, Any](own.content or {"torn": own.torn}) for own in found]
        while told and "torn" in told[0]:
            del told[0]
        self.terms, self.records = (told[0], told[1:]) if told else ({}, [])

    @property
    def is_finished(self) -> bool:
        """Whether all of the budget is used, so that nobody need open the table again."""
        spent = sum(record.get("mu_squared", 0.0) for record in self.records)
        is_drawn = not self.records or set(self.records[-1]) != {"mu_squared"}  # else it is paid for alone
        return bool(self.terms) and is_drawn and math.isclose(spent, self.terms["noise_multiplier"] ** -2, rel_tol=1e-9)

    def fit(self, terms: dict[str, Any], private: Table | None, noise_seed: int | None = None) -> Mixture:
        """Charge for a table, unless that was done before, measure it within its budget, and fit a model to it.

        Formal guarantees:
            All that leaves the table goes through :class:`~doppel.tables.releases.Releases`, which cost one Gaussian
            release together; each is in the ledger before it is used, and is read there where an earlier process drew
            it. The model is post-processing. A line of terms that a crash tore has paid, and held no number of the
            table: releases are drawn under terms that are written down again.

        Args:
            terms: What is asked, see :func:`terms_of`; with the noise multiplier of everything as one Gaussian release.
            private: The table, whose mechanism is declared; None where it is finished.
            noise_seed: For tests alone: the guarantee is void.

        Raises:
            DataError: It was asked something else before.
            BudgetExceededError: The ledger cannot pay; nothing was spent.
        """
        asked = json.loads(json.dumps({**terms, "model_seed": MODEL_SEED}))
        told = once(self.ledger, self.mechanism, lambda: asked)
        if told is None:
            self.ledger.release(self.mechanism, content=asked, after=self._num_read)
        self._read()
        differ = [name for name, value in asked.items() if self.terms.get(name) != value]
        if differ:
            raise DataError(
                f"it holds the releases of another command, which differs in {', '.join(differ)}, as {self.mechanism}: "
                "give another --out, whose releases are charged again",
                about=self.ledger.path,
            )
        if private is None:
            return fitted_again(self.terms, self.records)
        from doppel.privacy.secret import Secret  # need torch, which no --help waits for
        from doppel.tables.aim import aim
        from doppel.tables.independent import independent
        from doppel.tables.releases import NoisyMarginals

        def keep(record: dict[str, Any]) -> None:
            self.ledger.release(self.mechanism, content=record, after=self._num_read)
            self._num_read += 1
            self.records.append(record)

        def tell(share: float) -> None:
            bar.update(100 * share - bar.n)

        stream, mechanism = Secret(noise_seed).stream("marginals"), NoisyMarginals(terms["noise_multiplier"])
        with tqdm(total=100, desc="measured", unit="%", bar_format=_BAR, disable=None) as bar:
            releases = mechanism.draw(private, stream, done=list(self.records), keep=keep, tell=tell)
            model = (independent if terms.get("method") == "independent" else aim)(releases)
        _tell_lost(self.terms, self.records)
        return model

    def refuse_another(self, table: str, fingerprint: Callable[[], str]) -> None:
        """Refuse to draw by these releases for a table that is there and is not the one that was measured.

        Formal guarantees:
            The content of the table is hashed, under a key, and no row is read. All that leaves is whether the command
            is refused: one bit, told to whoever can open the table. A table that is gone is not asked for.

        Args:
            table: Its path.
            fingerprint: Returns the digest of its content.

        Raises:
            UserError: It is another one.
        """
        measured = self.ledger.mechanisms[self.mechanism].fields["data_fingerprint"]
        if os.path.exists(table) and keyed_fingerprint(fingerprint()) != measured:
            raise UserError(
                f"{table} is not the table whose releases {self.ledger.path} holds as {self.mechanism} (or its schema, "
                f"columns or the key {key_path()} have changed): name the table that was measured, or give another "
                "--out, whose releases are charged"
            )

    def write(self, path: Path) -> None:
        """Write what was released as JSON lines, for readers: what was asked, then one release a line."""
        write_json_lines(path, [self.terms, *self.records])


def terms_of(schema: Schema, unit: str, num_units: int, sigma: float | None, **more: Any) -> dict[str, Any]:
    """Return the terms of a release of a table: columns, and noise over sensitivity, None where it is exact."""
    made = {"made": of} if (of := schema.made_of()) else {}
    known = {"unit": unit, "num_units": num_units, "noise_multiplier": sigma, "columns": schema.as_dict()}
    return {**more, **known, **made}


def fitted_again(terms: dict[str, Any], records: list[dict[str, Any]]) -> Mixture:
    """Fit a model to the releases of a table: post-processing, the table is not opened."""
    from doppel.tables import aim, independent

    _tell_lost(terms, records)
    refit = independent.refit if terms.get("method") == "independent" else aim.refit
    return refit([len(values) for values in terms["columns"].values()], terms["num_units"], measurements(records))


def _tell_lost(terms: dict[str, Any], records: list[dict[str, Any]]) -> None:
    measured = {own.clique[0] for own in measurements(records) if len(own.clique) == 1}
    for name in (name for place, name in enumerate(terms["columns"]) if place not in measured):
        print(
            f"warning: a crash cut the line of the counts of {name!r}, and nothing was left to count it again: its "
            "values are drawn equally often"
        )


def measurements(records: list[dict[str, Any]]) -> list[Measurement]:
    """Return the marginals among releases, in their order."""
    found = [record for record in records if "marginal" in record]
    return [Measurement(tuple(r["marginal"]), np.array(r["counts"]), r["sigma"]) for r in found]


def read_releases(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the terms of a table of attributes and its releases, as :meth:`Marginals.write` left them.

    Raises:
        UserError: It is not there.
    """
    if not path.is_file():
        raise UserError(f"there are no releases at {path}: restore the file, or give the command that wrote it again")
    terms, *records = (record for _, record in read_json_lines(path))
    return terms, records
