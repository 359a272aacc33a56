"""Vectors of private texts, read a part at a time: the same bits, kept for who goes on, and gone at the end."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from commands.privacy import feature_extractors
from commands.privacy.feature_extractors import forget_embedded, in_parts
from doppel.models.encoders import TextFeaturizer

TEXTS = [f"{'please ' * (i % 5)}remind me of {'milk and ' * (i % 3)}number {i}" for i in range(40)]


class Reader:
    """Reads as the encoder does, counts the texts, and is stopped after some."""

    def __init__(self, stop_after: int = 99) -> None:
        self.read, self.left = TextFeaturizer("models/base", pooling="mean").read, stop_after
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        if not self.left:
            raise SystemExit(75)
        self.left -= 1
        self.texts += texts
        return self.read(texts, independent=True).numpy()


def test_a_stopped_step_goes_on_with_the_parts_that_it_has_and_no_split_changes_a_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Reader()(TEXTS)
    monkeypatch.setattr(feature_extractors, "_PART", 7)
    first = Reader(stop_after=3)
    with pytest.raises(SystemExit):
        in_parts(TEXTS, "base", tmp_path, first)
    second = Reader()
    vectors = in_parts(TEXTS, "base", tmp_path, second)
    assert (first.texts, second.texts) == (TEXTS[:21], TEXTS[21:])
    assert vectors.tobytes() == whole.tobytes()
    files = list((tmp_path / feature_extractors.EMBEDDED).iterdir())
    assert len(files) == 6 and {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    other = Reader()
    in_parts(TEXTS[:7], "another encoder", tmp_path, other)
    assert other.texts == TEXTS[:7], "vectors of another encoder are none of this one's"
    forget_embedded(tmp_path)
    assert not list(tmp_path.iterdir())


def test_names_of_parts_do_not_tell_who_has_the_same_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for key in ("first", "second"):
        monkeypatch.setenv("DOPPEL_KEY", str(tmp_path / f"{key}.key"))
        in_parts(["a", "b"], "base", tmp_path / key, lambda texts: np.ones((len(texts), 2), np.float32))
        names.append([path.name for path in (tmp_path / key / feature_extractors.EMBEDDED).iterdir()])
    assert names[0] != names[1]
