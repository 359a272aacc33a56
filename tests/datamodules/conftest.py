"""A tiny tokenizer and tiny data files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from datamodules.text_format import TextFormat

TEXTS = [
    ' (Yield (FindEventWrapperWithDefaults (Event.subject_? (?= "lunch"))))',
    " (Yield (WeatherQueryApi (AtPlace (Here))))",
    " what is the weather tomorrow",
    " when is my next meeting with Ana",
]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with distinct begin, end and padding ids, whose begin of text ends prompts, too."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(TEXTS, trainer)
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "sep_token": "<bos>"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **names)


@pytest.fixture
def text_format(tokenizer: PreTrainedTokenizerFast) -> TextFormat:
    """Text format of p(utterance | parse)."""
    return TextFormat(tokenizer, source="parse", target="utterance", max_length=64)


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., str]:
    """Writes records, or raw strings, as the lines of a file."""

    def write(records: list[Any], name: str = "data.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
        return str(path)

    return write


@pytest.fixture
def dialogues(write_lines: Callable[..., str]) -> str:
    """Twenty dialogues with one to six turns, every third turn skipped by the annotators."""
    records = []
    for d in range(20):
        turns = [
            {
                "turn_index": t,
                "skip": t % 3 == 2,
                "lispress": f'(Yield (Find "{d} {t}"))' + "" * t,
                "user_utterance": {"original_text": f"find {d} {'again ' * t}{t}"},
                "agent_utterance": {"original_text": "never read"},
                "tags": {"domain": f"domain{d % 2}"},
            }
            for t in range(1 + d % 6)
        ]
        records.append({"dialogue_id": f"d{d}", "turns": turns})
    return write_lines(records)
