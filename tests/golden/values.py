"""Goldens of the embedded grammar and of the accountants, and of the machine that made the others."""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import re
from pathlib import Path

import torch

from tests.golden import entrances

_DELTA = 8e-6
#: Units N, batch B and epochs T of the published tables; ε is 3, 8 and 16, and δ 8e-6.
_PUBLISHED = [
    (133_584, 2048, 10),
    (133_584, 2048, 7),
    (133_584, 1024, 10),
    (121_652, 1024, 10),
    (120_226, 1024, 10),
]


def noise_multipliers() -> dict[str, float]:
    """σ of the published settings, at one of them by every accountant and at every ε; ε of two mechanisms."""
    found = {}
    for (units, batch, epochs), accountant, epsilon in itertools.product(_PUBLISHED, ("rdp", "pld", "prv"), (3, 8, 16)):
        if (units, batch, epochs) == _PUBLISHED[0] or (accountant, epsilon) == ("pld", 3):  # all take long
            sigma = entrances.noise_multiplier(units, batch, epochs, _DELTA, epsilon, accountant)
            found[f"σ: N={units} B={batch} T={epochs} ε={epsilon} {accountant}"] = round(sigma, 6)
    for accountant in ("rdp", "pld", "prv"):
        epsilon = entrances.epsilon_of(*_PUBLISHED[0], _DELTA, 0.95, accountant)
        found[f"ε: N=133584 B=2048 T=10 σ=0.95 beside a histogram, {accountant}"] = round(epsilon, 6)
    return found


def grammar() -> dict[str, str]:
    """Hashes of 5,000 generated turns."""
    found = {}
    for seed, skew in ((1, 1.0), (7, 1.5)):
        turns = entrances.generated(5000, seed, skew)
        text = "".join(json.dumps(turn, ensure_ascii=False) + "\n" for turn in turns)
        found[f"seed={seed} skew={skew}"] = hashlib.sha256(text.encode()).hexdigest()
    return found


def machine() -> dict[str, str]:
    """What decides the last bits of floats: the processor, which kernels PyTorch takes on it, and its version."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = ("vendor_id", "cpu family", "model", "model name")
    found = {name: re.search(rf"^{name}\s*: (.*)$", info, re.M) for name in names}
    cpu = ", ".join(match[1].strip() for match in found.values() if match) or platform.processor()
    return {"cpu": cpu, "kernels": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}
