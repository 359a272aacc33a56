"""Topics of texts that anybody may read, and the topic that is nearest to a text: a codebook.

The centres are k-means centres of sentence embeddings; a topic is called by words that many of its texts have and few
others do (class-based TF-IDF: Grootendorst, 2022, arXiv 2203.05794), in the order in which its texts say them. A text
that is farther from every centre than all but 5 % of the public texts is of no topic: it is :data:`UNLIKE` all.

Formal guarantees:
    A codebook, its distance too, is made of samples of a private model and of public texts: post-processing of a
    training in the ledger. So the count of topics is one more mechanism on the same data, which may
    depend on what those before it released (adaptive composition), and costs what its noise says. The topic of a
    private text is a function of this text and of the codebook alone, if its embedding depends on no other text
    (`nearest`). It is one bin of them all, :data:`UNLIKE` among them: one bin more changes no sensitivity.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from doppel.errors import DataError, UserError
from doppel.files import read_json_lines, write_json_lines
from doppel.nearest import cosines, nearest, normalised, whole

Floats = NDArray[np.float32]

#: Texts that are far from every topic; no topic is called so, as names have no stop words.
UNLIKE = "unlike all topics"
#: Public texts that are.
_SHARE_UNLIKE = 0.05
#: Samples of a topic that suffice to name it.
_FEW_SAMPLES = 10
_WORDS_OF_A_NAME = 3
#: Of a topic's texts, those that a word of its name is in, unless another topic is called so already: a rare name of a
#: person is no topic.
_LEAST_SHARE = 0.1
#: A further word must tell the topic apart at least so well as the first, in part.
_LEAST_SCORE = 0.3
#: What people ask for is a verb as often as a noun; lists of stop words hold these.
_TELLING = {"call", "cry", "describe", "find", "fire", "move", "show", "system"}
#: What is in requests of every topic, or is no word by itself; lists of stop words lack these.
_EMPTY = (
    "am pm st nd rd th im ive id ill dont whats thats lets isnt cant let want like make have having need "
    "got please new thing just really actually going does did oh don didn doesn haven wasn ve ll re"
)
_ENDINGS = (("ies", "y"), ("ie", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))


@dataclass(frozen=True)
class Codebook:
    """Topics by number.

    Attributes:
        names: Of each topic, all different.
        centers: Unit vectors, [topics, D].
        encoder: What made the embeddings.
        least_cosine: Of a text's angle to the nearest centre, below which it is :data:`UNLIKE` all topics; None: any
            text has a topic.
    """

    names: tuple[str, ...]
    centers: Floats
    encoder: str
    least_cosine: float | None = None

    @property
    def bins(self) -> tuple[str, ...]:
        """What a text can be counted as."""
        return self.names if self.least_cosine is None else (*self.names, UNLIKE)

    def nearest(self, vectors_ND: Floats) -> list[str]:
        """Return the name of the centre nearest in angle to each vector, or that none is near: for each by itself.

        Formal guarantees:
            No row changes what another is nearest to, or how near that is (:mod:`doppel.nearest`).
        """
        rows, centers = whole(vectors_ND), normalised(self.centers)
        places = [place for (place,) in nearest(rows, centers, 1)]
        if self.least_cosine is None:
            return [self.names[place] for place in places]
        are_near = cosines(rows, centers, places) >= self.least_cosine
        return [self.names[place] if is_near else UNLIKE for place, is_near in zip(places, are_near, strict=True)]

    def named(self, given: str) -> str:
        """Return the topic that is meant: by its name, or by words of it that no other one has.

        Raises:
            UserError: There is none, or several.
        """
        found = [name for name in self.bins if name == given]
        found = found or [name for name in self.bins if given.lower() in name.lower()]
        if len(found) == 1:
            return found[0]
        near = found or difflib.get_close_matches(given, self.bins, n=3, cutoff=0.3) or list(self.bins[:3])
        how = "several topics have" if found else "no topic is called"
        raise UserError(f"{how} {given!r}: give one of {'; '.join(map(repr, near))}")

    def save(self, path: Path) -> None:
        """Write one JSON line a topic."""
        rows = zip(self.names, self.centers.tolist(), strict=True)
        told = {"encoder": self.encoder, "least_cosine": self.least_cosine}
        write_json_lines(path, ({"name": name, "center": center, **told} for name, center in rows))

    @classmethod
    def load(cls, path: Path) -> Codebook:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: It is no codebook.
        """
        lines = [line for _, line in read_json_lines(path)]
        try:
            centers = np.array([line["center"] for line in lines], dtype=np.float32)
            names, least = tuple(str(line["name"]) for line in lines), lines[0].get("least_cosine")
            book = cls(names, centers, str(lines[0]["encoder"]), None if least is None else float(least))
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(f"{path} is no codebook: delete it, and it is made again") from error
        return book


