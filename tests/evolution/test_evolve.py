"""The rounds: a population comes nearer to what is voted for, and keeps the sizes that it is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from doppel.errors import UserError
from doppel.evolution.candidates import Candidate, Prompt, fingerprint
from doppel.evolution.evolve import Plan, evolve, first_texts
from doppel.evolution.generators.grammar import GrammarGenerator
from doppel.evolution.votes import NearestNeighbourHistogram
from doppel.grammar import generate

WORDS = (
    "weather",
    "rain",
    "meeting",
    "lunch",
    "cancel",
    "delete",
    "manager",
    "who",
    "tomorrow",
    "set",
    "create",
    "invite",
)


def embed(texts: Sequence[str]) -> np.ndarray:
    """Which of some words a text has, and how long it is; enough to tell its topic."""
    rows = [[*(float(word in text.lower()) for word in WORDS), len(text) / 200] for text in texts]
    vectors = np.array(rows)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


class Exact:
    """Votes without noise, of public texts: what the rounds do by themselves."""

    def __init__(
        self,
        texts: Sequence[str],
        rounds: int,
        sizes: Mapping[str, float] | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        self.rounds, self._sizes, self.seen = rounds, sizes, list[tuple[int, str, int]]()
        self._histogram = NearestNeighbourHistogram([embed(texts)], [str(i) for i in range(len(texts))], labels)

    def sizes(self) -> Mapping[str, float] | None:
        return self._sizes

    def count(
        self, number: int, pool: Sequence[Candidate], bins: np.ndarray, labels: Sequence[str | None]
    ) -> list[float]:
        self.seen.append((number, fingerprint(pool), len(bins)))
        return list(self._histogram.sums(bins, labels if self._sizes else None).values())


WEATHER = [turn.utterance for turn in generate(3000, 5) if turn.domain == "weather"][:150]


def share(found: Sequence[Candidate]) -> float:
    """Of texts that speak of the weather, roughly."""
    near = embed([own.text for own in found])[:, :2].sum(axis=1) > 0
    return float(near.mean())


@pytest.mark.parametrize("plan", [Plan(40, 3), Plan(40, 3, clusters=15)])
def test_a_population_comes_nearer_to_the_texts_that_vote(plan: Plan) -> None:
    polls = Exact(WEATHER, 3)
    before = evolve(plan, GrammarGenerator(), Exact(WEATHER, 0), embed)
    after = evolve(plan, GrammarGenerator(), polls, embed)
    assert len(after) == 40 and share(after) > share(before) + 0.2
    assert [number for number, _, _ in polls.seen] == [1, 2, 3]
    assert (max(bins for _, _, bins in polls.seen) <= 15) == (plan.clusters is not None)


def test_the_same_seed_is_the_same_population_and_another_one_is_another() -> None:
    first, second = Exact(WEATHER, 2), Exact(WEATHER, 2)
    assert evolve(Plan(20, 2), GrammarGenerator(), first, embed) == evolve(
        Plan(20, 2), GrammarGenerator(), second, embed
    )
    assert first.seen == second.seen
    other = Exact(WEATHER, 2)
    evolve(Plan(20, 2, seed=1), GrammarGenerator(), other, embed)
    assert other.seen != first.seen


def test_labels_keep_the_sizes_that_were_released_also_small_ones() -> None:
    texts, labels = WEATHER[:30], ["weather", "people", "calendar"] * 10
    polls = Exact(texts, 2, {"weather": 70.2, "people": 29.1, "calendar": 0.8, "none": -3.0}, labels)
    found = evolve(Plan(25, 3), GrammarGenerator(), polls, embed)
    assert Counter(own.prompt.label for own in found) == {"weather": 18, "people": 7}
    polls = Exact(texts, 1, {"weather": 1.0, "calendar": 1.0}, labels)
    assert Counter(own.prompt.label for own in evolve(Plan(5, 3), GrammarGenerator(), polls, embed)) == {
        "weather": 3,
        "calendar": 2,
    }


def test_rows_of_attributes_are_in_the_prompts_and_stay_with_the_variations() -> None:
    asked: list[Prompt] = []

    class Listens(GrammarGenerator):
        def random(self, prompts: Sequence[Prompt]) -> list[str]:
            asked.extend(prompts)
            return super().random(prompts)

        def vary(self, parents: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[str]:
            assert all(
                parent.prompt.attributes == prompt.attributes for parent, prompt in zip(parents, prompts, strict=True)
            )
            asked.extend(prompts)
            return super().vary(parents, prompts)

    evolve(Plan(6, 2), Listens(), Exact(WEATHER, 2), embed, [{"stars": "1"}, {"stars": "5"}])
    assert [prompt.attributes for prompt in asked[:3]] == [(("stars", "1"),), (("stars", "5"),), (("stars", "1"),)]
    assert len({prompt.stream for prompt in asked}) == len(asked) == 6 + 2 * 12


def test_nothing_is_voted_for_where_most_candidates_are_one_text() -> None:
    """Whatever its case and punctuation; a third of them may be, and votes of a round before stay as they are."""

    class Says(GrammarGenerator):
        def __init__(self, share: float, varies: bool) -> None:
            super().__init__()
            self._share, self._varies = share, varies

        def random(self, prompts: Sequence[Prompt]) -> list[str]:
            own = super().random(prompts)
            return [f"No, {'.' * i}" if i < self._share * len(own) else text for i, text in enumerate(own)]

        def vary(self, parents: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[str]:
            return [f"{i}: {p.text}" if self._varies else "no" for i, p in enumerate(parents)]

    for generator in (Says(1.0, False), Says(0.2, False)):
        polls = Exact(WEATHER, 2)
        with pytest.raises(UserError, match='texts of the generator are "(No,|no)'):
            evolve(Plan(12, 2), generator, polls, embed)
        assert polls.seen == []
    assert len(evolve(Plan(12, 2), Says(0.3, True), Exact(WEATHER, 2), embed)) == 12
    late = Says(0.0, True)

    class Spoils(Exact):
        def count(self, *words: Any) -> list[float]:
            late._varies = False
            return super().count(*words)

    polls = Spoils(WEATHER, 2)
    assert len(evolve(Plan(12, 2), late, polls, embed)) == 12
    assert [number for number, _, _ in polls.seen] == [1, 2], "a vote is paid, so the run goes on"
    with pytest.raises(UserError, match="of 12 texts of the generator are"):
        first_texts(Plan(12, 2), Says(1.0, True), None)
    assert len(first_texts(Plan(9, 2), GrammarGenerator(), ["weather", "people"])) == 16  # whatever sizes are drawn


def test_a_label_that_the_generator_cannot_write_is_refused_before_its_size_is_paid() -> None:
    class Rarely(GrammarGenerator):
        """Has nothing at first for one label."""

        asked = 0

        def random(self, prompts: Sequence[Prompt]) -> list[str]:
            self.asked += 1
            texts = zip(super().random(prompts), prompts, strict=True)
            return ["" if self.asked == 1 and prompt.label == "people" else text for text, prompt in texts]

    with pytest.raises(UserError, match=r"the label 'card' in 16 tries, and nothing was charged.*evolution\.generator"):
        first_texts(Plan(9, 2), GrammarGenerator(), ["weather", "card"])
    assert first_texts(Plan(9, 2), GrammarGenerator(), ["weather", "card"], is_new=False), "it may need none of it"
    assert len(first_texts(Plan(9, 2), Rarely(), ["weather", "people"])) == 8


def test_an_empty_variation_leaves_its_parent_and_a_generator_without_text_is_an_error() -> None:
    class Barren(GrammarGenerator):
        def vary(self, parents: Sequence[Candidate], prompts: Sequence[Prompt]) -> list[str]:
            return [" "] * len(prompts)

    class Mute(Barren):
        def random(self, prompts: Sequence[Prompt]) -> list[str]:
            return [""] * len(prompts)

    assert len(evolve(Plan(10, 2), Barren(), Exact(WEATHER, 2), embed)) == 10
    with pytest.raises(UserError, match="wrote no usable text"):
        evolve(Plan(10, 2), Mute(), Exact(WEATHER, 2), embed)
    with pytest.raises(UserError, match="for the label 'music'"):
        evolve(Plan(10, 2), GrammarGenerator(), Exact(WEATHER, 1, {"music": 1.0}, ["music"] * len(WEATHER)), embed)
