"""From a file to token ids, and what identifies a data set."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from encoded_rows import num_without_loss

import doppel.grammar
from datamodules.batches.encoded import encode_examples
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest
from datamodules.text_format import TextFormat


def test_embedded_paths_have_fingerprints_of_their_own() -> None:
    paths = ["embedded:train?num=10&seed=1", "embedded:train?num=10&seed=2", "embedded:train?num=11&seed=1"]
    assert len({content_digest(p) for p in paths}) == 3
    assert content_digest(paths[0]) == content_digest("embedded:val?seed=1&num=10")


def test_the_fingerprint_of_the_embedded_corpus_is_that_of_its_turns(tmp_path: Path) -> None:
    """Comments and docstrings of the grammar do not change it; a word of a lexicon and a weight of a rule do."""
    package = Path(doppel.grammar.__file__).parent

    def fingerprint_with(file: str, old: str, new: str) -> str:
        """In a process of its own, with a copy of the grammar in which one text is replaced."""
        copy = tmp_path / "doppel" / "grammar"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        text = (copy / file).read_text()
        assert old in text
        (copy / file).write_text(text.replace(old, new))
        code = (
            f"import doppel; doppel.__path__.insert(0, {str(copy.parent)!r}); import doppel.grammar; "
            f"assert doppel.grammar.__file__.startswith({str(copy)!r}); "
            "from datamodules.reading.files import content_digest as digest; "
            "print(digest('embedded:train?num=300&seed=1'))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    as_it_is = content_digest("embedded:train?num=300&seed=1")
    assert fingerprint_with("dialogue.py", '"""Dialogues of the', '"""Talks of the') == as_it_is
    assert fingerprint_with("lexicon/first_names.txt", "\n", "x\n") != as_it_is
    assert fingerprint_with("rules/dialogue.yaml", "  create: 40\n", "  create: 20\n") != as_it_is


def test_over_long_turns_keep_their_row_but_have_no_loss(dialogues: str, tokenizer: object) -> None:
    short = TextFormat(tokenizer, "parse", "utterance", 30)
    whole = TextFormat(tokenizer, "parse", "utterance", 1000)
    turns = read_examples(dialogues, "dialogue")
    encoded = encode_examples(turns, short)
    lengths = np.array([len(e.input_ids) for e in whole.encode_all(turns)])
    too_long = lengths > 30
    assert 0 < too_long.sum() < len(turns)
    np.testing.assert_array_equal(encoded.lengths, np.where(too_long, 2, lengths))
    np.testing.assert_array_equal(encoded.num_prompt == encoded.lengths, too_long)
    np.testing.assert_array_equal(encoded.unit_index, encode_examples(turns, whole).unit_index)


def test_an_over_long_utterance_is_cut_alone_where_that_is_asked_for(tokenizer: object) -> None:
    """A row depends on itself alone; its prompt stays whole, and what is cut has no end of text."""
    limit, tree = 30, "(Yield (Find (Today)))"
    short, whole = (TextFormat(tokenizer, "parse", "utterance", length) for length in (limit, 1000))
    turns = [Example("a b c " * n, tree * m, f"u{n % 3}") for n in range(9) for m in (1, 4)]
    cut, left = encode_examples(turns, short, truncate=True), encode_examples(turns, short)
    num_cut = 0
    for row, encoded in enumerate(whole.encode_all(turns)):
        ids, prompt = cut.row(row).tolist(), int(cut.num_prompt[row])
        if len(encoded.input_ids) <= limit or encoded.num_prompt >= limit:
            assert ids == left.row(row).tolist() and prompt == left.num_prompt[row]
            continue
        num_cut += 1
        assert ids == encoded.input_ids[:limit] and prompt == encoded.num_prompt and short.eos_id != ids[-1]
        alone = encode_examples(turns[row : row + 1], short, truncate=True)
        assert ids == alone.row(0).tolist()
    assert num_cut and 0 < num_without_loss(cut) < num_without_loss(left)
    np.testing.assert_array_equal(cut.unit_index, left.unit_index)


def test_a_tree_is_never_cut(dialogues: str, tokenizer: object) -> None:
    text_format, turns = TextFormat(tokenizer, None, "parse", 8), read_examples(dialogues, "dialogue")
    cut, left = encode_examples(turns, text_format, truncate=True), encode_examples(turns, text_format)
    assert num_without_loss(left) and cut.ids.tolist() == left.ids.tolist()