def make_codebook(
    samples: Sequence[str],
    public: Sequence[str],
    vectors_ND: Floats,
    num_topics: int,
    encoder: str,
    seed: int = 1,
    name_topics: bool = True,
) -> Codebook:
    """Cluster the embeddings of samples and public texts, both of which weigh the same.

    Samples have the themes that the public texts lack, and name the topics that they fall into; public texts have the
    themes that a model of few units has not learnt.

    Args:
        samples: Samples of a private model, if any; the same text several times counts several times.
        public: Public texts, if any.
        vectors_ND: Unit vectors of the samples, then of the public texts.
        num_topics: How many topics.
        encoder: What made the embeddings.
        seed: Of k-means.
        name_topics: Whether topics are called by their words, and a text may be of none; else they are numbered.

    Raises:
        DataError: There are fewer different texts than topics.
    """
    texts = [*samples, *public]
    if not 2 <= num_topics <= len(set(texts)):
        what = "topics" if name_topics else "clusters"
        raise DataError(
            f"{num_topics} {what} are to be made of {len(set(texts))} different texts: give at least 2 {what}, and "
            "several different texts for each"
        )
    from sklearn.cluster import KMeans

    is_sample = np.arange(len(texts)) < len(samples)
    weights = np.where(is_sample, 1 / max(1, len(samples)), 1 / max(1, len(public))) * len(texts)
    clusters = KMeans(num_topics, n_init=4, random_state=seed).fit(vectors_ND, sample_weight=weights)
    norms = np.linalg.norm(clusters.cluster_centers_, axis=1, keepdims=True)
    centers = (clusters.cluster_centers_ / np.maximum(norms, 1e-12)).astype(np.float32)
    if not name_topics:
        return Codebook(tuple(f"cluster {place + 1}" for place in range(num_topics)), centers, encoder)
    found = [
        [[text for text, own in zip(part, labels, strict=True) if own == k] for k in range(num_topics)]
        for part, labels in ((samples, clusters.labels_[is_sample]), (public, clusters.labels_[~is_sample]))
    ]
    members = [own if len(own) >= _FEW_SAMPLES else own + known for own, known in zip(*found, strict=True)]
    near = (vectors_ND[~is_sample] if public else vectors_ND) @ centers.T
    return Codebook(tuple(names_of(members)), centers, encoder, float(np.quantile(near.max(axis=1), _SHARE_UNLIKE)))


def names_of(members: Sequence[Sequence[str]]) -> list[str]:
    """Name each group of texts by two or three words of many of them that few texts of the other groups have.

    No stop words, no numbers, no two forms of one word; in the order in which the texts say them, so that they read as
    one: "cancel next meeting", not "meeting next cancel".

    Args:
        members: Texts of each group.

    Returns:
        Names, all different; "other" where a group has no word.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    stop_words = (ENGLISH_STOP_WORDS - _TELLING) | {*_EMPTY.split()}
    found = [[re.findall(r"[^\W\d_]{2,}", text.lower()) for text in texts] for texts in members]
    shares = [
        Counter(stem for words in texts for stem in {_stem(word) for word in words if word not in stop_words})
        for texts in found
    ]
    shares = [
        Counter({stem: n / len(texts) for stem, n in own.items()}) for own, texts in zip(shares, found, strict=True)
    ]
    everywhere = sum(shares, Counter())
    forms = Counter(word for texts in found for words in texts for word in words)
    shown: dict[str, str] = {}
    for word, _ in forms.most_common():
        if word not in stop_words:
            shown.setdefault(_stem(word), word)
    names: list[str] = []
    for own, texts in zip(shares, found, strict=True):
        scores = {s: share * np.log1p(len(members) * share / everywhere[s]) for s, share in own.items()}
        ranked = sorted(scores, key=lambda stem: (own[stem] < _LEAST_SHARE, -scores[stem], stem))
        num_common = sum(share >= _LEAST_SHARE for share in own.values()) or len(ranked)
        close = [stem for stem in ranked[:num_common] if scores[stem] >= _LEAST_SCORE * scores[ranked[0]]]
        place = _places(texts)
        for length in range(min(_WORDS_OF_A_NAME, max(2, len(close)), num_common), len(ranked) + 1):
            name = " ".join(shown[stem] for stem in sorted(ranked[:length], key=lambda stem: place[stem])) or "other"
            if name not in names:
                break
        names.append(name if name not in names and name != "other" else f"{name} {len(names) + 1}")
    return names


def _places(texts: Sequence[Sequence[str]]) -> dict[str, float]:
    """Where in a text each word stands on average, from 0 at its begin to 1 at its end."""
    places: dict[str, list[float]] = defaultdict(list)
    for words in texts:
        for place, word in enumerate(words):
            places[_stem(word)].append(place / len(words))
    return {stem: fmean(own) for stem, own in places.items()}


def _stem(word: str) -> str:
    """What forms of a word have in common, roughly: ``meeting``, ``meetings`` and ``meet``."""
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            stem = word.removesuffix(ending) + instead
            stem = stem if stem == word else _stem(stem)
            return stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "ls" else stem
    return word
