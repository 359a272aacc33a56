"""The accuracy of the next token: texts teach it, padding and later tokens tell nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch

from doppel.metrics.next_token import _batches, _rows, next_token_accuracy, next_token_metrics
from doppel.models.judges import logits
from doppel.models.load import load_with_tokenizer

TEXTS = ["cancel my next meeting", "book a table for two"] * 40


def test_a_model_learns_from_texts_like_those_that_it_is_tested_on(tiny_model: str) -> None:
    before = next_token_accuracy([], TEXTS[:6], tiny_model, epochs=0)
    taught = next_token_accuracy(TEXTS, TEXTS[:6], tiny_model, epochs=10)
    others = next_token_accuracy(["what is the weather like"] * 80, TEXTS[:6], tiny_model, epochs=10)
    assert before is not None and taught is not None and others is not None
    assert 2 * max(before, others) < taught
    assert next_token_accuracy(TEXTS, TEXTS[:6], tiny_model, epochs=10) == taught, "the seed says the order"


def test_nothing_to_learn_from_or_to_be_tested_on_gives_no_number(tiny_model: str) -> None:
    assert next_token_accuracy(["", "  "], TEXTS, tiny_model, epochs=1) is None
    assert next_token_accuracy(TEXTS, [" "], tiny_model, epochs=1) is None


def test_a_value_is_asked_for_by_all_that_it_depends_on_before_it_is_made(tiny_model: str) -> None:
    def keys(samples: list[str], epochs: int, seed: int) -> list[str]:
        asked = list[str]()

        def keep(told: Sequence[object], make: object) -> float:
            asked.append(json.dumps(told))
            return 0.5

        found = next_token_metrics(samples, TEXTS, tiny_model, epochs, seed, keep)
        assert [*found.values()] == [0.5] * 3, "nothing is trained where values are known"
        return asked

    whole = keys(TEXTS, 1, 1)
    assert len(set(whole)) == 3 and keys(TEXTS, 1, 1) == whole
    assert not {*keys(TEXTS, 1, 2)} & {*whole}
    assert keys(["another text"] * 40, 1, 1)[1:] == whole[1:] and keys(["another text"] * 40, 1, 1)[0] != whole[0]
    taught = json.loads(keys([f"text {number}" for number in range(80)], 1, 1)[0])[3]
    assert len(taught) == 40 and taught != sorted(taught), "drawn of all samples, whose file may be sorted"
    assert any(int(text.split()[1]) >= 40 for text in taught)
    assert keys(TEXTS, 2, 1)[2] == whole[2] and not {*keys(TEXTS, 2, 1)[:2]} & {*whole}


def test_a_token_is_predicted_from_those_before_it_whoever_is_beside_the_text(tiny_model: str) -> None:

    model, tokenizer = load_with_tokenizer(tiny_model)
    short, long = _rows(tokenizer, ["cancel my next meeting", "cancel my next meeting and then a longer one"], 64)
    with torch.inference_mode():
        ((ids_BT, labels_BT),) = _batches([short, long])
        ((alone_BT, _),) = _batches([short])
        beside = logits(model, ids_BT)[0, : len(short) - 1]
        alone = logits(model, alone_BT)[0]
        cut = logits(model, alone_BT[:, :3])[0]
    assert torch.allclose(beside, alone, atol=1e-4) and torch.allclose(alone[:3], cut, atol=1e-4)
    assert labels_BT[0, : len(short) - 1].tolist() == short[1:]
    assert set(labels_BT[0, len(short) - 1 :].tolist()) == {-100}
    assert short[-1] == tokenizer.eos_token_id == pytest.approx(long[-1])
