"""What a user decides about the privacy of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from doppel.errors import UserError
from doppel.privacy.accounting import Accountant


@dataclass(frozen=True)
class PrivacyArguments:
    """Trains with DP-SGD: per-sample clipping, Gaussian noise, accounting in a ledger. Null is the non-private run.

    Args:
        target_epsilon: ε of the whole scope, all stages together. It must be given: a configuration that lost its
            privacy does not get it back with another ε.
        delta: δ; null for 1/(N ln N).
        epochs: Epochs of every stage that shares the budget, such as [2, 8]; null for this run's ``max_epochs`` alone.
            All stages get one noise multiplier.
        max_grad_norm: Clipping norm C of one unit's gradient; 16 suits the loss of the language models here, ``python
            cli.py norms`` says what suits another.
        accountant: ``pld`` (tightest), ``prv`` or ``rdp`` (the paper's).
        ledger_path: Ledger that records what is spent; one may serve all runs on the same people. With ``--run_dir
            RUN/STAGE`` null is $DOPPEL_LEDGER, if that is set when the run begins, else RUN/ledger.jsonl.
        scope: The released system this run belongs to; every scope has its own target, and the ledger also composes
            all of them.
        stage: Name of this training in the ledger. With ``--run_dir RUN/STAGE`` it is STAGE.
        log_private_diagnostics: Also log losses of private data and the number of units without a finite gradient,
            named ``private/…``. These numbers are *not* private in the sense of the guarantee: keep them off anything
            that others can read.
        fp16_loss_scale: Factor of the loss under precision ``16-mixed``; public and constant. A power of two is exact.
        seed: Fixed noise seed, for tests alone: who knows it can subtract the noise, and the guarantee is void.
        histogram_noise_multiplier: Noise over sensitivity of a histogram that ``python cli.py histogram``, or
            ``calibrate``, will release in this scope; σ of the training leaves room for it under the one target ε.
            Null: there is none.
    """

    target_epsilon: float = math.nan
    delta: float | None = None
    epochs: list[float] | None = None
    max_grad_norm: float = 16.0
    accountant: Accountant = "pld"
    ledger_path: str | None = None
    scope: str = "default"
    stage: str | None = None
    log_private_diagnostics: bool = False
    fp16_loss_scale: float = 4096.0
    seed: int | None = None
    histogram_noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        """Refuse to guess ε."""
        if math.isnan(self.target_epsilon):
            raise UserError(
                "privacy has no target_epsilon: give --privacy.target_epsilon (a later --config may have taken it away)"
            )
