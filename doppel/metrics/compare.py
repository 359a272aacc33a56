"""All metrics of a set of synthetic utterances against a reference, as one dictionary."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from doppel.lispress import Counting
from doppel.metrics.anonymous_graph import anonymous_graph
from doppel.metrics.copies import CopyIndex, copy_shares
from doppel.metrics.judged import Nats, Part, Value, fluency_metrics, mauve_metrics
from doppel.metrics.mauve import Featurizer
from doppel.metrics.plain_number import plain_number
from doppel.metrics.precision import precision_metrics
from doppel.metrics.texts import commonest, distinct, mean_words, valid_share
from doppel.metrics.tree_pairs import GraphMatch
from doppel.metrics.type_counts import (
    chi_square_distance,
    count_function_types,
    count_words,
    top_k_overlap,
    type_overlap,
)
from doppel.models.encoders import TextFeaturizer

TOP_K = (10, 25, 50, 100)
#: The judge of MAUVE whose distances are those of sentences, so that it tells the precision too.
_OF_SENTENCES = "minilm"
FUNCTION_KEYS = ("function_overlap", "chi_square", *(f"top_{k}_overlap" for k in TOP_K))
TREES_SAMPLED = "sampled with the text (prompt of stage two)"
TREES_NONE = "none: one-stage samples carry no tree; function metrics need the semantic parser"


@dataclass(frozen=True)
class Corpus:
    """Utterances and, beside each, its linearised tree or None."""

    utterances: tuple[str, ...]
    trees: tuple[str | None, ...]

    def __post_init__(self) -> None:
        """Check the lengths."""
        if len(self.utterances) != len(self.trees):
            raise ValueError(f"{len(self.utterances)} utterances but {len(self.trees)} trees")

    @property
    def has_trees(self) -> bool:
        """True where some utterance has a tree."""
        return any(tree is not None for tree in self.trees)

    def sample(self, size: int, seed: int) -> Corpus:
        """Draw a uniform subset of ``size`` rows in their order; the corpus itself where it is no larger."""
        if size >= len(self.utterances):
            return self
        rows = sorted(random.Random(seed).sample(range(len(self.utterances)), size))
        return Corpus(tuple(self.utterances[i] for i in rows), tuple(self.trees[i] for i in rows))

    def rest(self, size: int, seed: int) -> Corpus:
        """Draw as many of the rows that ``sample`` leaves, or none where it does not leave so many."""
        rows = random.Random(seed).sample(range(len(self.utterances)), min(size, len(self.utterances)))
        left = sorted(set(range(len(self.utterances))) - set(rows))
        left = sorted(random.Random(seed + 1).sample(left, len(rows))) if len(left) >= len(rows) else []
        return Corpus(tuple(self.utterances[i] for i in left), tuple(self.trees[i] for i in left))

    def halves(self, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Split the utterances at random into two disjoint parts of equal size."""
        size = len(self.utterances) // 2
        return self.sample(size, seed).utterances, self.rest(size, seed).utterances


