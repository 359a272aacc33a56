"""A model chooses among public values by each text alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from commands.lightning.trained_model import value_chooser
from doppel.errors import UserError
from doppel.tables.asked import ValueChooser

VALUES = ["calendar", "the weather of tomorrow", "talk"]
ASK = "{text}\nTopic:"
TEXTS = ["book lunch with Ana", "yes", "will it rain in Oslo", "thanks a lot", "what is on my calendar today"]


@pytest.fixture(scope="module")
def asked(tiny_model: str) -> ValueChooser:
    return value_chooser(tiny_model)


def naive(folder: str, text: str, value: str) -> float:
    """log p(value and the end of its line | prompt), of one row and one pass."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt, tail, ids = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in (text, "\nTopic:", f" {value}\n"))
    start = [tokenizer.bos_token_id, *prompt, *tail]
    with torch.inference_mode():
        logits = model(torch.tensor([[*start, *ids]])).logits[0, len(start) - 1 : -1].log_softmax(-1)
    return float(logits.gather(1, torch.tensor(ids)[:, None]).sum())


def test_scores_are_those_of_one_row_and_one_pass(asked: ValueChooser, tiny_model: str) -> None:
    for text in TEXTS[:2]:
        scores = [naive(tiny_model, text, value) for value in VALUES]
        assert asked._scores(text, VALUES, ASK).tolist() == pytest.approx(scores, abs=1e-4)
        usual = [naive(tiny_model, "", value) for value in VALUES]
        gains = [own - without for own, without in zip(scores, usual, strict=True)]
        assert asked.likeliest(text, VALUES, ASK) == VALUES[gains.index(max(gains))]


def test_a_value_depends_on_its_own_text_alone_bit_for_bit(asked: ValueChooser, tiny_model: str) -> None:
    alone = {text: value_chooser(tiny_model)._scores(text, VALUES, ASK) for text in TEXTS}
    for text in [*TEXTS[::-1], "a text more, longer than all of them", *TEXTS]:
        scores = asked._scores(text, VALUES, ASK)
        assert text not in alone or torch.equal(scores, alone[text])


def test_a_text_that_is_too_long_is_cut_and_an_empty_one_has_no_value(asked: ValueChooser) -> None:
    assert asked.likeliest("rain " * 500, VALUES, ASK) in VALUES
    assert asked.likeliest(" ", VALUES, ASK) is None


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot load the tokenizer of the folder"):
        value_chooser(str(tmp_path))
