"""Share of the reference's function types that the synthetic trees use."""

from __future__ import annotations

import torch
from torch import Tensor

from doppel.metrics.function_type_metric import FunctionTypeMetric
from doppel.metrics.type_counts import type_overlap


class FunctionOverlap(FunctionTypeMetric):
    """F.Overlap = |F_syn ∩ F_hum| / |F_hum| over function types (Mireshghallah et al.), in [0, 1].

    It grows with the number of samples: compare systems on equally many. nan without a reference.
    """

    higher_is_better = True

    def compute(self) -> Tensor:
        """Scalar share over everything added so far."""
        return torch.tensor(type_overlap(self.counts("synthetic"), self.counts("reference")))
