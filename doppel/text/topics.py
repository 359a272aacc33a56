"""Themes and topics of texts that anybody may read, and the topic that is nearest to a text: a codebook.

Themes are clusters of the first 50 principal components of public texts' embeddings, by k-means that begins at the
clusters of Ward's tree (Ward, 1963), so that no seed chooses them. Each is divided likewise into topics, in proportion
to its texts. A topic is called by a sentence: the shortest of the ten public texts nearest to its centre; a theme, of
the three. Beside it stand words that set its texts apart (class-based TF-IDF: Grootendorst, 2022,
arXiv 2203.05794). A text that is farther from every centre than all but 5 % of the public texts is of none: it is
:data:`UNLIKE` all. Samples of the private model that are so are clustered, too: topics that nobody expected, each a
theme of its own, called by its words, for a sample is no evidence of what anybody said.

Formal guarantees:
    A codebook, its distance too, is made of samples of a private model and of public texts: post-processing of a
    training in the ledger. So the count of topics is one more mechanism on the same data, which may
    depend on what those before it released (adaptive composition), and costs what its noise says. The topic of a
    private text is a function of this text and of the codebook alone, if its embedding depends on no other text
    (`nearest`). It is one bin of them all, :data:`UNLIKE` among them: more bins change no sensitivity. The count of a
    theme is the sum of its topics' noisy counts, and its noise that of them together.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from doppel.errors import DataError, UserError
from doppel.files import read_json_lines, write_json_lines
from doppel.nearest import cosines, nearest, normalised, whole
from doppel.text.contrast import words_of_groups

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

#: Texts that are far from every topic; no topic is called so.
UNLIKE = "unlike all topics"
#: What nothing can name is called so, with a number.
NO_NAME = "no clear name"
#: Public texts that are unlike all topics.
_SHARE_UNLIKE = 0.05
_COMPONENTS, _TOPICS_A_THEME = 50, 4
#: Texts that a Ward's tree is made of, at most: its memory and time grow with their square.
_IN_TREE = 4_000
#: A topic is called by the shortest of so many public texts nearest to its centre; a theme, which is wider, of fewer.
_NEAR, _NEAR_OF_THEME = 10, 3
#: With fewer different public texts a topic, topics are made of samples too, both kinds weighing the same.
_TEXTS_A_TOPIC = 5
#: Expected topics for one that nobody expected, at least; and samples of such a one, on average.
_EXPECTED_TIMES, _FEW_SAMPLES = 8, 10
#: Characters of a sentence.
_LONGEST = 120
#: Of samples, those that the first word of a name is in at least.
_LEAST_NAMING = 0.2


@dataclass(frozen=True)
class Codebook:
    """Topics by number, those that nobody expected last.

    Attributes:
        names: Of each topic, all different.
        centers: Unit vectors, [topics, D].
        encoder: What made the embeddings.
        least_cosine: Of a text's angle to the nearest centre, below which it is :data:`UNLIKE` all topics; None: any
            text has a topic.
        themes: Of each topic the name of its theme; empty: topics have none.
        words: Of each topic, and of each theme, the words that set it apart.
        num_unexpected: How many of the topics are of samples that are unlike the public texts.
    """

    names: tuple[str, ...]
    centers: Floats
    encoder: str
    least_cosine: float | None = None
    themes: tuple[str, ...] = ()
    words: dict[str, tuple[str, ...]] | None = None
    num_unexpected: int = 0

    @property
    def bins(self) -> tuple[str, ...]:
        """What a text can be counted as."""
        return self.names if self.least_cosine is None else (*self.names, UNLIKE)

    @property
    def unexpected(self) -> tuple[str, ...]:
        """Topics that nobody expected."""
        return self.names[len(self.names) - self.num_unexpected :]

    def nearest(self, vectors_ND: Floats) -> list[str]:
        """Return the topic of each vector, for each by itself.

        It is the expected topic whose centre is nearest in angle, if that is near; else the nearest that nobody
        expected, if that is; else :data:`UNLIKE`.

        Formal guarantees:
            No row changes what another is nearest to, or how near that is (:mod:`doppel.nearest`).
        """
        rows, centers = whole(vectors_ND), normalised(self.centers)
        num_expected = len(self.names) - self.num_unexpected
        found = [UNLIKE] * len(rows)
        for start, stop in ((num_expected, len(self.names)), (0, num_expected)):
            if start == stop:
                continue
            places = [place for (place,) in nearest(rows, centers[start:stop], 1)]
            cosine = cosines(rows, centers[start:stop], places)
            is_near = np.full(len(rows), True) if self.least_cosine is None else cosine >= self.least_cosine
            found = [self.names[start + p] if near else f for p, near, f in zip(places, is_near, found, strict=True)]
        return found

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
        told = {"encoder": self.encoder, "least_cosine": self.least_cosine}
        num_expected, words = len(self.names) - self.num_unexpected, self.words or {}
        lines = []
        for place, (name, center) in enumerate(zip(self.names, self.centers.tolist(), strict=True)):
            line = {"name": name, "center": center, **told}
            if self.themes:
                theme = self.themes[place]
                line |= {"theme": theme, "is_expected": place < num_expected}
                line |= {"words": words.get(name, ()), "theme_words": words.get(theme, ())}
            lines.append(line)
        write_json_lines(path, lines)

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
            if "theme" in lines[0]:
                words = {str(line["theme"]): tuple(line["theme_words"]) for line in lines}
                words |= {str(line["name"]): tuple(line["words"]) for line in lines}
                themes = tuple(str(line["theme"]) for line in lines)
                num_unexpected = sum(not line["is_expected"] for line in lines)
                book = cls(names, centers, book.encoder, book.least_cosine, themes, words, num_unexpected)
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(f"{path} is no codebook: delete it, and it is made again") from error
        return book


def make_clusters(texts: Sequence[str], vectors_ND: Floats, number: int, encoder: str, seed: int = 1) -> Codebook:
    """Cluster embeddings of samples, without names.

    Args:
        texts: Samples.
        vectors_ND: Their unit vectors.
        number: How many clusters.
        encoder: What made the embeddings.
        seed: Of k-means.

    Raises:
        DataError: There are fewer different texts than clusters.
    """
    from sklearn.cluster import KMeans

    _check(number, len(set(texts)), "clusters")
    labels = KMeans(number, n_init=4, random_state=seed).fit(vectors_ND).labels_
    centers = np.stack([_unit(vectors_ND[labels == k].mean(axis=0)) for k in range(number)])
    return Codebook(tuple(f"cluster {place + 1}" for place in range(number)), centers, encoder)


def make_codebook(
    samples: Sequence[str],
    public: Sequence[str],
    vectors_ND: Floats,
    num_topics: int,
    encoder: str,
) -> Codebook:
    """Make themes and topics of public texts, and topics that nobody expected of samples that are unlike them.

    Where public texts are few, themes and topics are of both together, of the same weight; without any, of samples.

    Args:
        samples: Samples of a private model, if any; the same text several times counts several times.
        public: Public texts, if any.
        vectors_ND: Unit vectors of the samples, then of the public texts.
        num_topics: How many expected topics, some four a theme.
        encoder: What made the embeddings.

    Raises:
        DataError: There are fewer different texts than topics.
    """
    texts = [*samples, *public]
    is_public = np.arange(len(texts)) >= len(samples)
    are_enough = _num_different(vectors_ND[is_public]) >= _TEXTS_A_TOPIC * num_topics
    own = np.flatnonzero(is_public | (not are_enough))
    _check(num_topics, min(len({texts[i] for i in own}), _num_different(vectors_ND[own])), "topics")
    counts = np.where(is_public, max(1, len(public)), max(1, len(samples)))[own]
    theme_of_text, topic_of_text, shown = _top_down(vectors_ND[own], len(own) / counts, num_topics)
    members = [own[topic_of_text == k] for k in range(num_topics)]
    theme_of = [int(theme_of_text[topic_of_text == k][0]) for k in range(num_topics)]
    wide = [own[theme_of_text == t] for t in range(max(theme_of) + 1)]
    centers = np.stack([_unit(vectors_ND[i].mean(axis=0)) for i in members])
    cosine = vectors_ND @ centers.T
    known = is_public if public else ~is_public
    least = float(np.quantile(cosine[known].max(axis=1), _SHARE_UNLIKE))
    far = np.flatnonzero(~is_public & (cosine.max(axis=1) < least)) if are_enough else np.array([], dtype=np.int64)
    number = min(max(1, num_topics // _EXPECTED_TIMES), _num_different(vectors_ND[far]) // _FEW_SAMPLES)
    if number:
        labels = _grouped(vectors_ND[far], np.ones(len(far)), number)
        members += [far[labels == k] for k in range(number)]
        centers = np.stack([*centers, *(_unit(vectors_ND[far[labels == k]].mean(axis=0)) for k in range(number))])
    words = words_of_groups([[texts[i] for i in group] for group in members])
    wide_words = words_of_groups([[texts[i] for i in group] for group in wide])
    taken = {UNLIKE}
    names = [
        _unique(_sentence(texts, group, vectors_ND[group], is_public, _NEAR) or _by_words(own_words), taken)
        for group, own_words in zip(members[:num_topics], words, strict=False)
    ]
    themes = [
        _unique(
            _sentence(texts, group, shown[theme_of_text == t], is_public, _NEAR_OF_THEME) or _by_words(own_words),
            others,
        )
        for others in [{UNLIKE}]
        for t, (group, own_words) in enumerate(zip(wide, wide_words, strict=True))
    ]
    found = {themes[t]: tuple(word for word, _ in wide_words[t]) for t in range(len(themes))}
    of_topic = [themes[t] for t in theme_of]
    for place in range(num_topics, len(members)):
        near = int((centers[place] @ centers[:num_topics].T).argmax())
        named = _by_words(words[place], _LEAST_NAMING)
        names.append(_unique(named or f"{NO_NAME}, nearest to “{names[near]}”", taken | {*themes}))
        taken.add(names[-1])
        of_topic.append(names[-1])
    found |= {name: tuple(word for word, _ in own_words) for name, own_words in zip(names, words, strict=True)}
    return Codebook(tuple(names), centers, encoder, least, tuple(of_topic), found, len(members) - num_topics)


def num_themes(num_topics: int) -> int:
    """Return how many themes so many topics have."""
    return max(2, num_topics // _TOPICS_A_THEME)


def _top_down(vectors_ND: Floats, weights_N: NDArray[np.floating], number: int) -> tuple[Ints, Ints, Floats]:
    """Of each text its theme, its topic and its components; themes are divided into topics by their weight."""
    from sklearn.decomposition import PCA

    num_components = min(_COMPONENTS, len(vectors_ND) - 1, vectors_ND.shape[1])
    shown = PCA(num_components, svd_solver="full").fit_transform(vectors_ND).astype(np.float64)
    shown /= np.maximum(np.linalg.norm(shown, axis=1, keepdims=True), 1e-12)
    number_of_themes = min(num_themes(number), _num_different(shown))
    themes = _grouped(shown, weights_N, number_of_themes)
    parts = [1] * (int(themes.max()) + 1)
    most = [_num_different(vectors_ND[themes == t]) for t in range(len(parts))]
    sizes = [float(weights_N[themes == t].sum()) for t in range(len(parts))]
    while sum(parts) < number:  # to the theme whose topics are the largest
        parts[max((t for t in range(len(parts)) if parts[t] < most[t]), key=lambda t: sizes[t] / parts[t])] += 1
    topics, first = np.zeros(len(shown), dtype=np.int64), 0
    for t, part in enumerate(parts):
        own = themes == t
        points = shown[own] if _num_different(shown[own]) >= part else vectors_ND[own]
        topics[own] = first + _grouped(points, weights_N[own], part)
        first += part
    return themes, topics, shown


def _grouped(points_ND: NDArray[np.floating], weights_N: NDArray[np.floating], number: int) -> Ints:
    """Cluster by k-means that begins at the centres of Ward's clusters.

    A tree is made of some points, evenly by weight. Where these have too few different ones, k-means begins at random.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage
    from sklearn.cluster import KMeans

    if number == 1:
        return np.zeros(len(points_ND), dtype=np.int64)
    up_to, num_drawn = np.cumsum(weights_N), min(len(points_ND), _IN_TREE)
    drawn = points_ND[np.searchsorted(up_to, (np.arange(num_drawn) + 0.5) / num_drawn * up_to[-1])]
    if _num_different(drawn) < number:
        found = KMeans(number, n_init=10, random_state=1).fit(points_ND, sample_weight=weights_N)
    else:
        labels = cut_tree(linkage(drawn, "ward"), number)[:, 0]
        begin = np.stack([drawn[labels == k].mean(axis=0) for k in range(number)])
        found = KMeans(number, init=begin, n_init=1).fit(points_ND, sample_weight=weights_N)
    return found.labels_.astype(np.int64)


