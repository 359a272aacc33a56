"""The shipped base model conditions on trees and copies names before any private step."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from benchmarks.base_model import copied_share, held_out_pairs, mean_loss
from datamodules.turn import Turn
from lightning_modules.parse2utterance import Parse2Utterance
from lightning_modules.utterance_lm import UtteranceLM

BASE = Path(__file__).resolve().parent.parent / "models" / "base"


@pytest.fixture(scope="module")
def pairs() -> list[Turn]:
    return held_out_pairs(150)


def test_a_tree_tells_it_much_about_the_utterance(pairs: list[Turn]) -> None:
    given_tree = mean_loss(Parse2Utterance(base_model=str(BASE)), pairs)
    alone = mean_loss(UtteranceLM(base_model=str(BASE)), pairs)
    assert given_tree < alone - 1.5


def test_it_copies_quoted_names(pairs: list[Turn]) -> None:
    assert copied_share(Parse2Utterance(base_model=str(BASE)), pairs) > 0.4


def test_it_is_small_and_its_special_tokens_differ() -> None:
    assert sum(path.stat().st_size for path in BASE.iterdir()) <= 16 * 2**20
    codec = UtteranceLM(base_model=str(BASE)).codec
    assert len({codec.bos_id, codec.eos_id, codec.pad_id}) == 3
    with safe_open(BASE / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118 (no mapping)
