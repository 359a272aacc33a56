"""The optimiser and the schedule of language models for which nobody names others."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

from doppel.privacy.optimizer import DPAdam

#: Without privacy that of Mireshghallah et al. (2023, appendix A.3); with it that of least loss on public turns of 1, 2
#: and 4e-3 (shipped base, N = 10,060, B = 512, ε = 3), and within .02 nats a word of the best at N = 3,043: see
#: docs/results/optimizers.csv. It is relative to the noise and to T, so that other N, B and ε should need no other.
LEARNING_RATE = 2e-3
#: Of a private training of LoRA weights alone: of 2, 4 and 8e-3 for rank 16 on SmolLM2-135M, likewise at N = 10,060
#: (4.14, 4.06 and 4.03 nats a word, one seed).
PRIVATE_LORA_LEARNING_RATE = 8e-3


def dp_adam(params: Any, is_private: bool = False, is_lora: bool = False) -> DPAdam:
    """Build DPAdam with the rate that suits it and no weight decay; without privacy it is AdamW."""
    return DPAdam(params, lr=PRIVATE_LORA_LEARNING_RATE if is_private and is_lora else LEARNING_RATE)


def constant(optimizer: Optimizer) -> LRScheduler:
    """Build the schedule of a constant rate."""
    return ConstantLR(optimizer, factor=1.0)
