"""The card of private rows of attributes: what holds for them, and whether it still does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands.privacy.kept_releases import releases_of
from doppel.console.ledger import FILE_NAME
from doppel.errors import UserError
from doppel.files import write_json
from doppel.privacy.accounting import CalibrationError, Mechanism, cross_check
from doppel.privacy.ledger import Ledger

#: What the card says of the mechanism, as the ledger has it.
_OF_LEDGER = ("kind", "scope", "unit", "num_units", "delta", "noise_multiplier", "target_epsilon", "accountant")


def card_of(rows: Path) -> Path:
    """Where the card of rows lies."""
    return rows.with_name(f"{rows.name}.card.json")


def write_card(rows: Path, made: Mapping[str, Any], values: str, ledger: Ledger, mechanism: str) -> dict[str, Any]:
    """Write the card of rows that were just drawn.

    Args:
        rows: The file.
        made: How they were drawn, ready for JSON.
        values: Where the values of the columns come from, in words.
        ledger: What has paid.
        mechanism: Its id there.

    Returns:
        The card. ``epsilon`` is that of this release alone, ``scope`` what everything in its scope costs together;
        both are None where the guarantee is void.
    """
    summary = ledger.summary()
    own = next(m for m in summary["mechanisms"] if m["id"] == mechanism)
    scope = summary["scopes"][own["scope"]]
    card = {
        "private": not scope["voids"],
        "rows": rows.name,
        "sha256": _digest(rows),
        **made,
        "epsilon": own["epsilon"],
        "mechanism": mechanism,
        **{name: own[name] for name in _OF_LEDGER},
        "scope_epsilon": scope["epsilon"],
        "protects": scope["protects"],
        "ledger": ledger.anchor,
        "statement": _statement(summary, own["scope"]),
        "not_covered": [*scope["voids"], *(text for text in scope["caveats"] if text not in scope["voids"])],
        "not_checked": [
            "that all rows of one person are one unit of the private table",
            f"that the values of the columns ({values}) are public",
            *ledger.not_checked,
        ],
    }
    write_json(card_of(rows), card)
    return card


def check_rows(rows: Path) -> tuple[str, list[str]]:
    """Whether the card of rows still holds.

    Looks at the rows, at the releases that they were drawn by, and at the ledger beside them, whose chain must be
    whole; ε is computed anew with two accountants. That the rows were drawn by the releases, nothing can tell.

    Returns:
        What the ledger states, and what prevents the signature, in words; nothing where the card holds.

    Raises:
        UserError: There is no card or no ledger.
    """
    ledger = Ledger(rows.parent / FILE_NAME)
    try:
        card = json.loads(card_of(rows).read_text(encoding="utf-8"))
        mechanism = str(card["mechanism"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError("has no card: only rows that `metadata` has drawn are signed off", about=rows) from None
    if not ledger.exists():
        raise UserError(
            f"there is no {FILE_NAME} beside the rows: verify them beside the one that has paid", about=rows
        )
    summary = ledger.summary()
    own = next((m for m in summary["mechanisms"] if m["id"] == mechanism), None)
    if own is None or not own["done_steps"]:
        return summary["statement"], [f"the ledger has paid for no {mechanism}"]
    statement = _statement(summary, own["scope"])
    prevents = list(summary["scopes"][own["scope"]]["voids"])
    if not rows.is_file() or _digest(rows) != card["sha256"]:
        prevents.append(f"{rows.name} is not as `metadata` has written it")
    noted = ledger.noted(mechanism, own["done_steps"])
    if not releases_of(rows).is_file() or _digest(releases_of(rows)) not in noted:
        prevents.append(f"{releases_of(rows).name} does not hold the releases that the ledger says were drawn")
    differ = [name for name in _OF_LEDGER if card.get(name) != own[name]]
    if differ:
        prevents.append(f"the card says other {', '.join(differ)} than the ledger")
    spent = [
        Mechanism(m["sample_rate"], m["noise_multiplier"], m["done_steps"])
        for m in summary["mechanisms"]
        if m["scope"] == own["scope"]
    ]
    try:
        found, contradiction = cross_check(spent, own["delta"], own["accountant"])
    except CalibrationError as error:
        return statement, [*prevents, str(error)]
    prevents += [contradiction] if contradiction else []
    if found[own["accountant"]] > own["target_epsilon"] * (1 + 1e-6):
        prevents.append(f"ε is {found[own['accountant']]:.4g}, above the target {own['target_epsilon']:g}")
    return statement, [*prevents, *filter(None, [ledger.outrun])]


def refuse_unpaid_rows(rows: Path, ledger: Ledger, scope: str) -> None:
    """Refuse rows that a scope has not paid for, such as a private table.

    Formal guarantees:
        Rows are taken only with their card, as ``metadata`` has written both, and if the ledger has noted their
        releases in this very scope. So whatever is made of them is covered by the ε of the scope.

    Raises:
        UserError: They are others.
    """
    try:
        card = json.loads(card_of(rows).read_text(encoding="utf-8"))
        is_own = card["sha256"] == _digest(rows) and _digest(releases_of(rows)) in ledger.noted_in(scope)
    except (OSError, ValueError, KeyError, TypeError):
        is_own = False
    if not is_own:
        raise UserError(
            f"they are not rows as `metadata` has written them with --scope {scope} and --ledger {ledger.path}: no ε "
            "of this run covers others",
            about=rows,
        )


def _statement(summary: Mapping[str, Any], name: str) -> str:
    """What a scope, and the ledger, has spent by now."""
    scope = summary["scopes"][name]
    spent = f"ε = {scope['epsilon_of_mechanisms']:.4g} at δ = {scope['delta']:.3g}"
    if scope["voids"]:
        spent = f"no ε, NOT PRIVATE: {'; '.join(scope['voids'])}"
    elif summary["epsilon"] is not None and summary["epsilon"] > 1.001 * scope["epsilon"]:
        spent += f", all of the ledger ε = {summary['epsilon']:.4g}"
    return f"The scope {name} has spent {spent}, under adding or removing {scope['protects']}."


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
