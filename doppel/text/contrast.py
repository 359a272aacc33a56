"""Words that set a group of texts apart from others (class-based TF-IDF: Grootendorst, 2022, arXiv 2203.05794)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from doppel.text.words import FRAME, stem_of, words_of

_WORDS = 3
#: Of a group's texts, those that a word is in at least: a rare name of a person sets nothing apart.
_LEAST_SHARE = 0.1
#: A further word must set the group apart at least so well as the first, in part.
_LEAST_SCORE = 0.3
#: What people ask for is a verb as often as a noun; lists of stop words hold these.
_TELLING = {"call", "cry", "describe", "find", "fire", "move", "show", "system"}
#: What is in requests of every topic, which lists of stop words lack, beside :data:`~doppel.text.words.FRAME`.
_EMPTY = "pls regards asap urgent bother quick question way isn aren won couldn wouldn shouldn hasn hadn weren"


def words_of_groups(members: Sequence[Sequence[str]]) -> list[list[tuple[str, float]]]:
    """Return of each group up to three words of many of its texts that few texts of the others have, the best first.

    No stop words, greetings, fillers, numbers, parts of words, nor two forms of one word.

    Args:
        members: Texts of each group.

    Returns:
        Words, each with the share of the group's texts that have a form of it.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    stop_words = (ENGLISH_STOP_WORDS - _TELLING) | {*FRAME.split(), *_EMPTY.split()}
    telling = [[{*words_of(text)} - stop_words for text in texts] for texts in members]
    forms = Counter(word for own in telling for words in own for word in words)
    shown: dict[str, str] = {}
    for word, _ in forms.most_common():
        shown.setdefault(stem_of(word), word)
    shares: list[dict[str, float]] = []
    for own in telling:
        counts = Counter(stem for words in own for stem in {stem_of(word) for word in words})
        shares.append({stem: n / len(own) for stem, n in counts.items()})
    everywhere: dict[str, float] = defaultdict(float)
    for own in shares:
        for stem, share in own.items():
            everywhere[stem] += share
    told = []
    for own in shares:
        scores = {s: n * np.log1p(len(members) * n / everywhere[s]) for s, n in own.items() if n >= _LEAST_SHARE}
        ranked = sorted(scores, key=lambda stem: (-scores[stem], stem))[:_WORDS]
        close = [stem for stem in ranked if scores[stem] >= _LEAST_SCORE * scores[ranked[0]]]
        told.append([(shown[stem], own[stem]) for stem in close])
    return told
