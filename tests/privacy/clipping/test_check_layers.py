"""`doppel.privacy.check` says of every layer what the clipper would do with it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import doppel.privacy
from doppel.privacy.clipping import PerSampleClipper, UnsupportedLayerError

REFUSED = [
    nn.LSTM(4, 4),
    nn.GRU(4, 4),
    nn.RNN(4, 4),
    nn.BatchNorm2d(4),
    nn.MultiheadAttention(4, 2),
    nn.Embedding(3, 4, max_norm=1.0),
    nn.EmbeddingBag(3, 4, sparse=True),
    nn.LazyLinear(3),
]


class Around(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.scale = layer, nn.Parameter(torch.ones(4))


@pytest.mark.parametrize("layer", REFUSED, ids=lambda layer: type(layer).__name__)
def test_check_and_clipper_refuse_the_same_in_the_same_words(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    found = doppel.privacy.check(model)
    assert [part.rule for part in found] == ["fast", "refused"] and not found.is_trainable
    with pytest.raises(UnsupportedLayerError) as caught:
        PerSampleClipper(model, 1.0)
    assert found.layers[1].advice == str(caught.value) and str(caught.value) in str(found)


def test_every_trained_parameter_is_in_one_row_with_its_price() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Conv1d(3, 4, 2), nn.TransformerEncoderLayer(4, 2, 5, batch_first=True),
                          Around(nn.Linear(4, 4)))  # fmt: skip
    found = doppel.privacy.check(model)
    assert found.is_trainable
    assert sum(part.num_trained for part in found) == sum(p.numel() for p in model.parameters())
    rules = {part.name: (part.rule, part.work > 1, part.numbers_per_unit) for part in found}
    assert rules["0"] == ("fast", False, 0)
    assert rules["1"] == ("generic", True, 28)
    assert rules["2.self_attn"] == ("generic", True, 80)
    assert rules["3.layer"][0] == "fast" and "run again" in next(part.advice for part in found if part.name == "3")
    assert all(part.name in str(found) for part in found)


def test_a_model_without_trained_parameters_is_no_error() -> None:
    assert "unfreeze" in str(doppel.privacy.check(nn.Linear(2, 2).requires_grad_(False)))


def test_the_package_itself_loads_no_torch() -> None:
    program = "import sys, doppel.privacy; assert 'torch' not in sys.modules; assert callable(doppel.privacy.check)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
