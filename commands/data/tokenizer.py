"""A tokenizer trained on public text."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

from datamodules.linearisation import linearise
from doppel.errors import UserError

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"


def tokenizer(
    *,
    out: Path,
    vocab_size: int = 4096,
    utterances: Path | None = None,
    api: Path | None = None,
    grammar_turns: int = 60_000,
    grammar_seed: int = 1,
) -> None:
    """Train a byte-level BPE tokenizer on public text.

    Writes a folder that Hugging Face loads, with distinct begin, end and padding tokens. Vocabulary is not protected by
    the privacy guarantee, so the text must be public: utterances, trees of the embedded grammar, names of the public
    API.

    Args:
        out: Folder to write.
        vocab_size: Number of tokens.
        utterances: Public utterances, one a line, .txt or .txt.gz.
        api: Public API, a CSV file whose first column holds function names.
        grammar_turns: Turns of the embedded grammar to read, utterances and trees.
        grammar_seed: Seed of the grammar.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    for path in (utterances, api):
        if path is not None and not path.exists():
            raise UserError(f"{path} does not exist: give the path of a public text file")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=True,
    )
    bpe.train_from_iterator(_texts(utterances, api, grammar_turns, grammar_seed), trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=BOS, eos_token=EOS, pad_token=PAD, clean_up_tokenization_spaces=False
    ).save_pretrained(out)


def _texts(utterances: Path | None, api: Path | None, grammar_turns: int, grammar_seed: int) -> Iterator[str]:
    from doppel.grammar import generate

    if utterances is not None:
        opener = gzip.open if utterances.suffix == ".gz" else open
        with opener(utterances, "rt", encoding="utf-8") as file:
            for line in file:
                yield " " + line.strip()
    if grammar_turns:
        for turn in generate(grammar_turns, seed=grammar_seed):
            yield " " + turn.utterance
            yield f" {linearise(turn.parse, 'spaced')}"
    if api is not None:
        with open(api, encoding="utf-8", newline="") as file:
            names = sorted({row[0] for row in csv.reader(file) if row})
        for name in names:
            yield from [f" ({name} ({name}"] * 50
