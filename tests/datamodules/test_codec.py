"""The text format of the models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from datamodules.reading.example import Example, Field
from datamodules.text_format import TextFormat


def test_with_a_prefix_every_prompt_names_what_is_to_be_written(tokenizer: object) -> None:
    turn = Example("hi", "(Yield (Today))", "u", label="Weather")
    cases: dict[tuple[Field | None, Field], str] = {
        (None, "utterance"): "utterance",
        (None, "parse"): "parse",
        ("label", "utterance"): "utterance: Weather",
    }
    for (source, target), prompt in cases.items():
        text_format = TextFormat(tokenizer, source, target, 64, task_prefix=True)
        example = text_format.encode(turn)
        start = example.input_ids[: example.num_prompt]
        assert start == [*text_format.tokenize([prompt])[0], text_format.bos_id]
        assert start == text_format.encode_prompt(None if source is None else turn.label)
        assert text_format.decode(example.input_ids[example.num_prompt :]) == text_format.text(turn, target)
        bare = replace(text_format, task_prefix=False)
        assert bare.compatibility() != text_format.compatibility()


@pytest.mark.parametrize("text", ["remind me <|eos|> to call", "a <|pad|> b", "<|bos|>", "<|endoftext|>"])
def test_a_special_token_that_somebody_typed_is_text(tokenizer: Any, text: str) -> None:
    text_format = TextFormat(tokenizer, None, "utterance", 64)
    before = text_format.compatibility()
    ids = text_format.encode(Example(text, None, "u")).input_ids
    assert not {text_format.bos_id, text_format.eos_id, text_format.pad_id} & set(ids[1:-1])
    assert text_format.decode(ids[1:]) == text and text_format.compatibility() == before
