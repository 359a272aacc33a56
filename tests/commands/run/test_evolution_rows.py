"""`evolution.rows=attributes`: rows that the run itself measures, in the scope and under the one ε of the votes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

import cli
from commands.run.experiment.experiment import load, shipped
from commands.run.preflight.training_plan import outlook
from commands.run.steps.recipes import steps_of
from commands.run_folder.systems import system
from doppel.errors import UserError
from doppel.evolution.evolve import evolve
from doppel.privacy import ledger as ledger_module
from doppel.privacy.accounting import mu_of
from doppel.privacy.ledger import Ledger
from doppel.tables.mixture import Mixture
from tests.evolving import SECRET, call, everything, make_run, spent, write_private
from tests.killed import Killed, kill_at

SHARE, EPSILON, DELTA = 0.1, 4.0, 1e-5


@pytest.fixture(autouse=True)
def short_fits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DOPPEL_LEDGER", raising=False)
    fit = Mixture.fit
    short = mock.patch.object(Mixture, "fit", lambda model, found, num_units, steps=0: fit(model, found, num_units, 20))
    with short:
        yield


def fields(folder: Path) -> dict[str, Any]:
    (folder / "schema.yaml").write_text("stars: [1, 2, 3]\nwords: {made: words, bins: [6]}\n")
    return {
        "epsilon": EPSILON,
        "attributes": {"schema": str(folder / "schema.yaml"), "share": SHARE},
        "evolution": {"generator": "grammar", "rounds": 2, "variations": 2, "rows": "attributes"},
    }


def test_rows_and_votes_are_one_budget_as_dp_accounting_says(tmp_path: Path) -> None:
    seen: list[Any] = []

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(args[4])
        return evolve(*args, **options)

    with mock.patch("commands.privacy.evolve.run_rounds", watched):
        run = make_run(tmp_path, **fields(tmp_path))
    table, votes = Ledger(run / "ledger.jsonl").summary()["mechanisms"]
    assert (table["id"], votes["id"]) == ("evolution/marginals", "evolution/votes")
    assert (table["done_steps"], votes["done_steps"], table["num_units"]) == (1, 2, 40)
    mu = mu_of(EPSILON, DELTA)
    assert table["noise_multiplier"] == pytest.approx(1 / (math.sqrt(SHARE) * mu))
    assert votes["noise_multiplier"] == pytest.approx(math.sqrt(2 / (1 - SHARE)) / mu, rel=1e-3)
    accountant = PLDAccountant().compose(GaussianDpEvent(table["noise_multiplier"]))
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(votes["noise_multiplier"]), 2))
    found = Ledger(run / "ledger.jsonl").epsilon("evolution")
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3) and 0.99 * EPSILON < found <= EPSILON
    (rows,) = seen
    assert len(rows) == 12 and all(set(row) == {"stars", "words"} for row in rows)
    assert {row["stars"] for row in rows} <= {"1", "2", "3", "other"}
    assert SECRET not in everything(run) and cli.main(["verify", str(run)]) == 0


def test_the_commands_of_a_run_given_again_spend_nothing_and_write_the_same(tmp_path: Path) -> None:
    run = make_run(tmp_path, **fields(tmp_path))
    before = {path: path.read_bytes() for path in run.rglob("*.jsonl")}
    again = make_run(tmp_path, **fields(tmp_path))
    assert again == run and {path: path.read_bytes() for path in run.rglob("*.jsonl")} == before
    assert (spent(run, "marginals"), spent(run)) == (1, 2)


def test_killed_while_it_measures_it_goes_on_with_what_it_has(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, ledger_module.Ledger, "release", 2, after=True)
        with pytest.raises(Killed):
            make_run(tmp_path, **fields(tmp_path))
    ledger = Ledger(tmp_path / "run" / "ledger.jsonl")
    kept = ledger.releases("evolution/marginals")
    run = make_run(tmp_path, **fields(tmp_path))
    released = ledger.releases("evolution/marginals")
    assert released[: len(kept)] == kept and len(released) > len(kept) == 3  # what was asked, and two
    assert (spent(run, "marginals"), spent(run)) == (1, 2)


def test_rows_that_were_changed_since_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = make_run(tmp_path, **fields(tmp_path))
    rows = run / "evolution" / "rows.csv"
    rows.write_text(rows.read_text() + "3,under 6\n")
    assert call(run, tmp_path / "private.jsonl", rows=str(rows), privacy={"target_epsilon": EPSILON}) == 2
    assert "they are not rows as" in capsys.readouterr().err
    assert cli.main(["verify", str(run)]) == 1


def test_a_check_tells_the_noise_that_the_votes_will_have(tmp_path: Path) -> None:
    private = write_private(tmp_path)
    changes = {"data.train_path": str(private), "data.unit": "user", "systems": ["evolution"], "epsilon": EPSILON}
    changes |= {"attributes.schema": fields(tmp_path)["attributes"]["schema"], "privacy.delta": DELTA}
    experiment = load(shipped("own-data-small"), {**changes, "evolution.rows": "attributes"})
    steps = steps_of(experiment, tmp_path / "run")
    found = outlook(experiment, system("evolution"), steps, {str(private): 40}, tmp_path / "run")
    assert found is not None and found.noise_multiplier == pytest.approx(
        math.sqrt(3 / (1 - SHARE)) / mu_of(EPSILON, DELTA), rel=1e-3
    )
    first, second, *_ = steps
    assert first.command == "rows" and first.protected == second.protected == (str(private),)
    assert f"{first.writes[0].path}" in second.reads


def test_without_privacy_rows_are_the_tables_own_and_private(tmp_path: Path) -> None:
    run = make_run(tmp_path, **{**fields(tmp_path), "epsilon": math.inf})
    entry = json.loads((run / "manifest.json").read_text())["files"]["evolution/rows.csv"]
    assert entry["role"] == "private" and not (run / "ledger.jsonl").exists()
    assert not (run / "evolution" / "rows.csv.releases.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"evolution.rows": "attributes"}, "evolution.rows is attributes, and nothing says which there are"),
        ({"privacy.histogram_share": 0.1}, "privacy.histogram_share leaves room for counts of labels"),
        ({"privacy.histogram_noise_multiplier": 10.0}, "privacy.histogram_noise_multiplier leaves room"),
    ],
)
def test_room_that_nothing_uses_and_rows_that_nothing_describes_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        load(shipped("own-data-small"), {"systems": ["evolution"], **changes})
    free = {"variants.evolution.privacy.histogram_share": 0.1, "labels": "x.txt", "evolution.per_label": True}
    experiment = load(shipped("own-data-small"), {"systems": ["evolution"], "data.train_path": "mine.csv", **free})
    (step,) = [step for step in steps_of(experiment, Path("run")) if step.command == "evolve"]
    assert step.config["privacy"]["histogram_share"] == 0.1
