"""What a run's report and ledger say of a system's privacy, and whether they agree."""

from __future__ import annotations

import math
from typing import Any

#: Starts the caveats of a system whose ε is void.
VOID = "NOT PRIVATE"
#: Parsers of an adaptation that no private training made.
BASELINES = ("none", "full")
_TOLERANCE = 1e-6  # of ε: rounding in JSON and in the accountant's search
_SAME = ("target_epsilon", "delta", "unit", "accountant", "noise_multiplier", "steps_done", "steps_planned")


def scope_of(privacy: dict[str, Any] | None, system: str) -> dict[str, Any] | None:
    """The budget that a system was made under; a baseline parser stands beside the private systems of its run."""
    scopes: dict[str, Any] = privacy["systems"] if privacy else {}
    if system in BASELINES and system not in scopes:
        return scopes.get("two_stage") or next(iter(scopes.values()), None)
    return scopes.get(system)


def check_privacy(
    system: str,
    privacy: dict[str, Any] | None,
    ledger: dict[str, Any] | None,
    fingerprint: str | None,
) -> tuple[dict[str, Any], str | None]:
    """ε, δ, unit and accountant of a system, and why they cannot be believed.

    Args:
        system: The scope.
        privacy: What the report says; None: the run is not private.
        ledger: Summary of the ledger; None: there is none beside the report.
        fingerprint: Of the private data, if the ledger is to name the same.
    """
    told: dict[str, Any] = {"epsilon": math.inf, "delta": None, "unit": None, "accountant": None, "caveats": ""}
    recorded = (ledger or {"scopes": {}})["scopes"].get(system)
    if privacy is None:
        if recorded and recorded["steps_done"]:
            return told, "contradiction: the report says ε = ∞, but the ledger holds private steps of this system"
        return told, None
    told["epsilon"] = None
    scope = scope_of(privacy, system)
    if scope is None:
        return told, "the run is private, but the report has no budget for this system"
    try:
        # a scope that also released something without noise has no ε: what its other mechanisms spent is checked then
        spent = float(scope["epsilon_of_mechanisms"] if scope["epsilon"] is None else scope["epsilon"])
        target, delta, unit = float(scope["target_epsilon"]), float(scope["delta"]), scope["unit"]
        done, planned = int(scope["steps_done"]), int(scope["steps_planned"])
    except (KeyError, TypeError, ValueError) as error:
        return told, f"the report's budget of this system is incomplete ({error})"
    void = "" if scope["epsilon"] is not None else f"{VOID}: "
    told |= {"epsilon": target, "delta": delta, "unit": unit, "accountant": scope.get("accountant")}
    told["caveats"] = void + "; ".join(scope.get("caveats") or ())
    if spent > target * (1 + _TOLERANCE):
        return told, f"contradiction: the report's ε, {spent:.4g}, is above its target {target:g}"
    if done < planned:
        return told, f"half-done: {done} of {planned} planned steps are done"
    if ledger is None or system in BASELINES:
        return told, None
    disagrees = _disagreement(scope, recorded, spent)
    prints = {mechanism["data_fingerprint"] for mechanism in ledger["mechanisms"]}
    if not disagrees and prints and fingerprint is not None and fingerprint not in prints:
        disagrees = ": the data's fingerprint is another one"
    return told, f"the ledger disagrees with the report{disagrees}" if disagrees else None


def _disagreement(scope: dict[str, Any], recorded: dict[str, Any] | None, spent: float) -> str:
    if recorded is None:
        return ": it has no budget for this system"
    for name in _SAME:
        if name in scope and not _equal(recorded[name], scope[name]):
            return f": {name} is {recorded[name]}, not {scope[name]}"
    if (recorded["epsilon"] is None) != (scope["epsilon"] is None):
        return " on whether the system released something without noise"
    if recorded["epsilon"] is not None and recorded["epsilon"] > spent * (1 + 1e-3):
        return f": ε is {recorded['epsilon']:.4g}, not {spent:.4g}"
    return ""


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)
