"""Honest mistakes in a finished run, each named by `verify`, and no ε is told of it by report, ledger and tables."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from page_content import read_html
from run_folders import end_step, evaluate, make_run, sample, spec

import cli
from commands.quality.frame import VOID, pool, read_runs
from commands.quality.tables import table
from commands.report.report_json import build_report
from commands.report.report_text import render
from commands.run.execution.ledger import ledger as ledger_command
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.steps import File
from doppel.privacy.ledger import Ledger
from doppel.privacy.release import NoisyHistogram, declare
from doppel.privacy.spec import PrivacyArguments

SECRET = "lunch with Ana at her mother's"
WEIGHTS = "model_two_stage/checkpoints/last.ckpt"
SAMPLES = File("two_stage/samples.jsonl", "release", "two_stage", "two_stage")
CHOSEN = File("chosen.jsonl", "release", "two_stage", "two_stage")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished private run of one system, in which everything fits."""
    folder = tmp_path / "runs" / "run"
    made = make_run(folder, metrics={"two_stage": {}})
    sample(folder, "two_stage")
    evaluate(folder, "two_stage", made["metrics"]["two_stage"])
    return folder


def verify(run: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Why a run is not verified; nothing where it is."""
    capsys.readouterr()
    status = cli.main(["verify", str(run)])
    told, card = capsys.readouterr().out, json.loads((run / "privacy_card.json").read_text())
    assert told == (run / "privacy_card.txt").read_text() and SECRET not in told
    assert (status == 0) == card["verified"] == told.endswith("\nVERIFIED\n") == (card["reasons"] == [])
    assert all(f"- {text}" in told.partition("NOT VERIFIED:")[2] for text in card["reasons"])
    reasons: list[str] = card["reasons"]
    return reasons


def read_private(run: Path, *mechanisms: str, verb: str = "keep-best") -> None:
    """A step that chose samples by what it read of private turns."""
    private = run.parent / "private.jsonl"
    private.write_text(json.dumps({"utterance": SECRET}))
    (run / CHOSEN.path).write_bytes((run / SAMPLES.path).read_bytes())
    end_step(run, "choose_two_stage", [verb], [CHOSEN], [SAMPLES.path], str(private), mechanisms)


def count(run: Path, spends: bool = True) -> None:
    """A histogram of the budget."""
    terms = PrivacyArguments(3.0, delta=1e-5, accountant="rdp", histogram_noise_multiplier=20.0)
    ledger = Ledger(run / "ledger.jsonl")
    name = declare(
        ledger, "two_stage", "histogram", terms.plan_release(NoisyHistogram.kind, 2000, "utterance", 20.0), "f00d"
    )
    if spends:
        ledger.spend(name, {"sums": {"a": 900.0}})


def roomy(run: Path) -> None:
    """The same run with room in its budget for a histogram."""
    shutil.rmtree(run)
    run.mkdir()
    terms = replace(spec(3.0), noise_multiplier=2 * spec(3.0).noise_multiplier)
    ledger = Ledger(run / "ledger.jsonl")
    name = ledger.open(scope="two_stage", stage="fit", spec=terms, planned_steps=5, data_fingerprint="f00d")
    for _ in range(5):
        ledger.spend(name)
    sample(run, "two_stage")


def test_a_run_in_which_everything_fits_is_verified(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(run, capsys) == []
    card = json.loads((run / "privacy_card.json").read_text())
    own = card["budgets"]["two_stage"]
    assert set(own["epsilon_by_accountant"]) == {"rdp", "pld"}
    assert 0 < own["epsilon_by_accountant"]["pld"] < own["epsilon"] == own["epsilon_by_accountant"]["rdp"] <= 3
    assert own["neighbouring_relation"].startswith("add or remove one utterance") and "dp-accounting" in str(
        own["accountant"]
    )
    (mechanism,) = own["mechanisms"]
    assert mechanism["noise_multiplier"] == spec(3.0).noise_multiplier and mechanism["steps_done"] == 20
    covered = {told["file"]: told["sha256"] for told in card["covered"]}
    assert covered.keys() == {
        WEIGHTS,
        "two_stage/samples.jsonl",
        "two_stage/samples.jsonl.metrics.json",
        "two_stage/evaluation.json",
    }
    listed = "".join(f"{digest}  {run / name}\n" for name, digest in covered.items())
    assert subprocess.run(["sha256sum", "-c"], input=listed, text=True, capture_output=True).returncode == 0
    assert card["not_covered"].keys() == {"configs/ (3 files)", "report.json", "sample_two_stage/predict.yaml"}


@pytest.mark.parametrize("is_link", [True, False])
def test_the_card_covers_the_samples_under_the_name_that_users_know(
    is_link: bool, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that somebody appends to ``synthetic.jsonl``, the link or a copy, is found by both who check."""
    synthetic = run / "synthetic.jsonl"
    if is_link:
        synthetic.symlink_to("two_stage/samples.jsonl")
    else:
        shutil.copy(run / "two_stage/samples.jsonl", synthetic)
    assert verify(run, capsys) == []
    page = Path(__file__).parents[3] / "docs" / "operations.md"
    (command,) = (line for line in page.read_text().splitlines() if "sha256sum" in line)
    monkeypatch.chdir(run)

    def is_as_listed() -> bool:
        return subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True).returncode == 0

    card = (run / "privacy_card.txt").read_text()
    assert "  synthetic.jsonl\n" in card and "1 in synthetic.jsonl" in card and is_as_listed()
    with synthetic.open("a") as file:
        file.write('{"utterance": "lunch with Ana"}\n')
    assert not is_as_listed()
    (reason, *_) = verify(run, capsys)
    assert "samples.jsonl was changed" in reason if is_link else "synthetic.jsonl is no longer" in reason
    assert "  synthetic.jsonl\n" not in (run / "privacy_card.txt").read_text().split("Not covered")[0]


