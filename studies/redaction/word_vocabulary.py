"""Whole words as tokens, of a vocabulary that public text says."""

from __future__ import annotations

from typing import Any

from datamodules.reading.columns import Columns
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from doppel.redaction.mask import MASK

#: Tokens that are no words: padding, the beginning and the end of a text, and any other word.
SPECIAL = {
    "pad_token": "<pad>",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
}


def word_tokenizer(public_text: str, num_words: int, columns: Columns | None = None) -> Any:
    """A Hugging Face tokenizer of the most frequent words of a public file, in lower case.

    A word is a run of letters, digits and underscores, or of other signs; ``[MASK]`` is one by itself.

    Formal guarantees:
        The vocabulary is a function of a file that must be public. A word that it lacks becomes ``<unk>``, so what a
        private text becomes is a function of this text and public numbers alone. A vocabulary of private text would
        tell which words somebody said, whatever noise the training adds.

    Args:
        public_text: Whatever ``DialogueDataModule`` reads. ``$VARIABLE`` is filled in.
        num_words: Words at most.
        columns: What its columns are called; None for the usual names.

    Raises:
        DataError: The file cannot be read.
    """
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = list(SPECIAL.values())
    trainer = trainers.WordLevelTrainer(
        vocab_size=num_words + len(special), special_tokens=special, show_progress=False
    )
    turns = read_examples(expand_path(public_text), "utterance", with_trees=False, columns=columns)
    tokenizer.train_from_iterator((turn.utterance for turn in turns), trainer)
    tokenizer.add_tokens([AddedToken(MASK, normalized=False)])  # a word, for what is special is text where it is typed
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
