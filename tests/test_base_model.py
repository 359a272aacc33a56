"""The shipped base model conditions on trees and copies names before any private step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from datamodules.encoded_turns import encode_turns
from datamodules.logical_batches import AllTurns
from datamodules.turn import Turn
from doppel.grammar import generate
from lightning_modules.causal_lm import CausalLM, Parse2Utterance, UtteranceLM
from lightning_modules.sampling import SamplingArguments, sample_texts

BASE = Path(__file__).resolve().parent.parent / "models" / "base"
# grammar draws of the three parts of its training (models/base/README.md): turns, seed, skew
TRAINED_ON = ((100_000, 1, 1.0), (90_000, 3, 0.7), (48_000, 5, 0.7))
_NAME = re.compile(r'"([^"]+)"')


@pytest.fixture(scope="module")
def pairs() -> list[Turn]:
    """Distinct grammar pairs that the base model has not seen."""
    seen = {(t.utterance, t.parse) for turns, s, skew in TRAINED_ON for t in generate(turns, seed=s, skew=skew)}
    drawn = (Turn(*t) for t in generate(600, seed=101))
    return list({(t.utterance, t.parse): t for t in drawn if (t.utterance, t.parse) not in seen}.values())[:150]


@torch.no_grad()
def mean_loss(model: CausalLM, turns: Sequence[Turn]) -> float:
    """Mean over turns of the mean token loss, in nats."""
    encoded = encode_turns(turns, model.codec)
    batches = AllTurns(encoded, model.codec, max_tokens_per_batch=8192)
    losses = (model.eval().losses(batches[i].micro_batches[0]).sum().item() for i in range(len(batches)))
    return sum(losses) / len(encoded)


def copied_share(model: Parse2Utterance, turns: Sequence[Turn]) -> float:
    """Share of quoted names of the trees that occur in the utterance sampled for them, letter case aside."""
    named = [t for t in turns if t.parse and _NAME.search(t.parse) and "Path.apply" not in t.parse]
    prompts = model.codec.encode_prompts([t.parse or "" for t in named])
    arguments = SamplingArguments(num_beams=5, max_new_tokens=48)
    texts = sample_texts(model.model, model.codec, prompts, arguments, stream=(0,))
    said = [
        name.lower() in text.lower()
        for turn, (text, _) in zip(named, texts, strict=True)
        for name in _NAME.findall(turn.parse or "")
    ]
    return sum(said) / len(said)


def test_a_tree_tells_it_much_about_the_utterance(pairs: list[Turn]) -> None:
    given_tree = mean_loss(Parse2Utterance(base_model=str(BASE), loss_divisor=None, slots=None), pairs)
    alone = mean_loss(UtteranceLM(base_model=str(BASE), loss_divisor=None), pairs)
    assert given_tree < alone - 1.5


def test_it_copies_quoted_names(pairs: list[Turn]) -> None:
    assert copied_share(Parse2Utterance(base_model=str(BASE), slots=None), pairs) > 0.4


def test_it_is_small_and_its_special_tokens_differ() -> None:
    assert sum(path.stat().st_size for path in BASE.iterdir()) <= 16 * 2**20
    codec = UtteranceLM(base_model=str(BASE)).codec
    assert len({codec.bos_id, codec.eos_id, codec.pad_id}) == 3
    with safe_open(BASE / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118 (no mapping)
