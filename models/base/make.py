"""Train the base model's tokenizer: byte-level BPE of public text.

    python -m models.base.make UTTERANCES API

UTTERANCES holds public English utterances, one a line (.txt or .txt.gz); API is the public table of function names, a
CSV file whose first column holds them. Turns of the embedded grammar are read too, utterances and trees. The privacy
guarantee does not protect a vocabulary, so all of this must be public.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from datamodules.text_format import spaced
from doppel.grammar import generate

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
VOCAB_SIZE, GRAMMAR_TURNS, GRAMMAR_SEED, API_REPEATS = 4096, 60_000, 1, 50


def train(texts: Iterator[str], out: Path) -> None:
    """Write a tokenizer that Hugging Face loads: distinct begin, end and padding tokens; begin ends prompts, too."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=True,
    )
    bpe.train_from_iterator(texts, trainer)
    tokens = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "sep_token": BOS}
    PreTrainedTokenizerFast(tokenizer_object=bpe, **tokens, clean_up_tokenization_spaces=False).save_pretrained(out)


def public_texts(utterances: Path, api: Path) -> Iterator[str]:
    """What the tokenizer is trained on."""
    opener = gzip.open if utterances.suffix == ".gz" else open
    with opener(utterances, "rt", encoding="utf-8") as file:
        for line in file:
            yield " " + line.strip()
    for turn in generate(GRAMMAR_TURNS, seed=GRAMMAR_SEED):
        yield " " + turn.utterance
        yield f" {spaced(turn.parse)}"
    with open(api, encoding="utf-8", newline="") as file:
        names = sorted({row[0] for row in csv.reader(file) if row})
    for name in names:
        yield from [f" ({name} ({name}"] * API_REPEATS


if __name__ == "__main__":
    train(public_texts(Path(sys.argv[1]), Path(sys.argv[2])), Path(__file__).parent)
