"""The guarantee, from the coins of a step to the record of what was spent.

A map; `docs/claims.md` says for each claim which test attacks it, `docs/privacy.md` what is not covered.

- `private_step`: the mechanism: clip, sum, add noise, divide by the public B.
- `clipping`: Σ clip(gᵤ, C) of the units of a micro-batch, from one backward pass.
- `check(model)`: which rule clips each layer of a model, at what price, or what must stand in its place.
- `secret`: 256 bits, and the cryptographic streams that everything random is drawn from.
- `noise`: N(0, (σC)²).
- `noise_kernel`: the same in one kernel of a GPU.
- `banded_noise`: noise of which later steps take a part back.
- `sampling`: the Poisson sample of a step.
- `spec`: what a user asks for.
- `plan`: the budget, the plans that keep it, of trainings and of releases, and their σ.
- `bands`: with which coefficients it does, over how many steps.
- `optimizer`: Adam that knows its noise.
- `accounting`: what a mechanism costs, ε of mechanisms composed, and σ for an ε.
- `ledger`: what was spent and released, written before anybody reads it.
- `session`: one training and its ledger.
- `checkpoint`: what a checkpoint says of the privacy of its weights.
- `card`: what an exported folder says of the same.
- `fingerprint`: what tells data sets apart, and tells nobody what they hold.
- `release`: releases beside trainings, one class a kind: declared, drawn once, in the line that pays.
- `histogram`: sums over units, of sensitivity 1, and their noise.
- `gdp`: Gaussian differential privacy: many releases that count as one Gaussian.
- `audit`: a lower bound on ε from an attack.

Import the rest from the rooms themselves: this file imports nothing until it is asked, so that planning a run or
reading a ledger loads neither PyTorch nor Lightning.
"""

from __future__ import annotations

from typing import Any

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    if name == "check":
        from doppel.privacy.clipping.check import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
