"""Public word vectors: the input embeddings of a public model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doppel.errors import DataError
from doppel.text.words import tokens_of

Floats = NDArray[np.float64]

#: Words whose distances to all others tell what a distance is worth.
_LOOKED_AT = 500


@dataclass(frozen=True)
class WordVectors:
    """A vector for each word of a public vocabulary, and for any other word.

    Attributes:
        words: The vocabulary, V distinct words.
        vectors: Of each, [V, D].
        outside: Vectors of words that it lacks, [n, D]: a public function of each word alone.
    """

    words: tuple[str, ...]
    vectors: Floats
    outside: Callable[[Sequence[str]], Floats]

    def __post_init__(self) -> None:
        if len(self.words) < 2 or len(set(self.words)) < len(self.words):
            raise DataError(f"a vocabulary of {len(self.words)} words, or with one twice: give distinct words")

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def _squares(self) -> NDArray[np.float64]:
        return np.square(self.vectors).sum(1)

    def places(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of each word in the vocabulary, −1 for one that is not in it, [n]."""
        return np.array([self._numbers.get(word, -1) for word in words], dtype=np.int64)

    def of(self, words: Sequence[str]) -> Floats:
        """Return the vector of each word, [n, D]."""
        places = self.places(words)
        found = self.vectors[places]
        missing = sorted({word for word, place in zip(words, places, strict=True) if place < 0})
        if missing:
            made = dict(zip(missing, self.outside(missing), strict=True))
            for row in np.flatnonzero(places < 0).tolist():
                found[row] = made[words[row]]
        return found

    def distances(self, points_ND: NDArray[Any]) -> Floats:
        """Return the Euclidean distance of each point to each word, [n, V], in float64 (in float32, 0 reads .001)."""
        squares = np.square(points_ND).sum(1)[:, None] + self._squares - 2.0 * points_ND @ self.vectors.T
        distances: Floats = np.sqrt(np.maximum(squares, 0.0))
        return distances

    def nearest(self, points_ND: NDArray[Any]) -> NDArray[np.int64]:
        """Return the nearest word of each point, by its number, [n]; in single precision, which may swap equals."""
        halves = (0.5 * self._squares).astype(np.float32) - points_ND.astype(np.float32) @ self._single.T
        places: NDArray[np.int64] = halves.argmin(1)
        return places

    @cached_property
    def _single(self) -> NDArray[np.float32]:
        return self.vectors.astype(np.float32)

    def scale(self) -> tuple[float, float]:
        """Return what a distance is worth: the median distance of two words, and of a word to its nearest one."""
        step = max(len(self.words) // _LOOKED_AT, 1)
        distances = self.distances(self.vectors[::step])
        distances[np.arange(len(distances)), np.arange(len(distances)) * step] = np.inf
        return float(np.median(distances[np.isfinite(distances)])), float(np.median(distances.min(1)))


def input_vectors(folder: str) -> WordVectors:
    """Return input embeddings of a Hugging Face model: of whole words, else the mean over the word's pieces.

    Args:
        folder: Folder or hub name of a public model, such as a sentence encoder.

    Raises:
        ModelError: The model cannot be loaded.
        DataError: Its vocabulary has no whole words.
    """
    from doppel.models.load import load_with_tokenizer

    model, tokenizer = load_with_tokenizer(folder, "encoder")
    table = model.get_input_embeddings().weight.detach().double().cpu().numpy()

    def ids_of(words: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
        return ids

    special = set(tokenizer.all_special_tokens)
    candidates = {
        word for token in tokenizer.get_vocab() if token not in special for word in tokens_of(_plain(token))[:1]
        if word == _plain(token).lower()
    }  # fmt: skip
    ordered = sorted(candidates)
    single = {word: ids[0] for word, ids in zip(ordered, ids_of(ordered), strict=True) if len(ids) == 1}
    if len(single) < 2:
        raise DataError(f"{folder} has no whole words among its tokens: give another --encoder, such as minilm")
    unknown = tokenizer.unk_token_id
    known = tuple(word for word, token in single.items() if token != unknown)
    vectors = table[[single[word] for word in known]]

    def outside(words: Sequence[str]) -> Floats:
        return np.stack([table[ids].mean(0) if ids else np.zeros_like(table[0]) for ids in ids_of(words)])

    return WordVectors(known, vectors, outside)


def _plain(token: str) -> str:
    """A token as text: without the sign that it begins a word; that of the middle of a word is no letter."""
    return token.removeprefix("Ġ").removeprefix("▁")
