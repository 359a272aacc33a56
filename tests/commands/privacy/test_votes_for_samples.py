"""`resample --num-clusters`: one round of votes for samples of a private model, in the scope that paid for them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

import cli
from commands.privacy import feature_extractors
from commands.run.experiment.experiment import load, shipped
from commands.run.steps.recipes import steps_of
from doppel.errors import UserError
from doppel.privacy import histogram
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import plan
from doppel.text.topics import Codebook

SIGMA, EPSILON, UNITS = 4.0, 4.0, 400
KINDS = ("alarm", "pizza", "weather")


def embed(texts: list[str], encoder: str = "", independent: bool = False, keep: object = None) -> np.ndarray:
    """Tells three kinds of text apart."""
    rows = np.array([[float(kind in text) for kind in KINDS] + [0.1] for text in texts], dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained one-stage model, users with two rows each, and a pool in which the commonest kind is the rarest."""
    monkeypatch.delenv("DOPPEL_LEDGER", raising=False)
    monkeypatch.setattr(feature_extractors, "embed", embed)
    monkeypatch.setattr(feature_extractors, "form_of", str)
    kinds = ["alarm"] * 560 + ["pizza"] * 160 + ["weather"] * 80
    rows = [{"utterance": f"my secret {kind} {i}", "unit": f"u{i // 2}"} for i, kind in enumerate(kinds)]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pool = [{"utterance": f"{KINDS[(i % 10 > 1) + (i % 10 > 4)]} {i}"} for i in range(1000)]
    (tmp_path / "pool.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in pool))
    spec = plan(UNITS, 40, 1, EPSILON, delta=1e-5, unit="user", histogram_noise_multiplier=SIGMA)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    name = ledger.open(scope="one_stage", stage="one_stage", spec=spec, planned_steps=10, data_fingerprint="f00d")
    for _ in range(10):
        ledger.spend(name)
    privacy: dict[str, Any] = {"target_epsilon": EPSILON, "delta": 1e-5, "scope": "one_stage"}
    privacy["histogram_noise_multiplier"] = SIGMA
    data = {"init_args": {"train_path": str(tmp_path / "train.jsonl"), "unit": "user"}}
    (tmp_path / "one_stage").mkdir()
    (tmp_path / "one_stage" / "config.yaml").write_text(yaml.safe_dump({"privacy": privacy, "data": data}))
    return tmp_path


def resample(run: Path, *more: str) -> int:
    words = [
        "step",
        "resample",
        str(run / "one_stage"),
        "--pool",
        str(run / "pool.jsonl"),
        "--out",
        str(run / "s.jsonl"),
    ]
    return cli.main([*words, "--num-samples", "100", "--num-clusters", "3", *more])


def test_samples_are_drawn_by_votes_and_one_ledger_pays_as_dp_accounting_says(run: Path) -> None:
    assert resample(run) == 0
    lines = [json.loads(line) for line in (run / "s.jsonl").read_bytes().splitlines()]
    kinds = Counter(line["utterance"].split()[0] for line in lines)
    assert kinds["alarm"] > 55 and kinds["pizza"] > kinds["weather"], "70, 20 and 10 %; 20, 30 and 50 % in the pool"
    assert all("label" not in line for line in lines), "clusters have no names that anybody should read"
    training, votes = Ledger(run / "ledger.jsonl").summary()["mechanisms"]
    assert (votes["id"], votes["sample_rate"], votes["done_steps"]) == ("one_stage/histogram", 1.0, 1)
    assert votes["noise_multiplier"] == SIGMA
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    step = PoissonSampledDpEvent(training["sample_rate"], GaussianDpEvent(training["noise_multiplier"]))
    accountant.compose(SelfComposedDpEvent(step, training["done_steps"])).compose(GaussianDpEvent(SIGMA))
    found = Ledger(run / "ledger.jsonl").epsilon("one_stage")
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=5e-3) and 0.98 * EPSILON < found <= EPSILON


