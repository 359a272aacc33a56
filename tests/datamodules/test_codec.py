"""The text format of the models."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

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


def with_first(tokenizer: Any) -> Any:
    """The tokenizer, but it puts its begin of text at place 0 by itself, as those of Llama 3 and Gemma do."""
    found = deepcopy(tokenizer)
    begin = [(found.bos_token, found.bos_token_id)]
    found.backend_tokenizer.post_processor = TemplateProcessing(f"{found.bos_token} $A", special_tokens=begin)
    return found


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("separator", [None, "<bos>", "<eos>"])
def test_a_text_begins_as_those_that_its_base_has_seen(tokenizer: Any, is_first: bool, separator: str | None) -> None:
    """Begin of text at place 0 alone, where the tokenizer puts it and does not part with it; else a line feed parts."""
    given = with_first(tokenizer) if is_first else deepcopy(tokenizer)
    given.sep_token = separator
    text_format = TextFormat(given, "label", "utterance", 64, task_prefix=True)
    bos, line = text_format.bos_id, given.convert_tokens_to_ids("Ċ")
    between = line if separator is None else given.convert_tokens_to_ids(separator)
    (prompt,), (text,) = text_format.tokenize(["utterance: Weather"]), text_format.tokenize(["hi"])
    row = text_format.encode(Example("hi", None, "u", label="Weather"))
    assert row.input_ids == [*[bos] * (is_first and separator != "<bos>"), *prompt, between, *text, text_format.eos_id]
    assert row.input_ids[: row.num_prompt] == text_format.encode_prompt("Weather")
    assert text_format.decode(row.input_ids[row.num_prompt :]) == "hi"
    alone = replace(text_format, source=None, task_prefix=False)
    assert alone.encode_prompt(None) == [bos], "nothing stands before it that a separator could part it from"


def test_a_vocabulary_without_a_line_feed_parts_by_its_begin_of_text() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<bos>": 1, "<eos>": 2, "hi": 3}, unk_token="<unk>"))
    for split in (pre_tokenizers.Whitespace(), pre_tokenizers.Split(" ", "removed")):
        words.pre_tokenizer = split
        names = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
        given = PreTrainedTokenizerFast(tokenizer_object=words, **names)
        assert TextFormat(given, "label", "utterance", 9).separator_ids == [1]


@pytest.mark.parametrize("is_first", [False, True])
def test_weights_of_before_say_so_and_fit_where_the_base_keeps_their_form(tokenizer: Any, is_first: bool) -> None:
    given = with_first(tokenizer) if is_first else deepcopy(tokenizer)
    given.sep_token = None
    today = TextFormat(given, None, "utterance", 64, task_prefix=True)
    before = {name: told for name, told in today.compatibility().items() if name != "begin of texts"}
    told = today.other_format(before)
    assert told is not None and "it is of before: <bos> ended its prompts" in told
    assert today.other_format(today.compatibility()) is None
    keeps = deepcopy(given)
    keeps.sep_token = "<bos>"
    as_advised = replace(today, tokenizer=keeps).other_format(before)
    assert '"sep_token": "<bos>"' in told and as_advised is None, "a private run of before can go on"
