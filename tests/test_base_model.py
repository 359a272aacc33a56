"""The shipped base model conditions on trees and copies names before any private step."""

from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from datamodules.reading.example import Example
from doppel.grammar.slot_table import SHIPPED
from lightning_modules.causal_lm import Parse2Utterance, UtteranceLM
from models.base.average import mean
from models.base.measure import BASE, copied, held_out_pairs, load, nats_a_word, utterances_for


@pytest.fixture(scope="module")
def pairs() -> list[Example]:
    """Grammar pairs that the base model has not seen."""
    return held_out_pairs(80)


def test_a_tree_tells_it_much_about_the_utterance(pairs: list[Example]) -> None:
    given_tree, alone = (nats_a_word(load(kind, str(BASE)), pairs) for kind in (Parse2Utterance, UtteranceLM))
    assert given_tree < alone / 2


@pytest.mark.parametrize(("slots", "share"), [(None, 0.6), (SHIPPED, 0.8)])
def test_it_copies_quoted_names_and_slots(pairs: list[Example], slots: str | None, share: float) -> None:
    assert copied(pairs, utterances_for(load(Parse2Utterance, str(BASE), slots), pairs)) > share


def test_the_mean_of_two_models_lies_between_them() -> None:
    old = load_file(BASE / "model.safetensors")
    new = {name: weights + 1 for name, weights in old.items()}
    for share in (0.0, 0.25, 1.0):
        torch.testing.assert_close(mean(old, new, share), {k: w + share for k, w in old.items()}, atol=1e-2, rtol=1e-2)
    with pytest.raises(ValueError, match="extra"):
        mean(old, new | {"extra": torch.zeros(1)}, 0.5)


def test_it_is_small_and_its_special_tokens_differ() -> None:
    assert sum(path.stat().st_size for path in BASE.iterdir()) <= 16 * 2**20
    text_format = UtteranceLM(base_model=str(BASE)).text_format
    assert len({text_format.bos_id, text_format.eos_id, text_format.pad_id}) == 3
    assert (text_format.first_ids, text_format.separator_ids) == ([], [text_format.bos_id]), "as it was trained"
    with safe_open(BASE / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in weights.keys()  # noqa: SIM118 (no mapping)
