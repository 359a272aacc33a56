"""Released rows of attributes for the first texts of an evolution: the step before its votes, in their scope."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse.typing import PositiveInt

from commands.privacy.attributes import STAGE, terms_of
from commands.privacy.ballots import read_private
from commands.privacy.marginals import Marginals, fitted_again, releases_of
from commands.privacy.metadata import write_rows
from commands.privacy.rows_card import write_card
from commands.runs.run_folder import hold, ledger_of_run
from datamodules.attribute_codes import check_schema
from datamodules.columns import Columns
from datamodules.selection import Selection
from datamodules.sources import content_digest, expand_path
from doppel.files import try_folder
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import PrivacyArguments
from doppel.tables.marginals import Table
from doppel.tables.releases import NoisyMarginals


def rows(
    out: Path,
    *,
    schema: str,
    num_rows: PositiveInt,
    data: dict[str, Any],
    privacy: PrivacyArguments | None = None,
    seed: int = 1,
) -> None:
    """Rows of attributes like those of the private requests, for the first texts of an evolution.

    Formal guarantees:
        The attributes of a request are a function of it and of the public schema. Marginals of their table are measured
        by AIM as one Gaussian release (claim 37 of ``docs/privacy.md``), whose noise follows from
        ``privacy.histogram_share``; it is on file in the scope of the votes before anything is drawn, and the votes,
        which come later, are calibrated beside it. The same command again measures nothing, spends nothing, and opens
        no private file.

    Args:
        out: File to write, RUN/evolution/rows.csv; releases and card lie beside it.
        schema: YAML file of attributes with their public values.
        num_rows: Rows to write.
        data: Arguments of the data module, as JSON: train_path, unit, columns.
        privacy: Budget of the scope with histogram_share, as JSON; left out, rows are those of the table: NOT PRIVATE.
        seed: Public seed of the rows.

    Raises:
        UserError: An input cannot be used.
        BudgetExceededError: The scope cannot pay; nothing was drawn.
    """
    try_folder(out.parent)
    with hold(out.parent):
        given = {**data, "columns": {**(data.get("columns") or {}), "attributes": schema}}
        codes = check_schema(schema)
        if privacy is None:
            drawn = [codes.read(turn.label or "") for turn in read_private(given, needs_label=True)]
            write_rows(out, codes.schema, np.array(random.Random(seed).choices(drawn, k=num_rows)))
            print(f"{out}: {num_rows} rows of {len(codes.names)} attributes (exact: NOT PRIVATE)")
            return
        unit, book = str(data.get("unit") or "utterance"), Ledger(ledger_of_run(out.parent, privacy.ledger_path))
        mechanism = book.mechanism_id(privacy.scope, STAGE)
        found = Marginals(book, mechanism)
        if found.terms is not None and found.is_finished:
            num_units = int(found.terms["num_units"])
            found.pay(terms_of(codes, unit, num_units, privacy.plan_histogram(num_units, unit).noise_multiplier))
            model = fitted_again(found.terms, found.records)
        else:
            turns = read_private(given, needs_label=True)
            units = [turn.unit for turn in turns]
            spec = privacy.plan_histogram(len(set(units)), unit)
            table = Table.of_units([codes.read(turn.label or "") for turn in turns], units, codes.schema.sizes)
            fingerprint = content_digest(
                expand_path(data["train_path"]), Selection.from_config(data), Columns.from_config(given)
            )
            book.open(
                scope=privacy.scope,
                stage=STAGE,
                spec=spec,
                planned_steps=1,
                data_fingerprint=fingerprint,
                kind=NoisyMarginals.kind,
            )
            if privacy.seed is not None:
                text = "the noise of the rows was drawn from a fixed seed, and whoever reads it can subtract the noise"
                book.caveat(privacy.scope, text, voids=True)
            found.pay(terms_of(codes, unit, spec.num_units, spec.noise_multiplier))
            model = found.fit(table, spec.noise_multiplier, "aim", privacy.seed)
        found.write(releases_of(out))
        write_rows(out, codes.schema, np.array(model.draw(num_rows, seed).tolist()), found)
        made = {"num_rows": num_rows, "seed": seed, "method": "aim", "columns": codes.schema.as_dict()}
        card = write_card(out, made, Path(schema).name, book, mechanism)
    print(f"{out}: {num_rows} rows of {len(codes.names)} attributes. {card['statement']}")
