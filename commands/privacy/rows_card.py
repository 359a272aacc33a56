"""Private rows of attributes, and their card: what holds for them, and whether it still does."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.privacy.coverage import check_budget
from commands.privacy.marginals import Marginals
from doppel.console.ledger import FILE_NAME, find
from doppel.errors import UserError
from doppel.files import sha256_of, whole_file, write_json
from doppel.privacy.ledger import Ledger
from doppel.run_folder import run_of
from doppel.tables.marginals import Whole
from doppel.tables.schema import OTHER, Schema

if TYPE_CHECKING:
    from doppel.tables.mixture import Mixture


def card_of(rows: Path) -> Path:
    """Return the path of the card of rows."""
    return rows.with_name(f"{rows.name}.card.json")


def draw_rows(
    rows: Path, model: Mixture, schema: Schema, paid: Marginals, num_rows: int, seed: int, values: str
) -> None:
    """Write rows that are drawn by releases, and beside them the releases and a card: post-processing.

    In the card, ``epsilon`` is that of this release alone, ``scope_epsilon`` what everything in its budget has cost so
    far; both are None where the guarantee is void. ``target_epsilon`` is what holds.

    Args:
        rows: The file.
        model: What draws them.
        schema: Their columns.
        paid: What was released.
        num_rows: Rows to write.
        seed: Public seed of the rows.
        values: Where the values of the columns come from, in words.
    """
    paid.write(rows.with_name(f"{rows.name}.releases.jsonl"))
    drawn = model.draw(num_rows, seed)
    write_rows(rows, schema, drawn, paid)
    summary = paid.ledger.summary()
    own = next(m for m in summary["mechanisms"] if m["id"] == paid.mechanism)
    scope = summary["scopes"][own["scope"]]
    card = {
        "private": not scope["voids"],
        "rows": rows.name,
        "sha256": sha256_of(rows),
        "num_rows": num_rows,
        "seed": seed,
        "method": paid.terms.get("method", "aim"),
        "columns": schema.as_dict(),
        "mechanism": paid.mechanism,
        **{name: own[name] for name in ("epsilon", "kind", "scope", "unit", "num_units", "noise_multiplier")},
        **{name: scope[name] for name in ("delta", "target_epsilon", "accountant", "protects")},
        "scope_epsilon": scope["epsilon"],
        "statement": _statement(summary, own["scope"]),
        "not_covered": [*scope["voids"], *(text for text in scope["caveats"] if text not in scope["voids"])],
        "not_checked": [
            "that all rows of one person are one unit of the private table",
            f"that the values of the columns ({values}) are public",
        ],
    }
    write_json(card_of(rows), card)
    print(f"{rows}: {num_rows} rows of {len(schema.columns)} columns. {card['statement']}")
    for place, column in enumerate(schema.columns):
        if (drawn[:, place] == len(column.values) - 1).mean() > 0.5 and len(column.values) > 1:
            print(f"warning: most rows have {OTHER!r} as {column.name!r}: its public values miss what is common")


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


def check_rows(rows: Path, paid_by: Path | None = None) -> tuple[str, list[str]]:
    """Check whether the card of rows still holds.

    The ledger that paid, whose chain must be whole, must name them among its releases; ε is computed anew with two
    accountants.

    Args:
        rows: The rows.
        paid_by: The ledger, or the run folder that has it; the one beside the rows if left out.

    Returns:
        What the ledger states, and why the card does not hold, in words; nothing where it does.

    Raises:
        UserError: There is no card or no ledger.
    """
    try:
        mechanism = str(json.loads(card_of(rows).read_text(encoding="utf-8"))["mechanism"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError("has no card: only rows that `metadata` has drawn are verified", about=rows) from None
    ledger = Ledger(run_of(rows) / FILE_NAME if paid_by is None else find(paid_by))
    if not ledger.exists():
        raise UserError(
            f"there is no {FILE_NAME} beside the rows: name the one that they were charged to, or its run folder, by "
            "--ledger",
            about=rows,
        )
    summary = ledger.summary()
    own = next((m for m in summary["mechanisms"] if m["id"] == mechanism), None)
    if own is None or not own["done_steps"]:
        return summary["statement"], [f"the ledger has no step of {mechanism}"]
    reasons = check_budget(summary, own["scope"])[1]
    if not rows.is_file() or ledger.unpaid_reason(sha256_of(rows), own["scope"]) is not None:
        reasons.append(f"{rows.name} is not as `metadata` has written it")
    return _statement(summary, own["scope"]), reasons


def refuse_unpaid_rows(rows: Path, ledger: Ledger, scope: str) -> None:
    """Refuse rows that a budget has not paid for, such as a private table.

    Formal guarantees:
        Rows are taken only if the ledger names them, by their SHA-256, among the releases of this very budget. So
        whatever is made of them is covered by its ε.

    Raises:
        UserError: They are others.
    """
    if not rows.is_file() or ledger.unpaid_reason(sha256_of(rows), scope) is not None:
        raise UserError(
            f"they are not rows as `metadata` has written them with --scope {scope} and --ledger {ledger.path}: no ε "
            "of this run covers others",
            about=rows,
        )


def _statement(summary: Mapping[str, Any], name: str) -> str:
    """What a budget promises and has spent, and what the ledger and all runs on the same data do."""
    scope = summary["scopes"][name]
    if scope["voids"]:
        return f"The budget {name} has no ε, NOT PRIVATE: {'; '.join(scope['voids'])}."
    holds = f"(ε = {scope['target_epsilon']:.4g}, δ = {scope['delta']:.3g})-differentially private"
    spent = f"spent so far: ε = {scope['epsilon']:.4g}"
    if summary["epsilon"] is not None and summary["epsilon"] > 1.001 * scope["epsilon"]:
        spent += f", all of the ledger ε = {summary['epsilon']:.4g}"
    told = f"All that the budget {name} releases is {holds} under adding or removing {scope['protects']}; {spent}."
    everything = summary["everything"]
    return f"{told} {everything['statement']}" if everything["num_runs"] > 1 else told
