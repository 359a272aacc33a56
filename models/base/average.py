"""The weighted mean of two models of one architecture, weight by weight.

    python -m models.base.average OLD NEW SHARE OUT

Writes OUT/model.safetensors in float16: SHARE of NEW's weights and the rest of OLD's. Between a model and what further
training made of it, the mean often does better than both at what both have learnt (Wortsman et al., 2022, "Robust
fine-tuning of zero-shot models").
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def mean(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor], share: float) -> dict[str, torch.Tensor]:
    """The mean in float32, written as float16.

    Args:
        old: Weights by name.
        new: Weights of the same names and shapes.
        share: Of the new weights, between 0 and 1.

    Raises:
        ValueError: The two have other names.
    """
    if old.keys() != new.keys():
        raise ValueError(f"one model alone has {sorted(old.keys() ^ new.keys())}: average models of one architecture")
    return {name: torch.lerp(old[name].float(), new[name].float(), share).half() for name in old}


if __name__ == "__main__":
    first, second = (load_file(Path(folder) / "model.safetensors") for folder in sys.argv[1:3])
    save_file(mean(first, second, float(sys.argv[3])), Path(sys.argv[4]) / "model.safetensors", {"format": "pt"})