def test_a_page_does_not_keep_the_epsilon_of_before_a_later_system(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "experiment.yaml").write_text("name: mine\nsystems: [two_stage]\nepsilon: 3.0\n")
    assert cli.main(["report", str(run)]) == 0 and verify(run, capsys) == []
    covered = json.loads((run / "privacy_card.json").read_text())["covered"]
    assert {"report.html", "report.json"} <= {told["file"] for told in covered}
    ledger = Ledger(run / "ledger.jsonl")
    ledger.spend(ledger.open(scope="topics", stage="fit", spec=spec(3.0), planned_steps=20, data_fingerprint="f00d"))
    sample(run, "topics")
    wrong = verify(run, capsys)
    for name in ("report.html", "report.json"):
        assert (
            f"{name} quotes another guarantee than the ledger states by now: give python cli.py report RUN again"
            in wrong
        )
    covered = json.loads((run / "privacy_card.json").read_text())["covered"]
    assert not {"report.html", "report.json"} & {told["file"] for told in covered}
    assert cli.main(["report", str(run)]) == 0 and verify(run, capsys) == []


def test_an_unfinished_stage_is_no_reason_and_its_steps_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", metrics={"two_stage": {}}, done=15)
    sample(tmp_path / "run", "two_stage")
    assert verify(tmp_path / "run", capsys) == []
    assert "15 of 20 steps" in (tmp_path / "run" / "privacy_card.txt").read_text()


def no_privacy(run: Path) -> None:
    """The overlay of the second stage was forgotten, or the checkpoint is that of another ledger."""
    sample(run, "two_stage", is_paid=False)


def another_budget(run: Path) -> None:
    """The samples are those of another system's checkpoint, in the place of this one's."""
    ledger = Ledger(run / "ledger.jsonl")
    ledger.spend(ledger.open(scope="more", stage="fit", spec=spec(3.0), planned_steps=1, data_fingerprint="f00d"))
    sample(run, "two_stage", is_paid=False)
    from doppel.files import sha256_of

    ledger.release("more/fit", sha256=sha256_of(run / WEIGHTS))


def swapped_checkpoint(run: Path) -> None:
    """A file of another run was put in the place of the checkpoint."""
    (run / WEIGHTS).write_text("other weights")


def no_checkpoint(run: Path) -> None:
    (run / WEIGHTS).unlink()


def start_from(run: Path, source: str) -> None:
    """The training of the run's model started from other weights of the run."""
    private, weights = str(run.parent / "people.jsonl"), File(WEIGHTS, "checkpoint", "two_stage", "two_stage")
    words = ["fit", "--run_dir", f"{run}/model_two_stage"]
    end_step(run, "model_two_stage", words, [weights], [source], private, ["two_stage/fit"])


