"""The system `attributes`: rows of attributes by AIM, then texts for them, in one run, one scope and one budget."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import yaml
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from finished_run import away, draw, step_here
from readers import reader

import cli
from commands.report.released import read_release
from commands.run import launch
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load
from commands.run_folder.run_folder import RunFolder
from doppel.privacy.accounting import mu_of
from doppel.privacy.ledger import Ledger
from doppel.tables.mixture import Mixture

SCHEMA = """
topic: {of: subject, values: [music, banks]}
stars: [1, 2, 3]
words: {made: words, bins: [3]}
"""
#: A value that the public schema does not have.
SECRET = "divorce"
N, SHARE = 240, 0.2


def write_table(folder: Path) -> Path:
    """Reviews of three subjects, one of which no public schema has."""
    generator = np.random.default_rng(0)
    subjects = ["music", "banks", SECRET]
    rows = [
        {"text": f"say {i}" + " more" * int(generator.integers(0, 4)), "subject": subjects[i % 3], "stars": i % 3 + 1}
        for i in range(N)
    ]
    path = folder / "private.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "schema.yaml").write_text(SCHEMA)
    return path


def settings(folder: Path, tiny_model: str, **more: Any) -> dict[str, Any]:
    return {
        "systems": ["attributes"],
        "epsilon": 3.0,
        "num_samples": 40,
        "attributes": {"schema": str(folder / "schema.yaml"), "share": SHARE},
        "epochs": {"one_stage": 1},
        "data": {"train_path": str(folder / "private.jsonl"), "batch_size": 40, "unit": "utterance"},
        "model": {"base_model": tiny_model, "optimizer": {"lr": 0.01}},
        "sampling": {"max_new_tokens": 6, "redraws": None},
        "trainer": {"accelerator": "cpu", "logger": False, "enable_progress_bar": False},
        "privacy": {"delta": 1e-4},
        **more,
    }


def write_run(folder: Path, given: dict[str, Any]) -> Path:
    """Every step but the page."""
    (folder / "mine.yaml").write_text(yaml.safe_dump(given))
    run = folder / "run"
    work = launch.begin(load(folder / "mine.yaml"), run, load_site(None, {}))
    launch.write(work, overwrite=True)
    for step in work.steps[:-1]:
        assert step_here("", run / ".done" / step.name, ["python", "cli.py", *step.words(run)]) == 0, step.name
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("attributes")
    write_table(folder)
    fit = Mixture.fit
    short = mock.patch.object(Mixture, "fit", lambda model, found, num_units, steps=0: fit(model, found, num_units, 20))
    with short:
        with mock.patch.dict(os.environ, {"DOPPEL_KEY": str(folder / "site" / "key")}):
            run = write_run(folder, settings(folder, tiny_model))
        yield run


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_texts_are_written_for_rows_of_public_values(run: Path) -> None:
    prompts = [line["label"] for line in lines(run / "attributes/labels.jsonl")]
    samples = lines(run / "attributes/samples.jsonl")
    assert len(prompts) == len(samples) == 40
    assert [sample["label"] for sample in samples] == prompts
    form = r"Topic: (music|banks|other) \| Stars: (1|2|3|other) \| Words: (under 3|3 or more|other)"
    assert all(re.fullmatch(form, prompt) for prompt in prompts)


def test_one_ledger_pays_for_both_as_dp_accounting_and_a_sum_of_gaussians_say(run: Path) -> None:
    (fit, table) = Ledger(run / "ledger.jsonl").summary()["mechanisms"]
    assert (fit["id"], table["id"]) == ("attributes/attributes", "attributes/marginals")
    assert (table["kind"], table["sample_rate"], table["done_steps"]) == ("gaussian_marginals", 1.0, 1)
    assert table["noise_multiplier"] == pytest.approx(1 / (math.sqrt(SHARE) * mu_of(3.0, 1e-4)))
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    step = PoissonSampledDpEvent(fit["sample_rate"], GaussianDpEvent(fit["noise_multiplier"]))
    accountant.compose(SelfComposedDpEvent(step, fit["done_steps"]))
    accountant.compose(GaussianDpEvent(table["noise_multiplier"]))
    found = Ledger(run / "ledger.jsonl").epsilon("attributes")
    assert found == pytest.approx(accountant.get_epsilon(1e-4), rel=5e-3) and 2.9 < found <= 3.0
    releases = lines(run / "attributes/labels.releases.jsonl")
    square = sum(1 / line["sigma"] ** 2 for line in releases if "marginal" in line)
    assert square < table["noise_multiplier"] ** -2
    assert get_epsilon_gaussian(1 / math.sqrt(square), 1e-4) < found


def test_what_no_public_value_names_is_other_and_stands_nowhere(run: Path) -> None:
    told = "".join(p.read_text(errors="replace") for p in run.rglob("*") if p.is_file() and p.suffix != ".ckpt")
    assert SECRET not in told and "Topic: other" in told


def test_nothing_that_was_counted_is_on_disk_without_noise(run: Path) -> None:
    """One-way counts are whole numbers; noisy ones are multiples of a fine grid, none of them whole."""
    for line in lines(run / "attributes/labels.releases.jsonl")[1:]:
        counts = np.array(line.get("counts", []))
        assert not (counts == np.rint(counts)).any()
        assert "marginal" not in line or line["sigma"] > 1


def test_the_run_is_verified_and_its_page_has_the_released_shares(run: Path) -> None:
    assert cli.main(["verify", str(run)]) == 0
    assert cli.main(["report", str(run)]) == 0
    release = read_release(RunFolder(run), "attributes", [])
    assert release is not None and release.num_units == N
    assert set(release.shares) >= {"Topic: music", "Topic: other", "Stars: 3", "Words: under 3"}
    low, high = release.interval("Topic: other")
    assert low < 1 / 3 < high or abs(release.shares["Topic: other"] - 1 / 3) < 4 * release.deviations["Topic: other"]
    page = (run / "report.html").read_text()
    assert (
        "Topic: music" in page and "gaussian marginals" in page and "<h3>Topic</h3>" in page and "VERIFIED on" in page
    )


def test_a_share_is_what_all_its_marginals_say_together(run: Path) -> None:
    told = [line for line in lines(run / "attributes/labels.releases.jsonl") if 0 in line.get("marginal", ())]
    release = read_release(RunFolder(run), "attributes", [])
    weights, counts = [], []
    for line in told:
        own = np.moveaxis(np.array(line["counts"]), line["marginal"].index(0), 0).reshape(3, -1)
        weights.append(1 / (own.shape[1] * line["sigma"] ** 2))
        counts.append(own.sum(1))
    expected = np.average(counts, axis=0, weights=weights) / N
    found = [release.shares[f"Topic: {value}"] for value in ("music", "banks", "other")]
    assert len(told) > 1 and found == pytest.approx(expected)
    assert release.deviations["Topic: music"] == pytest.approx(sum(weights) ** -0.5 / N)


def test_other_counts_than_those_that_were_released_are_not_verified(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = lines(run / "attributes/labels.releases.jsonl")
    exact = [line | ({"counts": [80.0, 80.0, 80.0]} if line.get("marginal") == [0] else {}) for line in told]
    (run / "attributes/labels.releases.jsonl").write_text("".join(json.dumps(line) + "\n" for line in exact))
    assert cli.main(["verify", str(run)]) == 1
    assert "attributes/labels.releases.jsonl was changed after attributes-marginals made it" in capsys.readouterr().out


def test_more_samples_need_neither_the_table_nor_epsilon(run: Path, finished: Path) -> None:
    ledger = (run / "ledger.jsonl").read_text()
    with away(finished.parent / "private.jsonl"):
        assert draw(run, "--num", "30") == 0
        assert draw(run, "--label", "Stars: 2 | Topic: music", "--num", "8") == 0
    more = lines(run / "attributes/draws/2/samples.jsonl")
    assert len(more) == 30
    asked = [line["label"] for line in lines(run / "attributes/draws/3/samples.jsonl")]
    assert len(asked) == 8 and all(label.startswith("Topic: music | Stars: 2 | Words: ") for label in asked)
    assert (run / "ledger.jsonl").read_text() == ledger
    assert cli.main(["verify", str(run)]) == 0


def test_attributes_that_there_are_not_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert draw(run, "--label", "Stars: 9") == 2
    assert "'Stars: 9'" in (told := capsys.readouterr().err) and "Stars: 1, Stars: 2, Stars: 3" in told


def test_the_command_again_measures_nothing_a_second_time(run: Path) -> None:
    before, ledger = (run / "attributes/labels.releases.jsonl").read_text(), (run / "ledger.jsonl").read_text()
    words = [
        "step",
        "attributes",
        str(run / "attributes/attributes"),
        "--out",
        str(run / "attributes/labels.jsonl"),
        "--num-samples",
        "15",
    ]
    assert cli.main(words) == 0
    assert (run / "attributes/labels.releases.jsonl").read_text() == before
    assert (run / "ledger.jsonl").read_text() == ledger


def test_releases_that_are_gone_are_read_from_the_ledger_and_not_measured_again(run: Path) -> None:
    path, ledger = run / "attributes/labels.releases.jsonl", (run / "ledger.jsonl").read_text()
    before = path.read_text()
    path.unlink()
    words = [
        "step",
        "attributes",
        str(run / "attributes/attributes"),
        "--out",
        str(run / "attributes/labels.jsonl"),
        "--num-samples",
        "15",
    ]
    assert cli.main(words) == 0
    assert path.read_text() == before and (run / "ledger.jsonl").read_text() == ledger


def test_exact_rows_must_have_been_announced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "step",
        "attributes",
        str(run / "attributes/attributes"),
        "--out",
        str(run / "exact.jsonl"),
        "--num-samples",
        "15",
        "--exact",
    ]
    assert cli.main(words) == 2
    assert "leave --exact out" in capsys.readouterr().err and not list(run.glob("exact*"))


def test_the_page_says_who_may_read_each_file(run: Path) -> None:
    assert {reader(str(p.relative_to(run))) for p in run.rglob("*") if p.is_file()} == {"anybody", "who holds the run"}
