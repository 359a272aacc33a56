"""Losses and features of texts under a language model, and what they say of samples."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from datamodules.reading.examples import read_examples
from doppel.metrics.fluency import LanguageModel
from doppel.metrics.judged import fluency_metrics, outliers
from doppel.models.faults import ModelError

TEXTS = ["yes", "book a meeting with anna at nine", "", "what is the weather on tuesday", "book a room"]
PEOPLE = [turn.utterance for turn in read_examples("embedded:test?num=600&seed=9", "utterance")]


def test_losses_and_features_are_those_of_each_text_alone(tiny_model: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    judge = LanguageModel(tiny_model, tokens_per_batch=30)
    nats, features = judge.nats(TEXTS), judge(TEXTS)
    for text, loss, feature in zip(TEXTS, nats, features, strict=True):
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]])
        with torch.no_grad():
            found = model(input_ids=ids, output_hidden_states=True)
        logits = found.logits[0, :-1].log_softmax(-1)
        expected = -logits[torch.arange(ids.shape[1] - 1), ids[0, 1:]].sum()
        assert loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-4)
        torch.testing.assert_close(feature, found.hidden_states[-1][0, -1], atol=1e-5, rtol=1e-4)
    assert judge.nats(TEXTS[::-1]) == nats[::-1]  # each text is read once
    assert LanguageModel(tiny_model).nats(["longer than the context " * 99])[0] > 0


def test_scrambled_words_are_less_fluent_and_humans_have_five_per_cent_of_outliers() -> None:
    nats = LanguageModel("models/base").nats
    scrambled = [" ".join(random.Random(n).sample(t.split(), len(t.split()))) for n, t in enumerate(PEOPLE[:300])]
    human = (PEOPLE[300:], PEOPLE[:300])
    values, _ = fluency_metrics(scrambled, PEOPLE[300:], human, nats)
    fluency, of_people = values["fluency"], values["reference_fluency"]
    assert isinstance(fluency, float) and isinstance(of_people, float) and fluency > of_people + 0.5
    assert isinstance(values["human_fluency_outliers"], float) and values["human_fluency_outliers"] < 0.12
    assert isinstance(values["fluency_outliers"], float) and values["fluency_outliers"] > 0.2
    assert outliers(PEOPLE[300:], PEOPLE[300:], nats) == pytest.approx(0.05, abs=0.01)  # by construction
    in_another_order = fluency_metrics(scrambled[::-1], PEOPLE[:299:-1], (human[0][::-1], human[1][::-1]), nats)[0]
    assert in_another_order == pytest.approx(values)


def test_neither_short_nor_long_texts_are_outliers_for_their_length() -> None:
    """Losses that grow with the words as those of people do: by the loss, or the loss a word, all would be found."""

    def nats(texts: list[str]) -> list[float]:
        return [9.0 + 4.0 * len(text.split()) + (text[0] == "!") for text in texts]

    human = [" ".join(["word"] * (4 + n % 5)) for n in range(40)]
    assert outliers(["word", "word " * 30], human, nats) == 0
    assert outliers(["! word", "! " * 30], human, nats) == 1
    assert outliers(["", " "], human, nats) is None


def test_a_tokenizer_without_a_first_token_is_named(tiny_model: str) -> None:
    judge = LanguageModel(tiny_model)
    judge.nats(["yes"])
    assert judge._loaded is not None
    tokenizer = judge._loaded[1]
    tokenizer.bos_token = tokenizer.eos_token = None
    with pytest.raises(ModelError, match="begins a text"):
        judge.nats(["no"])
