"""Released rows of attributes for the first texts of an evolution: the step before its votes, in their scope."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse.typing import PositiveInt

from commands.privacy.attributes import STAGE, table_of
from commands.privacy.marginals import Marginals, terms_of
from commands.privacy.rows_card import draw_rows, write_rows
from commands.privacy.stage_release import read_private
from commands.run_folder.ownership import hold, ledger_of_run
from datamodules.reading.columns import check_schema
from datamodules.training_rows import TrainingRows
from doppel.files import try_folder
from doppel.privacy.ledger import Ledger
from doppel.privacy.release import declare
from doppel.privacy.spec import PrivacyArguments
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
    """Write DP rows of attributes like those of the private requests, for the first texts of an evolution.

    Formal guarantees:
        The attributes of a request are a function of it and of the public schema. Marginals of their table are measured
        by AIM as one Gaussian release (claim 38 of ``docs/claims.md``), whose noise follows from
        ``privacy.histogram_share``; it is on file in the scope of the votes before anything is drawn, and the votes,
        which come later, are calibrated beside it. The same command again measures nothing, spends nothing, and reads
        no private row; another file in the place of the one that was measured is refused.

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
        private_rows = TrainingRows.from_config(given)
        unit, book = str(private_rows.unit), Ledger(ledger_of_run(out.parent, privacy.ledger_path))
        found, private = Marginals(book, book.mechanism_id(privacy.scope, STAGE)), None
        if found.is_finished:
            found.refuse_another(private_rows.path, lambda: private_rows.fingerprint)
            num_units = int(found.terms["num_units"])
        else:
            private = table_of(read_private(given, needs_label=True), codes)
            num_units = private.num_units
        plan = privacy.plan_release(NoisyMarginals.kind, num_units, unit, privacy.histogram_noise(num_units))
        if private is not None:
            terms = (privacy.seed, privacy.total_epsilon, private_rows.data_file)
            declare(book, privacy.scope, STAGE, plan, private_rows.fingerprint, *terms)
        model = found.fit(terms_of(codes.schema, unit, num_units, plan.noise_multiplier), private, privacy.seed)
        draw_rows(out, model, codes.schema, found, num_rows, seed, Path(schema).name)
