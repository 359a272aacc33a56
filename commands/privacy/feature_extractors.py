"""What a resampling counts of a text: the function types of its tree, or its topic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commands.privacy.embedded_parts import in_parts, trees_of
from datamodules.reading.columns import Columns
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest, expand_path
from doppel.errors import UserError
from doppel.lispress import is_valid
from doppel.resampling import pool_bins, tree_vector
from doppel.text.topics import Codebook, Floats, make_clusters, make_codebook

if TYPE_CHECKING:
    from doppel.models.encoders import TextFeaturizer
    from doppel.models.text_reader import Keep
    from lightning_modules.semantic_parser import SemanticParser

#: What votes are for; nobody reads them on a page.
CLUSTERS = "clusters of samples"
#: Tokens of a text that are embedded: sentence encoders learn from short texts.
_MAX_LENGTH = 256


class FeatureExtractor(ABC):
    """Extract of each text a feature that has entries in the bins of a histogram.

    Formal guarantees:
        What is read of a private text is a function of this text and of public things (or of samples of a private
        model), to the last bit: in a batch, rounding could let one unit change what is read of another. So a parser
        reads private texts one by one, and an encoder as :meth:`doppel.models.encoders.TextFeaturizer.read` does where
        ``independent``. No progress bar counts them.

    Attributes:
        what: What is counted, in words.
        of: What the pool holds: ``trees`` or ``utterances``.
        field: Where a line of the pool, and a private turn, has it.
        label: Field of a drawn line that is set to what was read; None for none.
        digest: Of the file that reads; None without one.
    """

    what: str
    of, field = "utterances", "utterance"
    label: str | None = None
    digest: str | None = None

    @abstractmethod
    def extract(self, texts: Sequence[str], independent: bool) -> list[str]:
        """Extract the feature of each text; empty where it cannot be drawn.

        Args:
            texts: Texts.
            independent: Whether no text changes what another is read as: for private texts.
        """

    def extract_private(self, turns: Sequence[Example]) -> list[str]:
        """Extract features of private turns, each from its own turn alone."""
        return self.extract([getattr(turn, self.field) or "" for turn in turns], True)

    @property
    def told(self) -> dict[str, Any]:
        """What the file of a release says of its bins, of public things and of samples."""
        return {}

    @abstractmethod
    def bins(self, readings: Sequence[str]) -> dict[str, float]:
        """Return the bins and their weights, from the features of the pool."""

    @abstractmethod
    def vector(self, reading: str, bins: Mapping[str, float]) -> dict[str, float]:
        """Return the histogram entries of a feature, of L2 norm at most 1."""


class Trees(FeatureExtractor):
    """Function types of trees that a model wrote."""

    what, of, field = "function types", "trees", "parse"

    def extract(self, texts: Sequence[str], independent: bool) -> list[str]:
        """Extract the trees, where they are well-formed."""
        return [text if is_valid(text) else "" for text in texts]

    def bins(self, readings: Sequence[str]) -> dict[str, float]:
        """See :func:`~doppel.resampling.pool_bins`."""
        return pool_bins(readings)

    def vector(self, reading: str, bins: Mapping[str, float]) -> dict[str, float]:
        """See :func:`~doppel.resampling.tree_vector`."""
        return tree_vector(reading, bins)


class ParsedTrees(Trees):
    """Function types of the trees that a public parser reads utterances as.

    Args:
        parser: Its checkpoint.
        folder: Of the step, where parts of private trees are kept (:func:`~commands.privacy.embedded_parts.in_parts`).
        out: What the step writes, beside which those of the pool are.
    """

    of, field = "utterances", "utterance"

    def __init__(self, parser: Path, folder: Path, out: Path) -> None:
        self._parser, self._folder, self._out = parser, folder, out
        self.digest = content_digest(str(parser))

    def extract(self, texts: Sequence[str], independent: bool) -> list[str]:
        """Extract the trees that the parser predicts, where they are well-formed."""
        said = [text for text in texts if text]
        if independent:
            form, read = partial(_form_of_trees, self._parser), partial(_parsed, parser=self._parser)
            trees = in_parts(said, form, self._folder, read)
            tree_of = dict(zip(said, map(str, trees), strict=True))
        else:
            tree_of = {text: tree for text, (tree, _) in trees_of(self._parser, said, self._out).items()}
        return super().extract([tree_of.get(text, "") for text in texts], independent)


class TopicsOf(FeatureExtractor):
    """The nearest topic of a codebook, or that all are far; the codebook is made once and kept.

    Args:
        path: The codebook.
        num_topics: Expected topics, or clusters.
        texts: File of public utterances that it is made of beside the pool, which the caller has checked, if any.
        columns: Its columns.
        encoder: Sentence encoder, if it is to be made.
        seed: Of k-means of clusters, likewise; topics need none.
        keep: How texts of the pool and public ones are read, see :data:`~doppel.models.text_reader.Keep`.

    Raises:
        UserError: The codebook that there is has another number of topics.
    """

    what, option = "topics", "--num-topics"
    label: str | None = "label"

    def __init__(
        self,
        path: Path,
        num_topics: int,
        texts: str | None,
        columns: Columns | None,
        encoder: str,
        seed: int,
        keep: Keep | None = None,
    ) -> None:
        self.path, self._keep, self._made = path, keep, (num_topics, texts, columns, encoder, seed)
        book = Codebook.load(path) if path.exists() else None
        if book is not None and (found := len(book.names) - book.num_unexpected) != num_topics:
            raise UserError(
                f"{path} has {found} {self.what}, not {num_topics}, and their shares are released: give "
                f"{self.option} {found}; another release would be spent on top"
            )

    def extract(self, texts: Sequence[str], independent: bool) -> list[str]:
        """Extract the topics; make the codebook of these texts, the pool, if there is none."""
        if not self.path.exists():
            num_topics, public, columns, encoder, seed = self._made
            own, known = [text for text in texts if text], list[str]()
            if public is not None:
                known = [turn.utterance for turn in read_examples(expand_path(public), "utterance", columns=columns)]
            vectors = embed([*own, *known], encoder, keep=self._keep)
            self._make(own, known, vectors, num_topics, encoder, seed).save(self.path)
        book = Codebook.load(self.path)
        self.digest = content_digest(str(self.path))
        said = [text for text in texts if text]
        if independent:
            read = partial(embed, encoder=book.encoder, independent=True)
            vectors = in_parts(said, partial(form_of, book.encoder), self.path.parent, read)
        else:
            vectors = embed(said, book.encoder, keep=self._keep)
        names = iter(book.nearest(vectors))
        return [next(names) if text else "" for text in texts]

    def _make(
        self, own: list[str], known: list[str], vectors: Floats, number: int, encoder: str, seed: int
    ) -> Codebook:
        return make_codebook(own, known, vectors, number, encoder)

    @property
    def told(self) -> dict[str, Any]:
        """Themes and words of topics, and which of them nobody expected."""
        book = Codebook.load(self.path)
        themes = dict(zip(book.names, book.themes, strict=True)) if book.themes else {}
        return {"themes": themes, "words": book.words or {}, "unexpected": book.unexpected}

    def bins(self, readings: Sequence[str]) -> dict[str, float]:
        """Return all topics, and the bin of texts unlike them, with equal weights."""
        return dict.fromkeys(Codebook.load(self.path).bins, 1.0)

    def vector(self, reading: str, bins: Mapping[str, float]) -> dict[str, float]:
        """Return 1 for the topic."""
        return {reading: 1.0} if reading in bins else {}


class ClustersOf(TopicsOf):
    """The cluster of samples that is nearest: each private text has one vote among all clusters.

    The codebook is made of the over-sample itself: k-means of its sentence vectors, which are
    post-processing of a model that the scope has paid for. Clusters have numbers for names, and label no sample.
    """

    what, option = CLUSTERS, "--num-clusters"
    label = None

    @property
    def told(self) -> dict[str, Any]:
        """Return nothing: nobody reads of clusters."""
        return {}

    def _make(
        self, own: list[str], known: list[str], vectors: Floats, number: int, encoder: str, seed: int
    ) -> Codebook:
        return make_clusters([*own, *known], vectors, number, encoder, seed)


def embed(texts: Sequence[str], encoder: str, independent: bool = False, keep: Keep | None = None) -> Floats:
    """Return unit vectors of texts, [texts, D].

    Args:
        texts: Texts.
        encoder: ``minilm``, or the folder or hub name of an encoder whose sentence vector is the mean over its tokens.
        independent: Whether no text changes another's vector: for private texts.
        keep: How other texts are read, see :data:`~doppel.models.text_reader.Keep`.

    Raises:
        UserError: The encoder cannot be loaded.
    """
    reader = _encoder(encoder)
    read = reader.read(texts, independent) if keep is None or independent or not texts else keep(reader, texts)
    vectors: Floats = read.numpy()
    return vectors


def form_of(encoder: str) -> str:
    """Return what vectors of private texts depend on beside the text, see :meth:`.TextFeaturizer.form`."""
    return _encoder(encoder).form()


def _parsed(texts: Sequence[str], parser: Path) -> Any:
    """A parser's tree of each text, read by itself: an array of str [texts]."""
    return np.array([tree for text in texts for tree in _parser(parser).annotate([text])], dtype=np.str_)


def _form_of_trees(parser: Path) -> str:
    from doppel.models.text_reader import computed_by

    return " ".join([content_digest(str(parser)), *computed_by(_parser(parser).device)])


@lru_cache(maxsize=1)
def _parser(checkpoint: Path) -> SemanticParser:
    from lightning_modules.semantic_parser import load_parser

    return load_parser(checkpoint)


@lru_cache(maxsize=2)
def _encoder(name: str) -> TextFeaturizer:
    # imported here: a page reads names of this module without torch
    from doppel.models.encoders import TextFeaturizer, minilm

    return TextFeaturizer(minilm() if name == "minilm" else name, pooling="mean", max_length=_MAX_LENGTH)
