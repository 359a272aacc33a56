"""Private rows of attributes, like those of a private table."""

from __future__ import annotations

from pathlib import Path

from jsonargparse.typing import PositiveFloat, PositiveInt

from commands.privacy.marginals import Marginals, Method, terms_of
from commands.privacy.rows_card import draw_rows
from commands.run_folder.ownership import hold, ledger_of_run
from datamodules.reading.attributes import Attributes
from datamodules.reading.example import Unit
from datamodules.reading.files import content_digest, expand_path
from datamodules.reading.units import NameRule
from doppel.console.ledger import FILE_NAME
from doppel.errors import UserError
from doppel.files import try_folder
from doppel.privacy.accounting import mu_of
from doppel.privacy.ledger import Ledger
from doppel.privacy.release import declare
from doppel.privacy.spec import PrivacyArguments, default_delta, note_on_delta
from doppel.tables.releases import NoisyMarginals


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
    unit_names: NameRule | None = None,
    ledger: Path | None = None,
    scope: str = "metadata",
    target_epsilon: PositiveFloat | None = None,
    seed: int = 1,
    noise_seed: int | None = None,
) -> None:
    """Write DP rows of attributes, distributed like those of a private table.

    A row describes one request, such as its domain, length and rating; the rows that are written belong to nobody. They
    keep how often values occur, alone and together, up to the noise that ε asks for, and can become prompts. The values
    of each column must be public: --schema lists them (`stars: [1, 2, 3]`) or bounds between bins of numbers (`words:
    {bins: [5, 10, 20]}`); all others are read as "other". The ledger is written before anything is drawn, and refuses
    what its budget cannot pay. Beside the rows lie the noisy counts (.releases.jsonl) and a card (.card.json). Given
    again, also with another --num-rows or --seed, the command draws from the same counts at no additional privacy cost
    and reads no row of the table, which may be gone; another table there is refused.

    Example:
        python cli.py metadata private.csv --schema values.yaml --epsilon 1 --num-rows 5000 --out attributes/rows.csv

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
        unit_names: Whether names that differ in spelling alone (case, width, the form of a number) are one unit
            (folded) or not (exact); a table with such names is refused until this is given.
        ledger: Ledger, or run folder with one, that pays; if left out, the one that DOPPEL_LEDGER names, or
            ledger.jsonl beside the rows.
        scope: What the ledger calls all that is released together; a training may be in the same one.
        target_epsilon: What the scope may spend in all, such as the ε of a run whose rows these are; epsilon if left
            out, and then it can pay for nothing more.
        seed: Public seed of the rows.
        noise_seed: For tests alone: who knows it can subtract the noise, and the guarantee is void.

    Raises:
        UserError: The table, the schema or an option cannot be used.
        BudgetExceededError: The scope cannot pay; nothing was drawn.
    """
    if out.suffix != ".csv":
        raise UserError("rows are written as .csv: give such a name", about=f"--out {out}")
    attributes = Attributes(table, columns, schema, values_are_public, unit, unit_column, unit_names)
    try_folder(out.parent)
    with hold(out.parent):  # two that go on with the same releases would draw the next one twice
        own = ledger_of_run(out, None) if ledger is None else ledger / FILE_NAME if ledger.is_dir() else ledger
        book = Ledger(own)
        found, private = Marginals(book, book.mechanism_id(scope, out.name)), None
        path = expand_path(table)
        if found.is_finished:
            found.refuse_another(path, lambda: content_digest(path))
            known, num_units = attributes.known(found.terms["columns"]), int(found.terms["num_units"])
        else:
            known, private = attributes.read()
            num_units = private.num_units
        protected, delta = unit or "utterance", default_delta(num_units) if delta is None else delta
        if (note := note_on_delta(delta, num_units, protected)) is not None:
            print(f"warning: {note}")
        sigma = 1 / mu_of(epsilon, delta)
        named = {"unit_column": unit_column, "unit_names": unit_names}
        terms = terms_of(known, protected, num_units, sigma, method=method, **named)
        if private is not None:
            privacy = PrivacyArguments(target_epsilon or epsilon, delta)
            plan = privacy.plan_release(NoisyMarginals.kind, num_units, protected, sigma)
            digest = content_digest(path)
            declare(book, scope, out.name, plan, digest, noise_seed, data_file=digest)
        model = found.fit(terms, private, noise_seed)
        if private is None:
            print(f"{book.path}: drawn by the releases there; no row of {table} was read")
        draw_rows(out, model, known, found, num_rows, seed, "of the table" if schema is None else schema.name)
