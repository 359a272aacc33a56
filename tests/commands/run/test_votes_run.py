"""`resampling.of=votes` in a run: training, votes and samples under one ε, verified, and drawn from again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest import mock

import pytest
import yaml
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from finished_run import TREES, away, draw, step_here
from tiny_model import PAIRS

import cli
from commands.report.released import read_release
from commands.run import launch
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load
from commands.run_folder.run_folder import RunFolder
from doppel.privacy.ledger import Ledger

pytestmark = pytest.mark.slow  # two systems are trained
SIGMA, EPSILON, DELTA = 6.0, 3.0, 1e-4


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> Path:
    """``one_stage`` and ``two_stage``, whose utterances are drawn by votes; all but the page."""
    folder = tmp_path_factory.mktemp("votes")
    rows = [{"utterance": f"{words} {i}", "parse": tree} for i, (words, tree) in enumerate(PAIRS * 20)]
    (folder / "private.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = {
        "systems": ["one_stage", "two_stage"],
        "epsilon": EPSILON,
        "num_samples": 12,
        "resampling": {"of": "votes", "clusters": 3, "noise_multiplier": SIGMA, "oversample": 3},
        "epochs": dict.fromkeys(("one_stage", "parse_tree", "parse2utterance"), 1),
        "data": {"train_path": str(folder / "private.jsonl"), "batch_size": 20, "unit": "utterance"},
        "model": {"base_model": tiny_model, "optimizer": {"lr": 0.01}},
        "sampling": {"max_new_tokens": 8, "redraws": None},
        "trainer": {"accelerator": "cpu", "logger": False, "enable_progress_bar": False},
        "privacy": {"delta": DELTA},
        "stages": {"parse_tree": TREES},
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(given))
    run = folder / "run"
    with mock.patch.dict(os.environ, {"DOPPEL_KEY": str(folder / "site" / "key")}):
        work = launch.begin(load(folder / "mine.yaml"), run, load_site(None, {}))
        launch.write(work, overwrite=True)
        for step in work.steps[:-1]:
            assert step_here("", run / ".done" / step.name, ["python", "cli.py", *step.words(run)]) == 0, step.name
    return run


@pytest.mark.parametrize("scope", ["one_stage", "two_stage"])
def test_one_calibration_of_the_noise_covers_trainings_and_votes(run: Path, scope: str) -> None:
    own = [m for m in Ledger(run / "ledger.jsonl").summary()["mechanisms"] if m["scope"] == scope]
    assert [m["kind"] for m in own].count("gaussian_histogram") == 1
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for m in own:
        step = GaussianDpEvent(m["noise_multiplier"])
        step = PoissonSampledDpEvent(m["sample_rate"], step) if m["sample_rate"] < 1 else step
        accountant.compose(SelfComposedDpEvent(step, m["done_steps"]))
        assert m["done_steps"] == m["planned_steps"]
    found = Ledger(run / "ledger.jsonl").epsilon(scope)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=5e-3) and 0.97 * EPSILON < found <= EPSILON


def test_the_run_is_verified_and_nobody_reads_of_clusters(run: Path) -> None:
    assert cli.main(["verify", str(run)]) == 0
    assert cli.main(["report", str(run)]) == 0
    assert "cluster 1" not in (run / "report.html").read_text()
    assert all(read_release(RunFolder(run), name, ["(Yield (Ask))"]) is None for name in ("one_stage", "two_stage"))
    samples = [json.loads(line) for line in (run / "two_stage/samples.jsonl").read_bytes().splitlines()]
    assert len(samples) == 12 and all(line["parse"] and line["utterance"] for line in samples)


def test_more_samples_read_what_was_released_and_no_private_file(run: Path, finished: Path) -> None:
    before = (run / "ledger.jsonl").read_bytes()
    with away(finished.parent / "private.jsonl"):
        assert draw(run, "--system", "one_stage", "--num", "9") == 0
    assert len((run / "one_stage/draws/2/samples.jsonl").read_bytes().splitlines()) == 9
    assert (run / "ledger.jsonl").read_bytes() == before
