"""The rounds of private evolution: write, vote, choose, vary (AugPE: Xie et al., 2024, algorithm 1)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from doppel.errors import UserError
from doppel.evolution.candidates import Candidate, Prompt, distinct
from doppel.evolution.generators.protocol import Generator
from doppel.evolution.population import choose, largest_remainder, spread
from doppel.text.forms import normalise

Vectors = NDArray[np.floating]
Embed = Callable[[Sequence[str]], Vectors]
#: First texts that are asked for before anything else; and how many alike are no chance.
_TRIED, _MANY = 16, 4
_NO_TEXT = "the generator wrote no usable text{}: read some of its answers, and mend its prompts"


@dataclass(frozen=True)
class Plan:
    """How a population evolves.

    Attributes:
        num_samples: Candidates that a round chooses.
        variations: Of each chosen candidate; they and what was chosen, less copies, are the pool of the next round.
        clusters: Clusters of candidates that are voted for in their place; None: candidates themselves.
        seed: Public seed of prompts and clusters.
    """

    num_samples: int
    variations: int
    clusters: int | None = None
    seed: int = 0


class VoteSource(Protocol):
    """Where votes come from; :class:`commands.privacy.vote_releases.VoteReleases` is one.

    Attributes:
        rounds: Rounds of the population, those that were counted already included.
    """

    rounds: int

    def sizes(self) -> Mapping[str, float] | None:
        """Return noisy numbers of private texts by label; None: labels do not matter."""

    def count(
        self, number: int, pool: Sequence[Candidate], bins_BD: Vectors, labels: Sequence[str | None]
    ) -> list[float]:
        """Return the noisy votes of a round, by embeddings and labels; ``pool`` tells rounds apart."""


def evolve(
    plan: Plan,
    generator: Generator,
    source: VoteSource,
    embed: Embed,
    rows: Sequence[Mapping[str, str]] = (),
    tell: Callable[[str], None] = lambda sentence: None,
) -> list[Candidate]:
    """Let a population evolve.

    Formal guarantees:
        The private texts are not among the arguments. What comes of them are noisy votes and noisy sizes, which
        ``source`` has paid for. A prompt is made of the plan, of public labels, of released rows, and of texts that the
        generator wrote before; so it is public or post-processing, whoever reads it: a server, a cache, an error.

    Args:
        plan: How.
        generator: Who writes.
        source: Where votes come from.
        embed: Embeds texts of the generator.
        rows: Released rows of attributes, one for each first text, in turn; none: without.
        tell: Called with a sentence for the console after each round.

    Returns:
        The chosen candidates, ``plan.num_samples`` of them.

    Raises:
        UserError: The generator wrote no text, none for a label, or mostly one text.
    """
    due = _due(plan, source.sizes())
    wanted = [label for label, num in due.items() for _ in range(num)]
    prompts = [_first(plan, place, label, rows) for place, label in enumerate(wanted)]
    chosen = _written(generator.random(prompts), prompts)
    tell(f"{len(chosen)} of {len(prompts)} first texts")
    for number in range(1, source.rounds + 1):
        written = [*distinct(chosen), *_vary(generator, chosen, plan.variations, f"{plan.seed}/{number - 1}")]
        pool = distinct(written)
        _check(pool, due)
        if number == 1:  # later ones have paid votes before them, which a stop would lose
            refuse_one_text([candidate.text for candidate in written])
        vectors = embed([candidate.text for candidate in pool])
        chosen = [pool[place] for place in _vote(plan, source, number, pool, vectors, due)]
        kept = len({id(candidate) for candidate in chosen})
        tell(f"round {number} of {source.rounds}: {kept} of {len(pool)} candidates")
    return chosen


def first_texts(
    plan: Plan,
    generator: Generator,
    labels: Sequence[str] | None,
    rows: Sequence[Mapping[str, str]] = (),
    is_new: bool = True,
) -> list[str]:
    """Generate the population's first texts, of each label, so that the generator is known before a vote is paid.

    Args:
        plan: How.
        generator: Who writes.
        labels: Public labels, each to be written for; None: labels do not matter.
        rows: As of :func:`evolve`.
        is_new: Whether nothing is paid yet: one of whose sizes are known goes on, for it may need no text of a label.

    Raises:
        UserError: Most of them are one text, or a label has none.
    """
    names: Sequence[str | None] = labels or [None]
    num = max(_TRIED, len(names)) if labels else min(_TRIED, plan.num_samples)
    prompts = [_first(plan, place, names[place % len(names)], rows) for place in range(num)]
    written = _written(generator.random(prompts), prompts)
    there = {candidate.prompt.label for candidate in written}
    for label in (name for name in labels or () if is_new and name not in there):
        again = [_first(plan, num + place, label, rows) for place in range(_TRIED)]
        if not _written(generator.random(again), again):
            raise UserError(
                f"the generator wrote no usable text for the label {label!r} in {_TRIED} tries, and nothing was "
                "charged: mend evolution.wording, take the label off the list, or take another evolution.generator "
                "(the grammar knows labels of its own alone)"
            )
    texts = [candidate.text for candidate in written]
    refuse_one_text(texts)
    return texts


def refuse_one_text(texts: Sequence[str]) -> None:
    """Refuse texts of a generator most of which are one, but for case and punctuation: a refusal, or an announcement.

    Raises:
        UserError: They are, and no few.
    """
    plain = [normalise(text) or text for text in texts]
    if not plain:
        return
    ((text, number),) = Counter(plain).most_common(1)
    if number >= _MANY and 2 * number > len(plain):
        quote = json.dumps(texts[plain.index(text)][:200], ensure_ascii=False)
        raise UserError(
            f"{number} of {len(plain)} texts of the generator are {quote}, so no vote is charged: mend "
            "evolution.wording, raise evolution.temperature, or take another evolution.generator"
        )


def _first(plan: Plan, place: int, label: str | None, rows: Sequence[Mapping[str, str]]) -> Prompt:
    return Prompt(f"{plan.seed}/0/{place}", label, tuple(rows[place % len(rows)].items()) if rows else ())


def _due(plan: Plan, sizes: Mapping[str, float] | None) -> dict[str | None, int]:
    """How many candidates are chosen for each label."""
    if sizes is None:
        return {None: plan.num_samples}
    return dict(zip(sizes, largest_remainder(list(sizes.values()), plan.num_samples), strict=True))


def _written(texts: Sequence[str], prompts: Sequence[Prompt]) -> list[Candidate]:
    """What a generator wrote; an empty text is none."""
    answers = zip((text.strip() for text in texts), prompts, strict=True)
    return [Candidate(text, prompt) for text, prompt in answers if text]


def _check(pool: Sequence[Candidate], due: Mapping[str | None, int]) -> None:
    """Refuse a pool that lacks what is to be chosen of it."""
    there = {candidate.prompt.label for candidate in pool}
    for label, num in due.items():
        if num and label not in there:
            raise UserError(_NO_TEXT.format("" if label is None else f" for the label {label!r}"))


def _vary(generator: Generator, parents: Sequence[Candidate], times: int, stream: str) -> list[Candidate]:
    """Variations of candidates; one that came out empty is left out, and its parent stays."""
    asked = [
        (parent, Prompt(f"{stream}/{place}/{time}", parent.prompt.label, parent.prompt.attributes))
        for place, parent in enumerate(parents)
        for time in range(1, times + 1)
    ]
    prompts = [prompt for _, prompt in asked]
    return _written(generator.vary([parent for parent, _ in asked], prompts), prompts) if asked else []


def _vote(
    plan: Plan,
    source: VoteSource,
    number: int,
    pool: Sequence[Candidate],
    vectors: Vectors,
    due: Mapping[str | None, int],
) -> list[int]:
    """Places in the pool of the candidates that a round chooses."""
    labels = [candidate.prompt.label for candidate in pool]
    members = {label: [place for place, own in enumerate(labels) if own == label] for label in due}
    if plan.clusters is not None and plan.clusters < len(pool):
        centers, groups = _clusters(vectors, plan.clusters, plan.seed + number)
        votes = source.count(number, pool, centers, [None] * len(groups))
        return spread(votes, groups, plan.num_samples)
    votes = source.count(number, pool, vectors, labels)
    found = []
    for label, num in due.items():
        own = [votes[place] for place in members[label]]
        picked = choose(own, num) if num else []
        found += [members[label][place] for place in picked]
    return found


def _clusters(vectors: Vectors, num: int, seed: int) -> tuple[Vectors, list[list[int]]]:
    """Centres of clusters of candidates, and the candidates of each, the nearest to its centre first."""
    from sklearn.cluster import KMeans

    found = KMeans(num, n_init=1, random_state=seed).fit(vectors)
    away = np.linalg.norm(vectors - found.cluster_centers_[found.labels_], axis=1)
    order = np.argsort(away, kind="stable")
    groups = [[int(place) for place in order if found.labels_[place] == cluster] for cluster in range(num)]
    kept = [cluster for cluster in range(num) if groups[cluster]]
    return found.cluster_centers_[kept], [groups[cluster] for cluster in kept]
