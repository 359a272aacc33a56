"""Topics of texts that anybody may read, and the topic that is nearest to a text: a codebook.

The centres are k-means centres of sentence embeddings; a topic is called by the words that are commoner in it than in
the others (class-based TF-IDF: Grootendorst, 2022, arXiv 2203.05794).

Formal guarantees:
    A codebook is made of texts that are public, or samples of a private model. The topic of a private text is a
    function of this text and of the codebook alone, if its embedding is computed by itself (`nearest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from doppel.errors import DataError
from doppel.files import read_json_lines, write_json_lines

Floats = NDArray[np.float32]

_WORDS_OF_A_NAME = 3


@dataclass(frozen=True)
class Codebook:
    """Topics by number.

    Attributes:
        names: Of each topic, all different.
        centers: Unit vectors, [topics, D].
        encoder: What made the embeddings.
    """

    names: tuple[str, ...]
    centers: Floats
    encoder: str

    def nearest(self, vectors_ND: Floats) -> list[str]:
        """The name of the centre nearest in angle to each vector."""
        return [self.names[i] for i in (vectors_ND @ self.centers.T).argmax(axis=1)]

    def save(self, path: Path) -> None:
        """Write one JSON line a topic."""
        rows = zip(self.names, self.centers.tolist(), strict=True)
        write_json_lines(path, ({"name": name, "center": center, "encoder": self.encoder} for name, center in rows))

    @classmethod
    def load(cls, path: Path) -> Codebook:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: It is no codebook.
        """
        lines = [line for _, line in read_json_lines(path)]
        try:
            centers = np.array([line["center"] for line in lines], dtype=np.float32)
            book = cls(tuple(str(line["name"]) for line in lines), centers, str(lines[0]["encoder"]))
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(f"{path} is no codebook: delete it, and it is made again") from error
        return book


def make_codebook(texts: Sequence[str], vectors_ND: Floats, num_topics: int, encoder: str, seed: int = 1) -> Codebook:
    """Cluster the embeddings of texts.

    Args:
        texts: Public texts, or samples of a private model; the same text several times counts several times.
        vectors_ND: Their embeddings, unit vectors.
        num_topics: How many topics.
        encoder: What made the embeddings.
        seed: Of k-means.

    Raises:
        DataError: There are fewer different texts than topics.
    """
    if not 2 <= num_topics <= len(set(texts)):
        raise DataError(
            f"{num_topics} topics are to be made of {len(set(texts))} different texts: give at least 2 topics, and "
            "several different texts for each"
        )
    from sklearn.cluster import KMeans

    clusters = KMeans(num_topics, n_init=4, random_state=seed).fit(vectors_ND)
    norms = np.linalg.norm(clusters.cluster_centers_, axis=1, keepdims=True)
    centers = (clusters.cluster_centers_ / np.maximum(norms, 1e-12)).astype(np.float32)
    members = [[text for text, own in zip(texts, clusters.labels_, strict=True) if own == k] for k in range(num_topics)]
    return Codebook(tuple(names_of(members)), centers, encoder)


def names_of(members: Sequence[Sequence[str]]) -> list[str]:
    """A name for each group of texts: its words that are commoner in it than in the others.

    Args:
        members: Texts of each group.

    Returns:
        Names, all different; "other" where a group has no word.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

    counter = CountVectorizer(token_pattern=r"(?u)\b[^\W\d_]{2,}\b", stop_words=sorted(ENGLISH_STOP_WORDS))
    try:
        counts_KV = counter.fit_transform([" ".join(texts) for texts in members]).toarray().astype(np.float64)
    except ValueError:  # nothing but stop words
        return [f"other {k + 1}" for k in range(len(members))]
    shares_KV = counts_KV / np.maximum(counts_KV.sum(axis=1, keepdims=True), 1)
    scores_KV = shares_KV * np.log1p(counts_KV.sum() / len(members) / np.maximum(counts_KV.sum(axis=0), 1))
    words, taken, names = counter.get_feature_names_out(), set[str](), []
    for scores in scores_KV:
        ranked = [str(words[i]) for i in np.argsort(-scores, kind="stable") if scores[i] > 0]
        name, length = " ".join(ranked[:_WORDS_OF_A_NAME]) or "other", _WORDS_OF_A_NAME
        while name in taken:
            length += 1
            name = " ".join(ranked[:length]) if length <= len(ranked) else f"{name} {len(taken) + 1}"
        taken.add(name)
        names.append(name)
    return names
