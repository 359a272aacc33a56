"""Private rows of attributes, like those of a private table."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveFloat, PositiveInt

from commands.privacy.marginals import Marginals, Method, fitted_again, releases_of
from commands.privacy.rows_card import write_card
from commands.runs.run_folder import hold
from datamodules.attributes import Attributes
from datamodules.sources import content_digest, expand_path
from datamodules.turn import Unit
from doppel.console.ledger import FILE_NAME, SITE
from doppel.errors import UserError
from doppel.files import try_folder, whole_file
from doppel.privacy.gdp import mu_of
from doppel.privacy.ledger import Ledger, join
from doppel.privacy.spec import PrivacyArguments, default_delta, note_on_delta
from doppel.tables.marginals import Whole
from doppel.tables.releases import NoisyMarginals
from doppel.tables.schema import OTHER, Schema


def metadata(
    table: str,
    *,
    out: Path,
    num_rows: PositiveInt,
    epsilon: PositiveFloat,
    delta: float | None = None,
    schema: Path | None = None,
    columns: list[str] | None = None,
    values_are_public: bool = False,
    method: Method = "aim",
    unit: Unit | None = None,
    unit_column: str | None = None,
    ledger: Path | None = None,
    scope: str = "metadata",
    target_epsilon: PositiveFloat | None = None,
    seed: int = 1,
    noise_seed: int | None = None,
) -> None:
    """Private rows of attributes, like those of a private table.

    A row says what one request is like, such as its domain, its length and its rating. The rows that are written
    belong to nobody: they keep how often values occur, alone and together, up to the noise that ε asks for. Prompts can
    be made of them.

    The values of each column must be public: a YAML file, --schema, lists them (`stars: [1, 2, 3]`), or the bounds
    between bins of numbers (`words: {bins: [5, 10, 20]}`). What is not listed is read as "other".

    The ledger is written before anything is drawn, and refuses what its scope cannot pay. Beside the rows lie the noisy
    counts (.releases.jsonl) and a card (.card.json). The same command again draws rows by the same counts at no further
    ε, also another number of them, or by another --seed: it does not open the table. An interrupted one goes on.

    Args:
        table: The private table: .csv, .tsv, .jsonl, .parquet, or a folder.
        out: File to write, .csv.
        num_rows: Rows to write.
        epsilon: ε of this release.
        delta: δ of the scope; min(1/(N ln N), 1e-5) for N units if left out.
        schema: YAML file with the public values of each column.
        columns: Columns to read; all of the schema if left out.
        values_are_public: The values that occur in the table itself are public: no schema is needed.
        method: aim measures pairs of columns that go together, independent each column alone.
        unit: Who is protected: utterance (one row), dialogue or user (all rows of one name).
        unit_column: Column that says whose row it is; "unit" if left out.
        ledger: Ledger, or run folder with one, that pays; if left out, the one that DOPPEL_LEDGER names, or
            ledger.jsonl beside the rows.
        scope: What the ledger calls all that is released together; a training may be in the same one.
        target_epsilon: What the scope may spend in all; epsilon if left out.
        seed: Public seed of the rows.
        noise_seed: For tests alone: who knows it can subtract the noise, and the guarantee is void.

    Raises:
        UserError: The table, the schema or an option cannot be used.
        BudgetExceededError: The scope cannot pay; nothing was drawn.
    """
    if out.suffix != ".csv":
        raise UserError("rows are written as .csv: give such a name", about=f"--out {out}")
    attributes, private = Attributes(table, columns, schema, values_are_public, unit, unit_column), None
    before = _found(ledger, out, scope)
    if before.terms is not None and before.is_finished:
        known, num_units = attributes.known(before.terms["columns"]), int(before.terms["num_units"])
    else:
        known, private = attributes.read()
        num_units = private.num_units
    delta = default_delta(num_units) if delta is None else delta
    mu = mu_of(epsilon, delta)
    if (note := note_on_delta(delta, num_units, unit or "utterance")) is not None:
        print(f"warning: {note}")
    spec = PrivacyArguments(target_epsilon or epsilon, delta).plan_releases(num_units, unit or "utterance", 1 / mu)
    terms: dict[str, Any] = {
        "method": method,
        "unit": spec.budget.unit,
        "unit_column": unit_column,
        "num_units": num_units,
    }
    terms |= {"noise_multiplier": spec.noise_multiplier, "columns": known.as_dict()}
    terms |= {"made": of} if (of := known.made_of()) else {}
    try_folder(out.parent)
    lock = hold(out.parent)  # two that go on with the same releases would draw the next one twice
    try:
        own, site = out.parent / FILE_NAME, os.environ.get(SITE)
        if ledger is None and site and not own.exists():
            join(own, Path(site))
        found = _found(ledger, out, scope)
        book = found.ledger
        if private is None:
            found.pay(terms)
            model = fitted_again(found.terms or {}, found.records)
        else:
            fingerprint = content_digest(expand_path(table))
            book.open(
                scope=scope,
                stage=out.name,
                spec=spec,
                planned_steps=1,
                data_fingerprint=fingerprint,
                kind=NoisyMarginals.kind,
            )
            if noise_seed is not None:
                text = f"the noise of {out.name} was drawn from a fixed seed: whoever reads it can subtract the noise"
                book.caveat(scope, text, voids=True)
            found.pay(terms)
            model = found.fit(private, 1 / mu, method, noise_seed)
        found.write(releases_of(out))
        drawn = model.draw(num_rows, seed)
        write_rows(out, known, drawn, found)
        values = "of the table" if schema is None else schema.name
        made = {"num_rows": num_rows, "seed": seed, "method": method, "columns": known.as_dict()}
        card = write_card(out, made, values, book, found.mechanism)
    finally:
        lock.release()
    if private is None:
        print(f"{book.path}: drawn by the releases there; {table} was not opened")
    print(f"{out}: {num_rows} rows of {len(known.columns)} columns. {card['statement']}")
    for place, column in enumerate(known.columns):
        if (drawn[:, place] == len(column.values) - 1).mean() > 0.5 and len(column.values) > 1:
            print(f"warning: most rows have {OTHER!r} as {column.name!r}: its public values miss what is common")


def _found(named: Path | None, out: Path, scope: str) -> Marginals:
    """What the ledger that pays holds of this table."""
    place = out.parent / FILE_NAME if named is None else named / FILE_NAME if named.is_dir() else named
    ledger = Ledger(place)
    return Marginals(ledger, ledger.mechanism_id(scope, out.name))


def write_rows(path: Path, schema: Schema, codes: Whole, paid: Marginals | None = None) -> None:
    """Write rows as a table of words, the columns in the first line; the ledger that paid for them names the file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(schema.names)
    writer.writerows([column.values[code] for column, code in zip(schema.columns, row, strict=True)] for row in codes)
    content = text.getvalue().encode()
    if paid is not None:
        paid.ledger.release(paid.mechanism, sha256=hashlib.sha256(content).hexdigest())
    with whole_file(path, "give another --out") as file:
        file.write(content)
