"""What a run's report and ledger say of a system's privacy, and whether they agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Starts the caveats of a system whose ε is void.
VOID = "NOT PRIVATE"
#: Parsers of an adaptation that no private training made.
OTHER_SYSTEMS = ("none", "full")
_TOLERANCE = 1e-6  # of ε: rounding in JSON and in the accountant's search


def scope_of(privacy: dict[str, Any] | None, system: str) -> dict[str, Any] | None:
    """The budget that a system was made under; a baseline parser stands beside the private systems of its run."""
    if privacy is None:
        return None
    scopes: dict[str, Any] = privacy["systems"]
    if system in OTHER_SYSTEMS and system not in scopes and scopes:
        return scopes.get("two_stage") or next(iter(scopes.values()))
    return scopes.get(system)


def check_privacy(
    system: str,
    scope: dict[str, Any] | None,
    privacy: dict[str, Any] | None,
    ledger: dict[str, Any] | None,
    fingerprint: str | None,
) -> tuple[dict[str, Any], str | None]:
    """ε, δ, unit and accountant of a system, and why they cannot be believed."""
    told: dict[str, Any] = {"epsilon": math.inf, "delta": None, "unit": None, "accountant": None, "caveats": ""}
    recorded = (ledger or {"scopes": {}})["scopes"].get(system)
    if privacy is None:
        if recorded and recorded["steps_done"]:
            return told, "contradiction: the report says ε = ∞, but the ledger holds private steps of this system"
        return told, None
    if scope is None:
        told["epsilon"] = None
        return told, "the run is private, but the report has no budget for this system"
    try:
        # a scope that also released something without noise has no ε: what its other mechanisms spent is checked then
        spent = float(scope["epsilon_of_mechanisms"] if scope["epsilon"] is None else scope["epsilon"])
        target = float(scope["target_epsilon"])
        told |= {"epsilon": target, "delta": float(scope["delta"]), "unit": scope["unit"]}
        done, planned = int(scope["steps_done"]), int(scope["steps_planned"])
    except (KeyError, TypeError, ValueError) as error:
        return told | {"epsilon": None}, f"the report's budget of this system is incomplete ({error})"
    told["accountant"] = scope.get("accountant")
    told["caveats"] = "; ".join(scope.get("caveats") or ())
    if scope["epsilon"] is None:
        told["caveats"] = f"{VOID}: {told['caveats']}"
    if spent > target * (1 + _TOLERANCE):
        return told, f"contradiction: the report's ε, {spent:.4g}, is above its target {target:g}"
    if done < planned:
        return told, f"half-done: {done} of {planned} planned steps are done"
    if system in OTHER_SYSTEMS:
        return told, None
    if ledger is not None and recorded is None:
        return told, "the ledger disagrees with the report: it has no budget for this system"
    for name in ("target_epsilon", "delta", "unit", "accountant", "noise_multiplier", "steps_done", "steps_planned"):
        if recorded and name in scope and not _same(recorded[name], scope[name]):
            return told, f"the ledger disagrees with the report: {name} is {recorded[name]}, not {scope[name]}"
    if recorded and (recorded["epsilon"] is None) != (scope["epsilon"] is None):
        return told, "the ledger disagrees with the report on whether the system released something without noise"
    if recorded and recorded["epsilon"] is not None and recorded["epsilon"] > spent * (1 + 1e-3):
        return told, f"the ledger disagrees with the report: ε is {recorded['epsilon']:.4g}, not {spent:.4g}"
    prints = {m["data_fingerprint"] for m in (ledger or {"mechanisms": []})["mechanisms"]}
    if prints and fingerprint is not None and fingerprint not in prints:
        return told, "the ledger disagrees with the report: the data's fingerprint is another one"
    return told, None


def training_of(
    system: str,
    scope: dict[str, Any] | None,
    ledger: dict[str, Any] | None,
    settings: Mapping[str, str],
    has_own_data: bool,
) -> str:
    """Settings of the training as far as the run folder tells, so that sweeps are not taken for seeds."""
    parts = []
    if scope:
        sigma = scope.get("noise_multiplier")
        parts.append(f"σ {sigma:.4g}" if isinstance(sigma, float) else f"σ {sigma}")
        parts.append(f"{scope.get('steps_planned')} steps")
    for m in ledger["mechanisms"] if ledger else ():
        if m["scope"] == system:
            parts.append(f"{m['stage']}: C {m['max_grad_norm']:g}, batch {m['batch_size']}, {m['planned_steps']} steps")
            parts += [f"data {str(m['data_fingerprint'])[:8]}"] * has_own_data
    parts += [f"{name} {settings[name]}" for name in ("EPOCHS", "FIT_ARGS") if settings.get(name)]
    return "; ".join(parts)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)
