"""Fixtures shared by all rooms: a tiny model with a tiny tokenizer, and a small private corpus."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")
os.environ["DOPPEL_KEY"] = str(Path(tempfile.gettempdir()) / "doppel-tests" / "key")  # not that of the user

PAIRS = [
    ("book lunch with Ana", '(Yield (Create (Event.subject_? (?= "lunch")) (Person "Ana")))'),
    ("what is on my calendar today", "(Yield (Find (Today)))"),
    ("will it rain in Oslo", '(Yield (WillRain (AtPlace "Oslo")))'),
    ("yes", "(Yield (Execute (^(Dynamic) ConfirmAndReturnAction)))"),
    ("thanks a lot", "(PleasantryAnythingElseCombined)"),
    ("cancel the meeting on Friday please", "(Yield (Delete (NextDOW (Friday))))"),
]


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What Lightning and Doppel tell the user."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a two-layer GPT-2 with random weights and a byte-level BPE tokenizer of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny_model")
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
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=96,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Plain JSON lines with 60 turns in 20 dialogues."""
    path = tmp_path_factory.mktemp("corpus") / "train.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for i in range(60):
            utterance, parse = PAIRS[i % len(PAIRS)]
            record = {"utterance": f"{utterance} {i}", "parse": parse, "unit": f"dialogue-{i // 3}"}
            file.write(json.dumps(record) + "\n")
    return str(path)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOPPEL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of the public data sets; the test is skipped where there is none."""
    folder = os.environ.get("DOPPEL_DATA")
    if not folder:
        pytest.skip("DOPPEL_DATA names no folder with the public data sets")
    return Path(folder)
