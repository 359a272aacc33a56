"""What is no sample is drawn again: the rest follows the model's law given that it is one, prompt by prompt."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datamodules.batches.batch import PromptBatch
from datamodules.text_format import Filled
from doppel.decoding.sampling import SampledText, SamplingArguments, fault_of
from doppel.errors import UserError
from doppel.grammar import generate
from doppel.lispress import holds_tree
from lightning_modules import sampling
from lightning_modules.sampling import draw_samples

#: Text, whether the model ends it, and its probability.
LAW = [
    ("book a table", True, 0.3),
    ("hello there", True, 0.1),
    ("", True, 0.2),
    ("a tab", False, 0.2),
    ("(Do 1)", True, 0.2),
]


class Writer:
    """Writes the texts of a law, drawn from a generator that the stream names."""

    text_format: Any = type(
        "TextFormat", (), {"target": "utterance", "fill": lambda self, text, prompt, name: Filled(text)}
    )()

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[int]] = []
        monkeypatch.setattr(sampling, "sample_texts", self.sample_texts)

    def sample_texts(
        self, model: Any, text_format: Any, ids: list[Any], arguments: Any, stream: list[int]
    ) -> list[Any]:
        self.asked.append(stream)
        generator = torch.Generator().manual_seed(hash(tuple(stream)) % 2**63)
        drawn = torch.tensor([p for *_, p in LAW]).multinomial(len(ids), True, generator=generator).tolist()
        return [SampledText(*LAW[i][:2]) for i in drawn]

    def draw(self, indices: list[int], redraws: int | None, min_words: int = 1) -> list[sampling.Sample]:
        batch = PromptBatch(indices, [f"y{i % 2}" for i in indices], [[0]] * len(indices))
        model: Any = None
        return draw_samples(model, self.text_format, batch, SamplingArguments(redraws=redraws, min_words=min_words))


def test_what_is_kept_follows_the_law_given_that_it_is_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Writer(monkeypatch).draw(list(range(8000)), 20)
    assert not any(s.is_dropped for s in samples)
    assert [s.prompt for s in samples] == ["y0", "y1"] * 4000  # each prompt keeps its share
    for prompt in ("y0", "y1"):
        counts = Counter(s.text for s in samples if s.prompt == prompt)
        assert set(counts) == {"book a table", "hello there"}
        assert counts["book a table"] / 4000 == pytest.approx(0.75, abs=0.03)
    faults = Counter(fault for s in samples for fault in s.faults)  # 0.6 of all texts are none, so 1.5 for each kept
    assert faults.total() / 8000 == pytest.approx(1.5, abs=0.1)
    assert all(
        faults[fault] / faults.total() == pytest.approx(1 / 3, abs=0.03) for fault in ("empty", "cut off", "a tree")
    )


def test_redraws_are_bounded_named_by_their_indices_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(monkeypatch)
    kept = writer.draw(list(range(200)), None)
    assert len(writer.asked) == 1 and not any(s.is_dropped or s.faults for s in kept)
    once = writer.draw(list(range(200)), 0)
    assert [(s.text, s.finished) for s in once] == [(s.text, s.finished) for s in kept]
    assert 0 < sum(s.is_dropped for s in once) == sum(len(s.faults) for s in once)
    writer.asked.clear()
    twice = writer.draw(list(range(200)), 2)
    assert all(len(s.faults) == 3 for s in twice if s.is_dropped) and any(s.is_dropped for s in twice)
    assert len(writer.asked) == 3 and len(set(map(tuple, writer.asked))) == 3
    assert writer.draw(list(range(200)), 2) == twice  # as after an interruption


@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_a_tree_and_its_beginning_are_no_utterance_but_an_utterance_is(seed: int, start: float, end: float) -> None:
    for turn in generate(3, seed=seed, skew=1.0):
        assert turn.parse is not None
        assert not holds_tree(turn.utterance)
        assert holds_tree(turn.parse) and holds_tree(turn.parse[: 1 + int(end * (len(turn.parse) - 1))])
        assert holds_tree(f"{turn.utterance} {turn.parse}")


@pytest.mark.parametrize(
    "text", ["dinner (with Ana)", "lunch :) at noon", "(laughs) book it", "at 5 (or 6", "hi :(", "a: b"]
)
def test_brackets_and_colons_of_people_are_no_tree(text: str) -> None:
    assert not holds_tree(text)


@pytest.mark.parametrize(
    ("text", "finished", "target", "fault"),
    [
        ("hi", True, "utterance", None),
        ("hi", False, "utterance", "cut off"),
        (" \n", True, "utterance", "empty"),
        ("\ufffd hi", True, "utterance", "broken"),
        ('(Do "\ufffd")', True, "parse", "broken"),
        ("🙂 مرحبا ありがとう", True, "utterance", None),
        ('lunch (Yield :output "a', True, "utterance", "a tree"),
        ("(Do)", True, "utterance", "a tree"),
        ("(Do)", True, "parse", None),
        ("(Do", True, "parse", "malformed"),
        ("(Do", False, "parse", "cut off"),
        ("", True, "parse", "empty"),
    ],
)
def test_faults(text: str, finished: bool, target: Any, fault: str | None) -> None:
    assert fault_of(SampledText(text, finished), target) == fault


def test_an_utterance_of_fewer_words_than_asked_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Writer(monkeypatch).draw(list(range(400)), 40, min_words=3)
    assert {s.text for s in samples} == {"book a table"} and any("too short" in s.faults for s in samples)
    assert fault_of(SampledText("(Do)", True), "parse", 3) is None  # of utterances alone
    with pytest.raises(UserError, match="min_words"):
        SamplingArguments(min_words=0)