def test_no_count_without_noise_is_on_disk_or_printed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    known, clean = histogram.unit_sums, []
    monkeypatch.setattr(histogram, "unit_sums", lambda *args: clean.append(known(*args)) or clean[-1])
    assert resample(run) == 0
    (sums,) = clean
    assert sorted(sums.values()) == [40.0, 80.0, 280.0]
    released = json.loads((run / "one_stage" / "marginals.json").read_text())["sums"]
    assert all(abs(released[name] - sums[name]) > 1e-9 for name in sums)
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in ("train.jsonl", "pool.jsonl")]
    told = capsys.readouterr().out + "\n".join(path.read_text(errors="replace") for path in files)
    assert not re.search(r"\b280\.0\b", told) and "secret" not in told  # noise may begin like it, as 280.09… does


def test_given_again_it_reads_what_was_released_and_no_private_file(run: Path, capsys: pytest.CaptureFixture) -> None:
    assert resample(run) == 0
    before = (run / "ledger.jsonl").read_bytes(), (run / "one_stage" / "marginals.json").read_bytes()
    (run / "train.jsonl").unlink()
    assert resample(run, "--seed", "2") == 0
    assert ((run / "ledger.jsonl").read_bytes(), (run / "one_stage" / "marginals.json").read_bytes()) == before
    assert (
        cli.main(["step", "resample", str(run / "one_stage"), "--pool", str(run / "pool.jsonl"), "--out", "x", *OTHER])
        == 2
    )
    assert (
        "3 clusters of samples, not 5, and their shares are released: give --num-clusters 3" in capsys.readouterr().err
    )


OTHER = ["--num-samples", "100", "--num-clusters", "5"]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**6)), min_size=1, max_size=30),
    st.integers(0, 5),
    st.integers(2, 9),
)
def test_a_unit_more_moves_the_votes_by_at_most_one(rows: list[tuple[int, int]], left_out: int, clusters: int) -> None:
    """Whatever it says, however many rows it has, and wherever the clusters lie."""

    def vector(seed: int) -> np.ndarray:
        drawn = np.random.default_rng(seed).normal(size=(1, 8)).astype(np.float32)
        return drawn / np.linalg.norm(drawn)

    centers = np.concatenate([vector(place) for place in range(clusters)])
    book = Codebook(tuple(f"cluster {place}" for place in range(clusters)), centers, "")

    def votes(kept: list[tuple[int, int]]) -> np.ndarray:
        ballots = ((str(unit), {book.nearest(vector(seed))[0]: 1.0}) for unit, seed in kept)
        return np.array([*histogram.unit_sums(ballots, book.names).values()])

    moved = votes(rows) - votes([row for row in rows if row[0] != left_out])
    assert math.sqrt(float(moved @ moved)) <= 1.0


def test_whom_a_text_is_nearest_to_does_not_depend_on_who_is_beside_it() -> None:
    """To the last bit, also where two centres are about as near."""
    generator = np.random.default_rng(0)
    center = generator.normal(size=64)
    centers = (center + 1e-7 * generator.normal(size=(40, 64))).astype(np.float32)
    book = Codebook(tuple(map(str, range(40))), centers / np.linalg.norm(centers, axis=1, keepdims=True), "")
    vectors = (center + 1e-3 * generator.normal(size=(300, 64))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert book.nearest(vectors) == [book.nearest(vectors[place : place + 1])[0] for place in range(300)]


@pytest.mark.parametrize("name", ["one_stage", "two_stage"])
def test_one_budget_is_planned_for_training_and_votes_and_later_draws_spend_nothing(name: str) -> None:
    changes = {"systems": [name], "data.train_path": "mine.csv", "resampling.of": "votes"}
    experiment = load(
        shipped("own-data-small"), {**changes, "resampling.clusters": 20, "resampling.noise_multiplier": 7}
    )
    steps = steps_of(experiment, Path("run"))
    fits = [step.config["privacy"] for step in steps if step.kind == "fit" and step.config is not None]
    assert fits and all(privacy["histogram_noise_multiplier"] == 7 for privacy in fits)
    (drawing,) = [step for step in steps if step.command == "resample"]
    assert drawing.protected == ("mine.csv",)
    assert drawing.config["num_clusters"] == 20 and "encoder" in drawing.config
    made = {file.path.rpartition("/")[2]: file.role for file in drawing.writes}
    assert made["marginals.json"] == "metrics" and made["codebook.jsonl"] == "data" and "release" in made.values()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"resampling.clusters": 1}, "resampling.clusters is 1"),
        ({"candidates": 4}, "leave out candidates"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        load(shipped("own-data-small"), {"systems": ["one_stage"], "resampling.of": "votes", **changes})
