"""The optimiser and the schedule of language models for which nobody names others."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

from doppel.privacy.optimizer import DPAdam

#: Whether the training is private, and whether it trains LoRA weights alone → the rate. Without privacy 2e-3
#: (Mireshghallah et al., 2023, appendix A.3). With it those of least loss on public turns, N = 10,060, B = 512, ε = 3:
#: of 1.2, 2.4 and 4.8e-3 for the shipped base (docs/results/optimizers.csv), and of 2.4, 4.8 and 9.6e-3 for LoRA 16 on
#: SmolLM2-135M (4.14, 4.06 and 4.03 nats a word, one seed). Other N, B and ε were not tried; a rate is relative to the
#: noise, so that they should need no other.
RATES = {(False, False): 2e-3, (False, True): 2e-3, (True, False): 2.4e-3, (True, True): 9.6e-3}


def dp_adam(params: Any, is_private: bool = False, is_lora: bool = False) -> DPAdam:
    """Build DPAdam with the rate of :data:`RATES` and no weight decay; without privacy it is AdamW."""
    return DPAdam(params, lr=RATES[is_private, is_lora])


def constant(optimizer: Optimizer) -> LRScheduler:
    """Build the schedule of a constant rate."""
    return ConstantLR(optimizer, factor=1.0)
