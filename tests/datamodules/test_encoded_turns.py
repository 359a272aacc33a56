"""From a file to token ids, and what identifies a data set."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import doppel.grammar
from datamodules.codec import Codec
from datamodules.encoded_turns import encode_turns, load_encoded
from datamodules.sources import data_fingerprint
from datamodules.tables import read_turns
from doppel.errors import DataError


def test_a_missing_file_is_told_as_by_the_reader(codec: Codec, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        load_encoded(str(tmp_path / "nowhere.jsonl"), codec, "utterance")


def test_embedded_paths_have_fingerprints_of_their_own() -> None:
    paths = ["embedded:train?num=10&seed=1", "embedded:train?num=10&seed=2", "embedded:train?num=11&seed=1"]
    assert len({data_fingerprint(p) for p in paths}) == 3
    assert data_fingerprint(paths[0]) == data_fingerprint("embedded:val?seed=1&num=10")


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
            "from datamodules.sources import data_fingerprint; print(data_fingerprint('embedded:train?num=300&seed=1'))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    as_it_is = data_fingerprint("embedded:train?num=300&seed=1")
    assert fingerprint_with("dialogue.py", '"""Dialogues of the', '"""Talks of the') == as_it_is
    assert fingerprint_with("lexicon/first_names.txt", "\n", "x\n") != as_it_is
    assert fingerprint_with("rules/dialogue.yaml", "  create: 40\n", "  create: 20\n") != as_it_is


def test_over_long_turns_keep_their_row_but_have_no_loss(dialogues: str, tokenizer: object) -> None:
    short = Codec(tokenizer, "parse", "utterance", 30)
    whole = Codec(tokenizer, "parse", "utterance", 1000)
    turns = read_turns(dialogues, "dialogue")
    encoded = encode_turns(turns, short)
    lengths = np.array([len(e.input_ids) for e in whole.encode_all(turns)])
    too_long = lengths > 30
    assert 0 < too_long.sum() < len(turns)
    assert encoded.num_over_long == too_long.sum()
    np.testing.assert_array_equal(encoded.lengths, np.where(too_long, 2, lengths))
    np.testing.assert_array_equal(encoded.num_prompt == encoded.lengths, too_long)
    np.testing.assert_array_equal(encoded.unit_index, encode_turns(turns, whole).unit_index)
