"""In half precision one unit more moves what the others give of a whole model, by the kernels that it chooses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from datamodules.batches.batch import IGNORE_INDEX, LogicalBatch
from datamodules.batches.cut import LogicalBatches
from datamodules.batches.encoded import EncodedExamples
from doppel.models.activations import attention_for
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.head import HeadLoss

VOCABULARY, LONGEST, BOUND = 4096, 256, 0.1


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    """Wide enough for a CPU to cut its products by their number of rows, with tied weights."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": LONGEST, "n_embd": 256, "n_layer": 1, "n_head": 4}
    config = GPT2Config(**sizes, **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0))
    return GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").train()


def rows(lengths: list[int]) -> EncodedExamples:
    """Random rows, the same ones whoever comes behind them; no token is 0, the padding."""
    ids = [np.random.default_rng(i).integers(1, VOCABULARY, n, dtype=np.int32) for i, n in enumerate(lengths)]
    offsets, num = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), len(lengths)
    return EncodedExamples(
        np.concatenate(ids), offsets, np.ones(num, np.int32), np.arange(num, dtype=np.int32), 0, LONGEST, (1, 2)
    )


def clipped_sum(model: GPT2LMHeadModel, batch: LogicalBatch, only: Tensor | None = None) -> Tensor:
    """Of a batch as training computes it; or of one row of it alone, the others being there without a loss."""
    model.zero_grad()
    head_loss, clipper = HeadLoss(model.lm_head, 16.0), PerSampleClipper(model, BOUND)
    for micro_batch in batch.micro_batches:
        ids, labels = micro_batch.input_ids, micro_batch.labels.clone()
        if only is not None:
            padded = F.pad(only, (0, ids.shape[1] - len(only)))  # cut where it is longer
            labels[(ids != padded).any(1)] = IGNORE_INDEX
        with clipper.capture(micro_batch.num_units):
            with torch.autocast("cpu", torch.bfloat16), attention_for(torch.device("cpu"), LONGEST):
                states = model.transformer(ids[:, :-1], use_cache=False).last_hidden_state
                losses = head_loss(states, labels[:, 1:])
            (losses * micro_batch.weights).sum().backward()
        clipper.accumulate()
    clipper.close()
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


@pytest.mark.parametrize(
    ("num_others", "length", "own"),
    [
        (4, 40, 40),
        (4, 40, 48),
        pytest.param(16, 40, 48, marks=pytest.mark.slow),
        pytest.param(64, 40, 40, marks=pytest.mark.slow),
        pytest.param(64, 40, 48, marks=pytest.mark.slow),
        pytest.param(64, 200, 200, marks=pytest.mark.slow),
        pytest.param(64, 200, 225, marks=pytest.mark.slow),
    ],
)
def test_one_unit_more_moves_the_others_by_less_than_a_thousandth(
    num_others: int, length: int, own: int, model: GPT2LMHeadModel
) -> None:
    encoded = rows([length] * num_others + [own])
    batches = LogicalBatches(encoded, 4096, 1)
    before, after = (batches.make(0, range(num), 1.0) for num in (num_others, num_others + 1))
    alone = clipped_sum(model, after, torch.from_numpy(encoded.row(num_others)))
    assert 0.9 * BOUND < alone.norm() <= BOUND
    moved = clipped_sum(model, after) - alone - clipped_sum(model, before)
    assert moved.norm() < 1e-3 * BOUND
