"""Tokenised once, found by content, readable by the owner alone."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import datamodules.loading
import doppel.grammar
from datamodules.codec import Codec
from datamodules.encoded_turns import encode_turns
from datamodules.loading import load_encoded
from datamodules.readers import data_fingerprint, read_turns
from doppel.errors import DataError


@pytest.fixture
def num_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths that were read, instead of being found in the cache."""
    paths: list[str] = []

    def counted(path: str, unit: object, **kwargs: object) -> object:
        paths.append(path)
        return read_turns(path, unit, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(datamodules.loading, "read_turns", counted)
    return paths


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.npz"))


def test_a_second_load_is_equal_and_reads_nothing(
    dialogues: str, codec: Codec, num_reads: list[str], tmp_path: Path
) -> None:
    first = load_encoded(dialogues, codec, "dialogue")
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(Path(dialogues).read_bytes())
    second = load_encoded(str(moved), codec, "dialogue")
    assert len(num_reads) == 1
    for name in ("ids", "offsets", "num_prompt", "unit_index"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    direct = encode_turns(read_turns(dialogues, "dialogue"), codec)
    np.testing.assert_array_equal(direct.ids, second.ids)


def test_content_codec_and_unit_are_all_part_of_the_key(
    dialogues: str, codec: Codec, tokenizer: object, cache: Path
) -> None:
    load_encoded(dialogues, codec, "dialogue")
    load_encoded(dialogues, codec, "utterance")
    load_encoded(dialogues, Codec(tokenizer, None, "utterance", 64), "dialogue")
    load_encoded(dialogues, Codec(tokenizer, "parse", "utterance", 20), "dialogue")
    with Path(dialogues).open("a") as file:
        file.write('{"utterance": "one more", "parse": "(More)", "unit": "d99"}\n')
    load_encoded(dialogues, codec, "dialogue")
    assert len(entries(cache)) == 5


def test_only_the_owner_may_read(dialogues: str, codec: Codec, cache: Path) -> None:
    cache.mkdir(mode=0o755)
    load_encoded(dialogues, codec, "dialogue")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert entries(cache)
    for file in cache.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("damage", ["torn", "foreign", "inconsistent"])
def test_a_damaged_entry_is_built_anew(
    dialogues: str, codec: Codec, cache: Path, num_reads: list[str], damage: str
) -> None:
    whole = load_encoded(dialogues, codec, "dialogue")
    (entry,) = entries(cache)
    if damage == "torn":
        entry.write_bytes(entry.read_bytes()[:-100])
    elif damage == "foreign":
        entry.write_bytes(b"something else")
    else:
        with np.load(entry) as arrays:
            kept = dict(arrays)
        kept["ids"] = kept["ids"][:-1]
        np.savez(entry, **kept)
    again = load_encoded(dialogues, codec, "dialogue")
    np.testing.assert_array_equal(whole.ids, again.ids)
    assert len(num_reads) == 2
    load_encoded(dialogues, codec, "dialogue")
    assert len(num_reads) == 2, "the repaired entry is used"


def test_no_file_is_left_behind_by_a_failed_build(write_lines: Callable[..., str], codec: Codec, cache: Path) -> None:
    with pytest.raises(DataError):
        load_encoded(write_lines(["{"]), codec, "utterance")
    assert not entries(cache)


def test_a_missing_file_is_told_as_by_the_reader(codec: Codec, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        load_encoded(str(tmp_path / "nowhere.jsonl"), codec, "utterance")


def test_a_cache_folder_that_cannot_be_made(dialogues: str, codec: Codec, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(DataError, match="set DOPPEL_CACHE or cache_dir"):
        load_encoded(dialogues, codec, "utterance", cache_dir=str(blocked / "cache"))


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
            "from datamodules.readers import data_fingerprint; print(data_fingerprint('embedded:train?num=300&seed=1'))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    as_it_is = data_fingerprint("embedded:train?num=300&seed=1")
    assert fingerprint_with("dialogue.py", '"""Dialogues of the', '"""Talks of the') == as_it_is
    assert fingerprint_with("lexicon/first_names.txt", "\n", "x\n") != as_it_is
    assert fingerprint_with("dialogue.py", '"create": 40.0', '"create": 20.0') != as_it_is


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
