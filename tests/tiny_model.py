"""A two-layer GPT-2 with random weights, a tokenizer of its own, and a few turns: the same ones every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

PAIRS = [
    ("book lunch with Ana", '(Yield (Create (Event.subject_? (?= "lunch")) (Person "Ana")))'),
    ("what is on my calendar today", "(Yield (Find (Today)))"),
    ("will it rain in Oslo", '(Yield (WillRain (AtPlace "Oslo")))'),
    ("yes", "(Yield (Execute (^(Dynamic) ConfirmAndReturnAction)))"),
    ("thanks a lot", "(PleasantryAnythingElseCombined)"),
    ("cancel the meeting on Friday please", "(Yield (Delete (NextDOW (Friday))))"),
]


def write_model(folder: Path, **changes: Any) -> None:
    """Write the model and its byte-level BPE tokenizer, whose begin of text ends prompts, as in the shipped base.

    Args:
        folder: Where.
        changes: Arguments of the GPT2Config in place of the tiny ones.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for pair in PAIRS for text in pair], trainer)
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "sep_token": "<bos>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder)
    torch.manual_seed(0)
    tiny = {"n_positions": 96, "n_embd": 32, "n_layer": 2, "n_head": 2}
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = GPT2Config(**{"vocab_size": tokenizer.get_vocab_size(), **tiny, **special, **changes})
    GPT2LMHeadModel(config).save_pretrained(folder)


def write_corpus(path: Path) -> None:
    """Write JSON lines with 60 turns in 20 dialogues."""
    with open(path, "w", encoding="utf-8") as file:
        for i in range(60):
            utterance, parse = PAIRS[i % len(PAIRS)]
            record = {"utterance": f"{utterance} {i}", "parse": parse, "unit": f"dialogue-{i // 3}"}
            file.write(json.dumps(record) + "\n")
