"""A stand-in for a semantic parser: the tree of the most similar annotated utterance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from tqdm import tqdm


class NearestTrees:
    """Labels utterances with the parse tree of their nearest annotated neighbour. It is not a parser.

    Similarity is the cosine of TF-IDF vectors of words, word pairs and character 3- and 4-grams inside words.

    What it can tell: which of the annotated requests the utterances come close to, so overlap and χ² over
    these trees are coverage figures, on the same footing for samples with trees and without.
    What it cannot tell: whether an utterance means what the tree says (nonsense has a nearest neighbour too),
    nor anything about functions that the annotated file lacks. Where the annotated file is the reference of
    the comparison, the figures are circular: no sample can leave the reference's functions.
    """

    def __init__(self, utterances: Sequence[str], trees: Sequence[str]) -> None:
        """Index annotated utterances.

        Args:
            utterances: annotated utterances; one seen with several trees keeps the most frequent (then the
                first).
            trees: their trees, equally many.

        Raises:
            ValueError: no annotated utterance, or not one tree for each.
        """
        if not utterances or len(utterances) != len(trees):
            raise ValueError(f"need one tree for each of at least one utterance, got {len(utterances)}, {len(trees)}")
        seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for utterance, tree in zip(utterances, trees, strict=True):
            seen[utterance][tree] += 1
        self._trees = [counts.most_common(1)[0][0] for counts in seen.values()]
        self._vectorizers = (
            TfidfVectorizer(token_pattern=r"\S+", ngram_range=(1, 2), dtype=np.float32, sublinear_tf=True),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), dtype=np.float32, sublinear_tf=True),
        )
        for vectorizer in self._vectorizers:
            vectorizer.fit([*seen, "unused"])  # one sure word: a vocabulary must not be empty
        self._index = self._vectors(list(seen)).T.tocsr()

    def _vectors(self, utterances: Sequence[str]) -> csr_matrix:
        return hstack([vectorizer.transform(utterances) for vectorizer in self._vectorizers]).tocsr()

    def annotate(self, utterances: Sequence[str], batch_size: int = 256) -> list[str]:
        """Trees of the nearest annotated utterances; equally near ones: the first annotated wins.

        Args:
            utterances: what to label.
            batch_size: utterances compared at once (memory: 4 bytes times this times the annotated
                utterances).
        """
        distinct = list(dict.fromkeys(utterances))
        found: dict[str, str] = {}
        for start in tqdm(range(0, len(distinct), batch_size), desc="nearest trees", disable=None):
            batch = distinct[start : start + batch_size]
            similarity = (self._vectors(batch) @ self._index).toarray()
            for utterance, best in zip(batch, similarity.argmax(axis=1), strict=True):
                found[utterance] = self._trees[int(best)]
        return [found[utterance] for utterance in utterances]