def warm_start_from_another_budget(run: Path) -> None:
    """Those of another system, for which its own budget has paid, of the same people."""
    sample(run, "one_stage", "one_stage/pool.jsonl", "pool")
    start_from(run, "model_one_stage/checkpoints/last.ckpt")


def warm_start_from_private_weights(run: Path) -> None:
    """Those of a parser that learnt from private turns without privacy."""
    (run / "parser.ckpt").write_text("weights")
    file = File("parser.ckpt", "checkpoint")
    end_step(run, "parser", ["fit"], [file], private=str(run.parent / "people.jsonl"))
    start_from(run, "parser.ckpt")


def no_weights(run: Path) -> None:
    """The samples are those of no model of the run."""
    end_step(run, "sample_two_stage", ["keep-best"], [SAMPLES])


def an_edited_sample(run: Path) -> None:
    (run / SAMPLES.path).write_text(json.dumps({"utterance": SECRET}))


def no_samples(run: Path) -> None:
    (run / SAMPLES.path).unlink()


def a_stale_input(run: Path) -> None:
    """The trees were sampled anew, and the utterances are those of the trees before."""
    trees = File("two_stage/trees.jsonl", "prompts", "two_stage", "two_stage")
    (run / trees.path).write_text("{}\n")
    (run / SAMPLES.path).write_text("{}\n")
    end_step(run, "trees", ["predict"], [trees], [WEIGHTS])
    end_step(run, "sample_two_stage", ["predict"], [SAMPLES], [WEIGHTS, trees.path])
    (run / trees.path).write_text("[]\n")
    end_step(run, "trees", ["predict"], [trees], [WEIGHTS])


def prompts_of_nobody(run: Path) -> None:
    """A file that no step has made was read as the prompts."""
    (run / "two_stage/trees.jsonl").write_text(SECRET)
    (run / SAMPLES.path).write_text("{}\n")
    end_step(run, "sample_two_stage", ["predict"], [SAMPLES], [WEIGHTS, "two_stage/trees.jsonl"])


def private_text_unpaid(run: Path) -> None:
    """A step chose by private turns, and named nothing that paid."""
    read_private(run)


def a_histogram_pays_for_no_other_step(run: Path) -> None:
    """The budget has paid for what one step counted; another one chose by private turns, and paid nothing."""
    roomy(run)
    count(run)
    read_private(run)


def a_mechanism_that_never_ran(run: Path) -> None:
    """It was opened in the budget, and has spent no step."""
    roomy(run)
    count(run, spends=False)
    read_private(run, "two_stage/histogram", verb="resample")


def a_mechanism_of_another_budget(run: Path) -> None:
    ledger = Ledger(run / "ledger.jsonl")
    ledger.spend(ledger.open(scope="more", stage="fit", spec=spec(3.0), planned_steps=1, data_fingerprint="f00d"))
    read_private(run, "more/fit", verb="resample")


def a_caveat(run: Path) -> None:
    Ledger(run / "ledger.jsonl").caveat("two_stage", "a histogram was released without noise", voids=True)


#: Mistake → what is said of it. Those of the first kind are seen in ledger and manifest, those of the second in files.
UNPAID: dict[Callable[[Path], None], str] = {
    no_privacy: f"^{WEIGHTS}: .*no release of it",
    another_budget: f"^{WEIGHTS}: it was charged to budget 'more', not 'two_stage'",
    warm_start_from_another_budget: "to two_stage, was made of model_one_stage/.*, which is charged to one_stage",
    warm_start_from_private_weights: "^parser.ckpt: parser read private text .people.jsonl., and no mechanism was",
    no_weights: "^two_stage/samples.jsonl was made of nothing that a mechanism released",
    private_text_unpaid: "^chosen.jsonl: choose_two_stage read private text .private.jsonl., and no mechanism was",
    a_histogram_pays_for_no_other_step: "^chosen.jsonl: choose_two_stage read private text .private.jsonl., and no",
    a_mechanism_that_never_ran: "^chosen.jsonl: choose_two_stage names two_stage/histogram, of which",
    a_mechanism_of_another_budget: "^chosen.jsonl: choose_two_stage names more/fit, of which",
    a_caveat: "histogram was released without noise",
}
CHANGED: dict[Callable[[Path], None], str] = {
    swapped_checkpoint: f"^{WEIGHTS} was changed after model_two_stage made it",
    no_checkpoint: f"^{WEIGHTS} is not in the run folder since model_two_stage made it",
    an_edited_sample: "^two_stage/samples.jsonl was changed after sample_two_stage made it",
    no_samples: "^two_stage/samples.jsonl is not in the run folder since sample_two_stage made it",
    a_stale_input: "^two_stage/samples.jsonl was made of another two_stage/trees.jsonl than the one that trees has",
    prompts_of_nobody: "^two_stage/samples.jsonl was made of two_stage/trees.jsonl, which no step of this run has made",
}


