"""The optimiser and the schedule of language models for which nobody names others."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

from doppel.privacy.optimizer import DPAdam

#: Whether the training is private, and whether it trains LoRA weights alone → the rate. Without privacy 2e-3
#: (Mireshghallah et al., 2023, appendix A.3). With it those of least loss on public turns, of 1.2, 2.4 and 4.8e-3, and
#: of 2.4, 4.8 and 9.6e-3 (docs/results/optimizers.csv): one for every N, B and ε, since it is relative to the noise.
RATES = {(False, False): 2e-3, (False, True): 2e-3, (True, False): 2.4e-3, (True, True): 9.6e-3}


def dp_adam(params: Any, is_private: bool = False, is_lora: bool = False) -> DPAdam:
    """Build DPAdam with the rate of :data:`RATES` and no weight decay; without privacy it is AdamW."""
    return DPAdam(params, lr=RATES[is_private, is_lora])


def constant(optimizer: Optimizer) -> LRScheduler:
    """Build the schedule of a constant rate."""
    return ConstantLR(optimizer, factor=1.0)