def _sentence(texts: Sequence[str], group: Ints, points_ND: Floats, is_public: NDArray[np.bool_], num_near: int) -> str:
    """The shortest of the public texts that are nearest to the centre of a group; empty where it has none."""
    known = is_public[group]
    if not known.any():
        return ""
    points = points_ND[known]
    near = group[known][np.argsort(-(points @ points.mean(axis=0)), kind="stable")[:num_near]]
    shortest = " ".join(min((texts[i] for i in near), key=len).split())
    return shortest if len(shortest) <= _LONGEST else shortest[: _LONGEST - 1].rsplit(" ", 1)[0] + "…"


def _by_words(words: Sequence[tuple[str, float]], least: float = 0.0) -> str:
    """A name of words; empty where fewer texts than that have the first."""
    return ", ".join(word for word, _ in words) if words and words[0][1] >= least else ""


def _unique(name: str, taken: set[str]) -> str:
    name, number = name or NO_NAME, 1
    while (told := name if number == 1 else f"{name} ({number})") in taken:
        number += 1
    taken.add(told)
    return told


def _unit(vector_D: NDArray[np.floating]) -> Floats:
    return (vector_D / max(float(np.linalg.norm(vector_D)), 1e-12)).astype(np.float32)


def _num_different(vectors_ND: NDArray[np.floating]) -> int:
    return len(np.unique(np.round(vectors_ND, 5), axis=0)) if len(vectors_ND) else 0


def _check(number: int, found: int, what: str) -> None:
    if not 2 <= number <= found:
        raise DataError(
            f"{number} {what} are to be made of {found} different texts: give at least 2 {what}, and several different "
            "texts for each"
        )