def test_a_card_that_a_full_disk_cut_is_written_anew(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(run, capsys) == []
    (run / "privacy_card.json").write_text("{")
    assert verify(run, capsys) == [] and json.loads((run / "privacy_card.json").read_text())["verified"]


def test_a_run_that_may_only_be_read_is_verified_and_its_card_printed(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", no_file)  # root may write whatever the mode says
    for status, verdict in ((0, "\nVERIFIED"), (1, "NOT VERIFIED:\n- two_stage")):
        assert cli.main(["verify", str(run)]) == status
        told = capsys.readouterr()
        assert verdict in told.out and "on no disk" in told.err and not (run / "privacy_card.txt").exists()
        an_edited_sample(run)


@pytest.mark.parametrize(("mistake", "said"), [*UNPAID.items(), *CHANGED.items()])
def test_what_does_not_fit_prevents_it_and_is_named(
    run: Path, capsys: pytest.CaptureFixture[str], mistake: Callable[[Path], None], said: str
) -> None:
    mistake(run)
    reasons = verify(run, capsys)
    assert any(re.search(said, text) for text in reasons), reasons


@pytest.mark.parametrize(("mistake", "said"), UNPAID.items())
def test_report_ledger_and_tables_tell_no_epsilon_of_it(
    run: Path, capsys: pytest.CaptureFixture[str], mistake: Callable[[Path], None], said: str
) -> None:
    mistake(run)
    spent = Ledger(run / "ledger.jsonl").epsilon("two_stage")
    if not (run / "two_stage" / "evaluation.json").exists():
        evaluate(run, "two_stage", {"mauve_own_base": 0.5})
        make_run(run.parent / "other", metrics={"two_stage": {}})
        shutil.copy(run.parent / "other" / "report.json", run / "report.json")
    report = build_report(RunFolder(run))
    assert report["privacy"]["systems"]["two_stage"]["epsilon"] is None
    assert report["privacy"]["epsilon_if_all_systems_are_released"] is None
    text = render(report, RunFolder(run), 0)
    assert f"{spent:.4g}" not in text and "NOT PRIVATE, two_stage: " in text
    capsys.readouterr()
    ledger_command(run)
    told = capsys.readouterr().out
    assert "NOT PRIVATE, two_stage: " in told and re.search(said.removeprefix("^"), told)
    frame, _ = read_runs([run])
    assert frame["spent"].isna().all() and frame["caveats"].str.startswith(VOID).all()
    assert f"{spent:.4g}" not in table(pool(frame)).markdown()


def test_a_void_card_states_no_epsilon(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spent = Ledger(run / "ledger.jsonl").epsilon("two_stage")
    no_privacy(run)
    a_caveat(run)
    assert verify(run, capsys)
    assert f"{spent:.4g}" not in (run / "privacy_card.txt").read_text() + (run / "privacy_card.json").read_text()
    card = json.loads((run / "privacy_card.json").read_text())
    assert card["budgets"]["two_stage"]["guarantee"] == "NOT PRIVATE" and card["registry_entry"] is None
    assert not any(told["budget"] == "two_stage" for told in card["covered"])


@pytest.mark.parametrize(
    "name", ["private.txt", "audit/private.csv", "model_two_stage/notes", "wandb/private.csv", ".hidden.txt"]
)
def test_what_no_step_made_is_not_covered_whatever_its_ending_or_place(
    run: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text(SECRET)
    verify(run, capsys)
    card = json.loads((run / "privacy_card.json").read_text())
    assert card["not_covered"][name] == "no step of the run made it"
    assert name not in {told["file"] for told in card["covered"]}
    assert name in (run / "privacy_card.txt").read_text().partition("Not covered")[2]


def test_a_training_by_hand_that_released_nothing_covers_nothing(
    own_private_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ledger of `fit` is whole; no step of `run` made a file that it vouches for."""
    assert cli.main(["verify", str(own_private_run)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"Covered files, by SHA-256:\n  nothing\n", told)
    assert told.splitlines()[-2] == "VERIFIED" and re.match("Nothing covered: .*export", told.splitlines()[-1])


def test_a_system_that_no_ledger_names_is_not_left_out_of_what_all_spend(run: Path) -> None:
    sample(run, "one_stage", is_paid=False)
    evaluate(run, "one_stage", {"mauve_own_base": 0.5})
    report = build_report(RunFolder(run))
    assert report["privacy"]["epsilon_if_all_systems_are_released"] is None
    assert "but one_stage, which is NOT PRIVATE, released together" in report["privacy"]["statement"]


def test_a_report_that_never_looked_at_samples_is_not_believed_where_there_are_none(run: Path) -> None:
    (run / "manifest.json").unlink()
    assert read_runs([run])[0]["spent"].notna().all()
    path = run / "report.json"
    report = json.loads(path.read_text())
    for told in report["privacy"]["systems"].values():
        del told["voids"]
    path.write_text(json.dumps(report))
    frame, _ = read_runs([run])
    assert len(frame) and frame["spent"].isna().all() and frame["caveats"].str.startswith(VOID).all()


def test_a_broken_ledger_or_manifest_is_no_card(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(tmp_path)]) == 2
    assert "private run" in capsys.readouterr().err
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join(lines[:3] + lines[4:]))
    assert cli.main(["verify", str(run)]) == 2
    assert "ledger.jsonl" in capsys.readouterr().err
    (run / "ledger.jsonl").write_text("".join(lines))
    (run / "manifest.json").write_text('{"version": 1')
    assert cli.main(["verify", str(run)]) == 2
    assert "manifest.json" in capsys.readouterr().err


def test_the_report_shows_the_card(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(run)]) == 0
    assert "Privacy card: VERIFIED" in capsys.readouterr().out
    card = json.loads((run / "report.json").read_text())["card"]
    assert card == json.loads((run / "privacy_card.json").read_text())
    shown = read_html(run / "report.html").words
    assert "VERIFIED" in shown and all(text in shown for text in card["not_checked"])
    swapped_checkpoint(run)
    assert cli.main(["report", str(run)]) == 2  # of these samples there is no page
    assert "Privacy card: NOT VERIFIED: " in capsys.readouterr().out


def test_verify_opens_no_checkpoint(run: Path) -> None:
    """It hashes files: nothing that reads a pickle is even imported."""
    told = f"import sys, cli; assert cli.main(['verify', {str(run)!r}]) == 0; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", told], cwd=Path(cli.__file__).parent).returncode == 0


def test_the_card_is_an_entry_of_the_registry_of_deployments(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the keys and the words of its schema (opendp/deployments-registry-data, tier 3), which allows no others."""
    verify(run, capsys)
    card = json.loads((run / "privacy_card.json").read_text())
    entry = card["registry_entry"]
    sections = {
        "basic": "name data_curators intended_use data_product_type data_product_region description publication_date",
        "dp_variant": "variant_name data_domain unprotected_quantities",
        "privacy_loss": "privacy_unit privacy_unit_details privacy_parameters privacy_parameters_details",
        "deployment_model": "model_name actors release_type data_source_type access_type",
        "accounting": "post_processing composition",
        "implementation": "preprocessing_and_hyperparameter_tuning mechanisms justification",
        "administrative": "registry_authors",
    }
    assert {name: " ".join(own) for name, own in entry["deployment"].items()} == sections
    assert entry.keys() == {"url_slug", "status", "tier", "deployment"} and (entry["status"], entry["tier"]) == (
        "Draft",
        3,
    )
    loss = entry["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": card["budgets"]["two_stage"]["target_epsilon"], "delta": 1e-5}
    for words in ("Approximate DP", "Central", "One release", "Static", "Non-interactive", "Synthetic data"):
        assert words in json.dumps(entry)
