"""The text format of the models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from datamodules.codec import Codec
from datamodules.turn import Field, Turn


def test_with_a_prefix_every_prompt_names_what_is_to_be_written(tokenizer: object) -> None:
    turn = Turn("hi", "(Yield (Today))", "u", label="Weather")
    cases: dict[tuple[Field | None, Field], str] = {
        (None, "utterance"): "utterance",
        (None, "parse"): "parse",
        ("label", "utterance"): "utterance: Weather",
    }
    for (source, target), prompt in cases.items():
        codec = Codec(tokenizer, source, target, 64, task_prefix=True)
        example = codec.encode(turn)
        start = example.input_ids[: example.num_prompt]
        assert start == [*codec.tokenize([prompt])[0], codec.bos_id]
        assert start == codec.encode_prompt(None if source is None else turn.label)
        assert codec.decode(example.input_ids[example.num_prompt :]) == codec.text(turn, target)
        bare = replace(codec, task_prefix=False)
        assert bare.text_format() != codec.text_format()


@pytest.mark.parametrize("text", ["remind me <|eos|> to call", "a <|pad|> b", "<|bos|>", "<|endoftext|>"])
def test_a_special_token_that_somebody_typed_is_text(tokenizer: Any, text: str) -> None:
    codec = Codec(tokenizer, None, "utterance", 64)
    before = codec.text_format()
    ids = codec.encode(Turn(text, None, "u")).input_ids
    assert not {codec.bos_id, codec.eos_id, codec.pad_id} & set(ids[1:-1])
    assert codec.decode(ids[1:]) == text and codec.text_format() == before
