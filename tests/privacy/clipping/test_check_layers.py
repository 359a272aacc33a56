"""`doppel.privacy.check` says of every layer what the clipper would do with it."""

from __future__ import annotations

import subprocess
import sys

import pytest
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


@pytest.mark.parametrize("layer", REFUSED, ids=lambda layer: type(layer).__name__)
def test_check_and_clipper_refuse_the_same_in_the_same_words(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    found = doppel.privacy.check(model)
    assert [part.rule for part in found.layers] == ["formula", "refused"] and not found.is_trainable
    with pytest.raises(UnsupportedLayerError) as caught:
        PerSampleClipper(model, 1.0)
    assert found.layers[1].advice == str(caught.value) and str(caught.value) in str(found)


def test_every_trained_parameter_is_in_one_row_with_its_rule() -> None:
    layers = [nn.Embedding(7, 4), nn.Conv1d(3, 4, 2), nn.TransformerEncoderLayer(4, 2, 5, batch_first=True)]
    model = nn.Sequential(*layers)
    found = doppel.privacy.check(model)
    assert found.is_trainable
    assert sum(part.num_trained for part in found.layers) == sum(p.numel() for p in model.parameters())
    rules = {part.name: part.rule for part in found.layers}
    assert (rules["0"], rules["1"], rules["2.self_attn"]) == ("formula", "torch.func", "torch.func")
    assert all(part.name in str(found) for part in found.layers)


def test_a_model_without_trained_parameters_is_no_error() -> None:
    assert "unfreeze" in str(doppel.privacy.check(nn.Linear(2, 2).requires_grad_(False)))


def test_the_package_itself_loads_no_torch() -> None:
    program = "import sys, doppel.privacy; assert 'torch' not in sys.modules; assert callable(doppel.privacy.check)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