def function_metrics(
    synthetic: Sequence[str | None], reference: Sequence[str | None], counting: Counting = "node_labels"
) -> dict[str, float | None]:
    """Return overlap, χ² and top-k overlaps of function types, by name, on equally many trees of both sides.

    Where lines lack a tree (None), the side with more trees is thinned evenly to the number of the other: overlap
    grows with the number of samples. An invalid tree is a sample without functions.
    """
    synthetic, reference = ([tree for tree in side if tree is not None] for side in (synthetic, reference))
    size = min(len(synthetic), len(reference))
    if not size:
        return dict.fromkeys(FUNCTION_KEYS)
    synthetic, reference = ([side[i * len(side) // size] for i in range(size)] for side in (synthetic, reference))
    ours = count_function_types(synthetic, counting)
    theirs = count_function_types(reference, counting)
    computed = {"function_overlap": type_overlap(ours, theirs), "chi_square": chi_square_distance(ours, theirs)}
    computed |= {f"top_{k}_overlap": top_k_overlap(ours, theirs, k) for k in TOP_K}
    return {name: plain_number(computed[name]) for name in FUNCTION_KEYS}


def text_metrics(synthetic: Sequence[str], reference: Sequence[str]) -> dict[str, Value]:
    """Return word overlap; distinct share, share of the commonest and mean length of both sides."""
    values: dict[str, Value] = {"word_overlap": word_overlap(synthetic, reference)}
    for prefix, utterances in (("", synthetic), ("reference_", reference)):
        values[f"{prefix}distinct"] = plain_number(distinct(utterances))
        values[f"{prefix}commonest"] = plain_number(commonest(utterances))
        values[f"{prefix}mean_words"] = plain_number(mean_words(utterances))
    return values


def word_overlap(synthetic: Sequence[str], reference: Sequence[str]) -> float | None:
    """Return the share of the reference's words that the samples use; None without a reference."""
    return plain_number(type_overlap(count_words(synthetic), count_words(reference)))


def tree_repetition(synthetic: Sequence[str | None], reference: Sequence[str | None]) -> dict[str, Value]:
    """Return the distinct share and the commonest tree's share, sampled and reference; None without trees.

    A tree model that falls back on its mode shows here before it shows in the function metrics.
    """
    values: dict[str, Value] = {}
    for prefix, side in (("", synthetic), ("reference_", reference)):
        trees = [tree for tree in side if tree is not None]
        values[f"{prefix}distinct_trees"] = plain_number(distinct(trees))
        values[f"{prefix}commonest_tree"] = plain_number(commonest(trees))
    return values


def copy_metrics(synthetic: Sequence[str], reference: Sequence[str], private: Sequence[str]) -> dict[str, Value]:
    """Count copies of private utterances, as ``private/…``; for scale, those in the reference too."""
    index = CopyIndex(private)
    shares = copy_shares(synthetic, index)
    values: dict[str, Value] = {f"private/{name}": plain_number(value) for name, value in shares.items()}
    natural = sum(map(index.is_exact, reference)) / len(reference)
    return values | {"private/reference_exact_copies": round(natural, 6), "private/num_private": len(private)}


def compared_sides(
    synthetic: Corpus, reference: Corpus, num_samples: int | None = None, seed: int = 0
) -> tuple[Corpus, Corpus]:
    """Return the equally many rows of both sides that ``compare`` uses with the same arguments.

    Raises:
        ValueError: a side is empty, or ``num_samples`` is not positive.
    """
    if num_samples is not None and num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    size = min(len(synthetic.utterances), len(reference.utterances))
    if not size:
        raise ValueError("nothing to compare: the synthetic or the reference side has no utterance")
    size = min(size, num_samples or size)
    return synthetic.sample(size, seed), reference.sample(size, seed)


def compare(
    synthetic: Corpus,
    reference: Corpus,
    *,
    featurizers: Mapping[str, str | Path | Featurizer] | None = None,
    nats: Nats | None = None,
    private: Sequence[str] | None = None,
    parsed: Sequence[str | None] | None = None,
    parsed_reference: Sequence[str | None] | None = None,
    parsed_others: Sequence[str | None] | None = None,
    counting: Counting = "node_labels",
    num_samples: int | None = None,
    seed: int = 0,
) -> dict[str, Value]:
    """Compute every metric on equally many samples of both sides.

    Args:
        synthetic: samples, with the trees they were sampled from where there are any.
        reference: human utterances with their trees.
        featurizers: name of each judge of MAUVE, and how it reads texts: a model folder, a hub name or a function from
            texts to a [num_texts, hidden] tensor; without any there is no MAUVE.
        nats: tells the loss of each text under a model of public text, for the fluency.
        private: private training utterances; opts into the ``private/…`` values, which are not DP.
        parsed: a semantic parser's trees of the synthetic utterances that ``compared_sides`` chooses, in their
            order, for the ``parsed_…`` values; None: there is no parser.
        parsed_reference: its trees of the reference utterances that ``compared_sides`` chooses, for the
            ``ground_truth_…`` values: what the metrics are where the samples are human and only the parser errs.
        parsed_others: its trees of the further requests that ``Corpus.rest`` chooses, for the ``human_parsed_…``
            values: what requests of other people would score.
        counting: what a function type is.
        num_samples: compare at most so many of each side.
        seed: of the subsets, and (added to 25, the package's own) of MAUVE's clustering.

    Returns:
        Name to value; None where a value cannot be computed, and then ``notes`` says why.

    Raises:
        ValueError: a side is empty, ``num_samples`` is not positive, or parsed trees are not as many as compared
            utterances.
        ModelError: a judge cannot be loaded.
    """
    sizes: dict[str, Value] = {
        "num_synthetic": len(synthetic.utterances),
        "num_reference": len(reference.utterances),
    }
    whole = reference
    synthetic, reference = compared_sides(synthetic, reference, num_samples, seed)
    sizes["num_compared"] = len(synthetic.utterances)
    others = whole.rest(len(reference.utterances), seed)
    texts = synthetic.utterances, reference.utterances
    human = (others.utterances, reference.utterances) if others.utterances else whole.halves(seed)
    measures: dict[str, Callable[[], Part]] = {
        "words": lambda: (sizes | text_metrics(synthetic.utterances, reference.utterances), []),
        "MAUVE": lambda: mauve_metrics(*texts, human, featurizers or {}, seed),
        "sampled trees": lambda: _own_trees(synthetic, reference, counting),
        "parsed trees": lambda: _parsed_trees(
            [synthetic, reference, others], [parsed, parsed_reference, parsed_others], counting
        ),
        "human requests": lambda: _human(others, reference, counting),
    }
    if (minilm := (featurizers or {}).get(_OF_SENTENCES)) is not None:
        read = TextFeaturizer(minilm) if isinstance(minilm, str | Path) else minilm
        measures["precision"] = lambda: (
            precision_metrics(synthetic.utterances, whole.utterances, read, _OF_SENTENCES, seed),
            [],
        )
    if nats is not None:
        measures["fluency"] = lambda: fluency_metrics(*texts, human, nats)
    if private is not None:
        warning = (
            "private/… values compare with private training text: they are not differentially private; "
            "do not let them leave this machine without the data owner's consent"
        )
        measures["copies"] = lambda: (copy_metrics(synthetic.utterances, reference.utterances, private), [warning])
    parts: list[Part] = []
    form = "   {desc}, {n_fmt} of {total_fmt} done {bar:20}"
    with tqdm(measures.items(), "comparing", bar_format=form, dynamic_ncols=True, disable=None) as bar:
        for name, compute in bar:
            bar.set_description_str(f"comparing: {name}")
            parts.append(compute())
    parts.append(({"counting": counting}, []))
    values = {name: value for part, _ in parts for name, value in part.items()}
    return values | {"notes": [note for _, notes in parts for note in notes]}


def _human(others: Corpus, reference: Corpus, counting: Counting) -> Part:
    """What other human turns would score in the samples' place; None where the reference holds too few."""
    names = ("word_overlap", *FUNCTION_KEYS)
    if not others.utterances:
        note = (
            "the reference holds fewer than twice as many requests as are compared: human_… of words and functions is "
            "null, and that of MAUVE and fluency compares its halves"
        )
        return dict.fromkeys(f"human_{name}" for name in names), [note]
    values: dict[str, Value] = {"word_overlap": word_overlap(others.utterances, reference.utterances)}
    values |= function_metrics(others.trees, reference.trees, counting)
    return {f"human_{name}": values[name] for name in names}, []


def _own_trees(synthetic: Corpus, reference: Corpus, counting: Counting) -> Part:
    """Metrics on the trees that stand in the synthetic file."""
    num_trees = sum(tree is not None for tree in synthetic.trees)
    repetition = tree_repetition(synthetic.trees, reference.trees)
    values = function_metrics(synthetic.trees, reference.trees, counting) | repetition
    values |= {
        "valid_trees": plain_number(valid_share(synthetic.trees)),
        "num_trees": num_trees,
        "trees": TREES_SAMPLED if num_trees else TREES_NONE,
    }
    if not num_trees:
        return values, ["the synthetic file has no trees: valid_trees and the function metrics are null"]
    notes = ["function metrics judge the sampled trees, not whether the utterances express them"]
    ours, theirs = repetition["commonest_tree"], repetition["reference_commonest_tree"]
    if isinstance(ours, float) and isinstance(theirs, float) and ours > max(0.1, 2 * theirs):
        notes.append(
            f"one tree makes up {ours:.0%} of the sampled trees, and none more than {theirs:.0%} of the reference: "
            "p(y) falls back on its mode; docs/results.md says what helps, first of all a larger max_grad_norm"
        )
    if num_trees < len(synthetic.trees):
        notes.append("some synthetic lines have no tree: function metrics use the others, and as many of the reference")
    if not reference.has_trees:
        notes.append("the reference has no trees: the function metrics are null")
    return values, notes


def _parsed_trees(sides: Sequence[Corpus], parsed: Sequence[Sequence[str | None] | None], counting: Counting) -> Part:
    """The same metrics on a semantic parser's trees of samples, reference and others, against the reference's own."""
    _, reference, _ = sides
    values: dict[str, Value] = {}
    kinds = (("parsed_", "synthetic"), ("ground_truth_", "reference"), ("human_parsed_", "further"))
    for (prefix, name), side, trees in zip(kinds, sides, parsed, strict=True):
        if trees is not None and len(trees) != len(side.utterances):
            raise ValueError(f"{len(trees)} parsed trees for {len(side.utterances)} compared {name} utterances")
        of_functions = function_metrics(trees or (), reference.trees, counting)
        values |= {f"{prefix}{key}": value for key, value in of_functions.items()}
    for match, side, trees in zip(("parsed_own_tree_match", "ground_truth_exact_match"), sides, parsed, strict=False):
        values[match] = _graph_match(trees, side.trees) if trees and reference.has_trees else None
    if all(trees is None for trees in parsed):
        return values, ["parsed_… and ground_truth_… are null: they need a semantic parser (--parser or --parsed)"]
    if not reference.has_trees:
        return values, ["the reference has no trees: the parsed_… and ground_truth_… values are null"]
    return values, [
        "parsed_…: trees by the semantic parser of the synthetic utterances, against the reference's own trees; "
        "ground_truth_…: its trees of the reference utterances against the same; human_parsed_…: of further requests, "
        "which is what human utterances would score"
    ]


def _graph_match(predicted: Sequence[str | None], gold: Sequence[str | None]) -> Value:
    """Exact anonymised match, over the rows whose gold tree is there and valid; None without any."""
    pairs = zip(predicted, gold, strict=True)
    rows = [(guess, tree) for guess, tree in pairs if tree is not None and anonymous_graph(tree) is not None]
    metric = GraphMatch()
    metric.update([guess for guess, _ in rows], [tree for _, tree in rows])
    return plain_number(metric.compute()["exact_match"].item()) if rows else None
