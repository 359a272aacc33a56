"""Train a byte-level BPE tokenizer on public text.

Writes a folder that Hugging Face loads, with distinct begin, end and padding tokens. Vocabulary is not protected by
the privacy guarantee, so the text must be public: utterances, trees of the embedded grammar, names of the public API.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

from doppel.errors import UserError

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``python cli.py tokenizer``."""
    parser.add_argument("--out", required=True, type=Path, help="folder to write")
    parser.add_argument("--vocab-size", type=int, default=4096, help="number of tokens (default: %(default)s)")
    parser.add_argument("--utterances", type=Path, help="public utterances, one a line, .txt or .txt.gz")
    parser.add_argument("--api", type=Path, help="public API, a CSV file whose first column holds function names")
    parser.add_argument(
        "--grammar-turns",
        type=int,
        default=60_000,
        help="turns of the embedded grammar to read, utterances and trees (default: %(default)s)",
    )
    parser.add_argument("--grammar-seed", type=int, default=1, help="seed of the grammar (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Train the tokenizer and write it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    for path in (args.utterances, args.api):
        if path is not None and not path.exists():
            raise UserError(f"{path} does not exist: give the path of a public text file")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=args.vocab_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=True,
    )
    tokenizer.train_from_iterator(_texts(args), trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(args.out)


def _texts(args: argparse.Namespace) -> Iterator[str]:
    from datamodules.linearisation import linearise
    from doppel.grammar import generate

    if args.utterances is not None:
        opener = gzip.open if args.utterances.suffix == ".gz" else open
        with opener(args.utterances, "rt", encoding="utf-8") as file:
            for line in file:
                yield " " + line.strip()
    if args.grammar_turns:
        for turn in generate(args.grammar_turns, seed=args.grammar_seed):
            yield " " + turn.utterance
            yield f" {linearise(turn.parse, 'spaced')}"
    if args.api is not None:
        with open(args.api, encoding="utf-8", newline="") as file:
            names = sorted({row[0] for row in csv.reader(file) if row})
        for name in names:
            yield from [f" ({name} ({name}"] * 50
