"""The system `two_stage_attributes`: rows of attributes by AIM, trees for them, texts for these, in one budget."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from finished_run import TREES, away, draw
from readers import reader
from test_attributes_run import SHARE, lines, settings, write_run
from tiny_model import PAIRS

import cli
from commands.page.released import read_release
from commands.runs.run_record import RunRecord
from datamodules.attribute_codes import check_schema
from doppel.privacy.ledger import Ledger
from doppel.tables.mixture import Mixture

SYSTEM = "two_stage_attributes"
SCHEMA = """
head: {made: function, values: [Yield, Fence]}
calls: {made: calls, bins: [3]}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model: str) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("attribute_trees")
    rows = [{"text": f"{text} {i}", "parse": tree} for i, (text, tree) in enumerate(PAIRS * 30)]
    (folder / "private.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "schema.yaml").write_text(SCHEMA)
    own = settings(folder, tiny_model, systems=[SYSTEM], num_samples=24)
    own["epochs"] = {"parse_tree": 1, "parse2utterance": 2}
    own["stages"] = {"parse_tree": TREES}
    fit = Mixture.fit
    short = mock.patch.object(Mixture, "fit", lambda model, found, num_units, steps=0: fit(model, found, num_units, 20))
    with short:
        with mock.patch.dict(os.environ, {"DOPPEL_KEY": str(folder / "site" / "key")}):
            run = write_run(folder, own)
        yield run


def test_a_tree_is_written_for_each_row_and_a_text_for_each_tree(run: Path) -> None:
    rows = [line["label"] for line in lines(run / f"{SYSTEM}_rows.jsonl")]
    trees, samples = lines(run / f"{SYSTEM}_trees.jsonl"), lines(run / f"synthetic_{SYSTEM}.jsonl")
    form = r"Head: (Yield|Fence|other) \| Calls: (under 3|3 or more|other)"
    assert len(rows) == 24 and all(re.fullmatch(form, row) for row in rows)
    kept = iter(rows)
    assert trees and all(tree["label"] in kept for tree in trees), "in the order of their rows"
    asked = [trees[place % len(trees)] for place in range(24)]  # a row without a tree leaves one to ask a second time
    assert [(s["parse"], s["label"]) for s in samples] == [(t["parse"], t["label"]) for t in asked]


def test_one_ledger_pays_for_rows_trees_and_texts_as_dp_accounting_says(run: Path) -> None:
    told = {m["id"].removeprefix(f"{SYSTEM}/"): m for m in Ledger(run / "ledger.jsonl").summary()["mechanisms"]}
    trees, texts, table = (told[name] for name in (f"{SYSTEM}_parse_tree", f"{SYSTEM}_parse2utterance", "marginals"))
    assert len(told) == 3 and trees["noise_multiplier"] == texts["noise_multiplier"]
    assert (trees["done_steps"], texts["done_steps"]) == (5, 9), "of one and two epochs of 4.5 steps"
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for fit in (trees, texts):
        step = PoissonSampledDpEvent(fit["sample_rate"], GaussianDpEvent(fit["noise_multiplier"]))
        accountant.compose(SelfComposedDpEvent(step, fit["done_steps"]))
    accountant.compose(GaussianDpEvent(table["noise_multiplier"]))
    found = Ledger(run / "ledger.jsonl").epsilon(SYSTEM)
    assert found == pytest.approx(accountant.get_epsilon(1e-4), rel=5e-3) and 2.9 < found <= 3.0
    releases = [line for line in lines(run / f"{SYSTEM}_rows.releases.jsonl") if "marginal" in line]
    assert 0 < SHARE < 1 and sum(1 / line["sigma"] ** 2 for line in releases) < table["noise_multiplier"] ** -2


def test_it_is_verified_its_page_counts_functions_and_every_file_has_readers(run: Path) -> None:
    assert cli.main(["verify", str(run)]) == 0
    assert cli.main(["page", str(run)]) == 0
    assert read_release(RunRecord(run), SYSTEM, ["(Yield)"]) is None, "no function has a released share"
    page = (run / "report.html").read_text()
    assert "2-stage, by attributes" in page and "gaussian marginals" in page and "VERIFIED on" in page
    assert ">Attribute</th>" not in page and ">Request</th>" in page
    assert {reader(str(p.relative_to(run))) for p in run.rglob("*") if p.is_file()} == {"anybody", "who holds the run"}


def test_trees_tell_their_attributes_without_a_parser(run: Path) -> None:
    samples, schema, folder = run / f"synthetic_{SYSTEM}.jsonl", run.parent / "schema.yaml", run.parent
    schema.write_text(SCHEMA)
    human = [json.dumps({"text": f"{text} now", "parse": tree}) for text, tree in PAIRS * 10]
    (folder / "human.jsonl").write_text("\n".join(human) + "\n")
    words = ["evaluate", "--synthetic", str(samples), "--reference", str(folder / "human.jsonl"), "--no-mauve"]
    words += ["--columns.attributes", str(schema), "--out", str(folder / "found.json")]
    assert cli.main(words) == 0
    found = json.loads((folder / "found.json").read_text())
    assert 0 <= found["tree_adherence"] <= 1 and 0 <= found["tree_adherence_chance"] <= 1
    codes = check_schema(str(schema))
    exact = [line | {"label": codes.of_row({}, "", "", line["parse"], None)} for line in lines(samples)]
    samples.write_text("".join(json.dumps(line) + "\n" for line in exact))
    assert cli.main(words) == 0
    assert json.loads((folder / "found.json").read_text())["tree_adherence"] == 1


def test_more_samples_need_neither_the_table_nor_epsilon(run: Path, finished: Path) -> None:
    ledger = (run / "ledger.jsonl").read_text()
    with away(finished.parent / "private.jsonl"):
        assert draw(run, "--num", "10") == 0
        assert draw(run, "--label", "Head: Yield", "--num", "6") == 0
        assert draw(run, "--trees", str(run / f"{SYSTEM}_trees.jsonl")) == 0
    folder = run / "samples"
    rows = [lines(folder / f"{SYSTEM}-{n}_rows.jsonl") for n in (2, 3)]
    assert [len(own) for own in rows] == [10, 6] and not (folder / f"{SYSTEM}-4_rows.jsonl").exists()
    assert all(row["label"].startswith("Head: Yield | ") for row in rows[1])
    assert len(lines(folder / f"{SYSTEM}-4.jsonl")) == len(lines(run / f"{SYSTEM}_trees.jsonl"))
    assert (run / "ledger.jsonl").read_text() == ledger
    assert cli.main(["verify", str(run)]) == 0
