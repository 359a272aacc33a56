"""Plans whose noise is written down: modules make them as they are imported, and to calibrate them takes seconds."""

from __future__ import annotations

from typing import Any
from unittest import mock

from doppel.privacy import plan as plans
from doppel.privacy import spec

#: Name → noise multiplier, as a calibration finds it (a slow test of test_spec.py), and what is planned.
KNOWN: dict[str, tuple[float, tuple[Any, ...], dict[str, Any]]] = {
    "one epoch": (0.6829907458017427, (2000, 100, 1, 6.0), {"delta": 1e-5, "accountant": "rdp"}),
    "two epochs": (0.7376760252061716, (2000, 100, 2, 6.0), {"delta": 1e-5, "accountant": "rdp"}),
    "stages of 20 and 80 steps": (
        0.7851136306175936,
        (2000, 100, [1, 4], 6.0),
        {"delta": 1e-5, "max_grad_norm": 0.1},
    ),
    "stages of 10 and 40 steps": (
        1.4795671712401288,
        (2000, 200, [1, 4], 3.0),
        {"delta": 1e-6, "max_grad_norm": 1.0},
    ),
    "200 canaries": (8.508177236766166, (200, 50, 20, 1.0), {"delta": 1e-5, "max_grad_norm": 1e-3}),
    "2,000 rows": (5.223476235741739, (2000, 1000, 10, 2.0), {"delta": 1e-6, "max_grad_norm": 0.1}),
}


def known_plan(name: str, **more: Any) -> spec.DPPlan:
    """One of them, with more that noise does not depend on."""
    noise_multiplier, given, named = KNOWN[name]
    with mock.patch.object(plans, "calibrate", lambda *_: noise_multiplier):
        return spec.plan(*given, **named, **more)
