"""`histogram`: one release in the ledger of the stage that announced it, labels from a public list, prompts drawn."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import cli
from datamodules.training_rows import TrainingRows
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import plan

LABELS = "# public\nBanks\nMusic\nAlarm\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with private turns of two labels (and one that no list names) and public labels."""
    labels = ["Banks"] * 600 + ["Music"] * 300 + ["secret"] * 100
    lines = [json.dumps({"utterance": f"say {i}", "label": label}) for i, label in enumerate(labels)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "labels.txt").write_text(LABELS)
    return tmp_path


def trained(run: Path, sigma: float | None, private: bool = True, source: str | None = "label") -> None:
    """What `fit` leaves of a model of labels: its configuration, and its line in the ledger."""
    stage = run / "labels"
    stage.mkdir()
    privacy: dict[str, Any] | None = None
    if private:
        spec = plan(1000, 100, 1, 8.0, accountant="rdp", histogram_noise_multiplier=sigma)
        ledger = Ledger(run / "ledger.jsonl")
        name = ledger.open(scope="labels", stage="labels", spec=spec, planned_steps=10, data_fingerprint="f00d")
        for _ in range(10):
            ledger.spend(name)
        privacy = {"target_epsilon": 8.0, "delta": None, "accountant": "rdp", "scope": "labels"}
        privacy |= {"ledger_path": str(run / "ledger.jsonl"), "histogram_noise_multiplier": sigma}
    config = {
        "privacy": privacy,
        "model": {"init_args": {"source": source}},
        "data": {"init_args": {"train_path": str(run / "train.jsonl"), "unit": "utterance"}},
    }
    (stage / "config.yaml").write_text(yaml.safe_dump(config))


def histogram(run: Path, *more: str) -> int:
    arguments = ["step", "histogram", str(run / "labels"), "--labels", str(run / "labels.txt"), "--num-samples", "500"]
    return cli.main([*arguments, "--out", str(run / "labels.jsonl"), *more])


def test_a_noised_histogram_is_spent_once_and_gives_prompts_of_public_labels(run: Path) -> None:
    trained(run, sigma=5.0)
    assert histogram(run) == 0
    prompts = Counter(json.loads(line)["label"] for line in (run / "labels.jsonl").read_bytes().splitlines())
    assert prompts.total() == 500
    assert set(prompts) <= {"Banks", "Music", "Alarm"}
    assert prompts["Banks"] > prompts["Music"] > prompts["Alarm"]
    released = json.loads((run / "labels.histogram.json").read_text())
    assert released["noise_multiplier"] == 5.0
    assert released["sums"]["Banks"] != 600
    assert abs(released["sums"]["Banks"] - 600) < 50
    spent = Ledger(run / "ledger.jsonl").summary()
    assert spent["mechanisms"][1]["kind"] == "gaussian_histogram"
    assert (spent["mechanisms"][1]["sample_rate"], spent["mechanisms"][1]["done_steps"]) == (1.0, 1)
    assert 7.9 < spent["scopes"]["labels"]["epsilon"] <= 8.0
    (line,) = Ledger(run / "ledger.jsonl").releases("labels/histogram")
    assert line.content is not None and line.content["sums"] == released["sums"]

    assert histogram(run, "--seed", "2") == 0  # reads what was released
    assert Ledger(run / "ledger.jsonl").summary()["mechanisms"][1]["done_steps"] == 1


def test_labels_are_drawn_alike_where_a_crash_tore_the_line_of_their_histogram(run: Path) -> None:
    trained(run, sigma=5.0)
    assert histogram(run) == 0
    (run / "labels.histogram.json").unlink()
    (run / "ledger.jsonl").write_bytes((run / "ledger.jsonl").read_bytes()[:-40])
    for more in ([], ["--shares", str(run / "labels.histogram.json"), "--seed", "3"]):
        assert histogram(run, *more) == 0
        prompts = Counter(json.loads(line)["label"] for line in (run / "labels.jsonl").read_bytes().splitlines())
        assert min(prompts[name] for name in ("Banks", "Music", "Alarm")) > 120
    ledger = Ledger(run / "ledger.jsonl")
    assert ledger.mechanisms["labels/histogram"].done_steps == 1 and not ledger.releases("labels/histogram")
    (caveat,) = ledger.summary()["scopes"]["labels"]["caveats"]
    assert "histogram of labels, was charged, and a crash tore its line" in caveat


def test_a_run_that_another_one_has_overtaken_goes_on_under_a_larger_total(
    run: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its training is paid, and has saved the total that it began with."""
    trained(run, sigma=5.0)
    config = yaml.safe_load((run / "labels" / "config.yaml").read_text())
    config["privacy"]["total_epsilon"] = 9.0
    (run / "labels" / "config.yaml").write_text(yaml.safe_dump(config))
    other = Ledger(tmp_path_factory.mktemp("other") / "ledger.jsonl")
    rows = TrainingRows.from_config(config["data"]["init_args"])
    spec = plan(1000, 100, 1, 8.0, accountant="rdp")
    name = other.open(scope="other", stage="fit", spec=spec, planned_steps=10, data_fingerprint=rows.fingerprint)
    other.spend(name)
    for told, status in ((None, 2), ({"total_epsilon": 9.0}, 2), ({"total_epsilon": 20}, 0)):
        if told is not None:
            (run / "experiment.yaml").write_text(yaml.safe_dump({"name": "mine", "privacy": told}))
        assert histogram(run) == status
        error = capsys.readouterr().err
        assert not status or ("past privacy.total_epsilon = 9" in error and "raise the total" in error)
    assert Ledger(run / "ledger.jsonl").mechanisms["labels/histogram"].done_steps == 1


def test_an_exact_histogram_must_be_asked_for_and_is_written_down_as_not_private(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(run, sigma=None)
    assert histogram(run) == 2
    assert "--exact" in capsys.readouterr().err
    assert histogram(run, "--exact") == 0
    assert "NOT PRIVATE" in capsys.readouterr().out
    assert json.loads((run / "labels.histogram.json").read_text())["sums"] == {"Banks": 600, "Music": 300, "Alarm": 0}
    spent = Ledger(run / "ledger.jsonl").summary()
    assert spent["scopes"]["labels"]["epsilon"] is None
    assert "NOT PRIVATE, labels: the exact histogram" in spent["statement"]
    assert cli.main(["ledger", str(run)]) == 0
    assert histogram(run) == 2  # the exact one is there


def test_a_run_without_privacy_writes_no_ledger(run: Path) -> None:
    trained(run, sigma=None, private=False)
    assert histogram(run, "--exact") == 0
    assert not (run / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("sigma", "source", "more", "message"),
    [
        (5.0, "label", ["--exact"], "--exact"),
        (5.0, None, [], "no model of utterances given a label"),
        (5.0, "label", ["--num-samples", "0"], "--num-samples: 0"),
        (5.0, "label", ["--labels", "no/such/file"], "no/such/file"),
    ],
)
def test_what_does_not_fit_is_told_and_spends_nothing(
    run: Path, sigma: float, source: str | None, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(run, sigma, source=source)
    assert histogram(run, *more) == 2
    assert message in capsys.readouterr().err
    assert len(Ledger(run / "ledger.jsonl").summary()["mechanisms"]) == 1
