"""The attacker changes, copies or renames files of a run after it, and wants them signed off with the rest."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from page_content import read_html
from run_folders import edit_manifest, end_step, sample, spec

import cli
from commands.pipeline.manifest import Manifest
from commands.pipeline.steps import File
from doppel.privacy.histogram import KIND
from doppel.privacy.ledger import Ledger
from doppel.privacy.spec import PrivacyArguments

PRIVATE = "lunch with Ana at her mother's"
#: What a step drew or chose of lines that a model wrote, and what a model wrote.
DERIVED = ("synthetic_topics.jsonl", "synthetic.jsonl", "chosen_two_stage.jsonl")
WRITTEN = ("pool_topics.jsonl", "candidates.jsonl")


def lines(*texts: str) -> bytes:
    return "".join(json.dumps({"utterance": text}) + "\n" for text in texts).encode()


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "private.jsonl"
    path.write_bytes(lines(PRIVATE))
    return path


@pytest.fixture
def run(tmp_path: Path, private: Path) -> Path:
    """Topics of an over-sample; candidates of two-stage, of which some were kept, and of these some chosen."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "experiment.yaml").write_text("name: mine\nsystems: [topics, two_stage]\nepsilon: 3.0\n")
    ledger, terms = Ledger(run / "ledger.jsonl"), replace(spec(3.0), noise_multiplier=2 * spec(3.0).noise_multiplier)
    for scope in ("topics", "two_stage"):
        made = {"planned_steps": 5, "data_fingerprint": "f00d"}
        mechanism = ledger.open(scope=scope, stage="fit", spec=terms, **made)
        for _ in range(5):
            ledger.spend(mechanism)
    counts = PrivacyArguments(3.0, delta=1e-5, accountant="rdp", histogram_noise_multiplier=20.0)
    made = {"planned_steps": 1, "data_fingerprint": "f00d", "kind": KIND}
    ledger.spend(ledger.open(scope="topics", stage="histogram", spec=counts.plan_histogram(2000, "utterance"), **made))
    sample(run, "topics", "pool_topics.jsonl", "pool", lines("yes", "no", "maybe"))
    leave(run, "calibrate_topics", "calibrate", "synthetic_topics.jsonl", ("no", "no"), "pool_topics.jsonl", private)
    sample(run, "two_stage", "candidates.jsonl", "candidates", lines("yes", "yes please", "no"))
    leave(run, "choose_utterances", "keep-best", "synthetic.jsonl", ("yes please", "no"), "candidates.jsonl")
    leave(run, "diverse_two_stage", "choose", "chosen_two_stage.jsonl", ("no",), "synthetic.jsonl")
    return run


def leave(
    run: Path, step: str, verb: str, output: str, texts: tuple[str, ...], source: str, private: Path | None = None
) -> None:
    """Leave what a step leaves that draws or chooses."""
    (run / output).write_bytes(lines(*texts))
    own = "topics" if "topics" in output else "two_stage"
    end_step(run, step, [verb], [File(output, "release", own, own)], [source], str(private) if private else "")


def put_private_rows(run: Path, name: str) -> None:
    with (run / name).open("ab") as file:
        file.write(lines(PRIVATE) * 20)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hide(run: Path, name: str) -> None:
    """Make the manifest say that a file is as its step made it, and what was made of it too."""
    for path, entry in Manifest.read(run).files.items():
        if path == name:
            edit_manifest(run, path, sha256=digest(run / name))
        elif name in entry.inputs:
            edit_manifest(run, path, inputs={**entry.inputs, name: digest(run / name)})


def reasons(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["verify", str(run)]) == 1
    told = capsys.readouterr().out
    assert "SIGNED OFF by ledger" not in told and PRIVATE not in told
    return told.split("NOT SIGNED OFF:")[1]


def test_a_run_of_derived_releases_is_signed_off(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(run)]) == 0, capsys.readouterr().out
    card = json.loads((run / "privacy_card.json").read_text())
    assert {told["file"] for told in card["samples"]} == set(DERIVED)
    (topics,) = (told for told in card["samples"] if told["system"] == "topics")
    assert topics["checkpoints"] == ["model_topics/checkpoints/last.ckpt"]
    assert topics["steps"] == ["model_topics", "sample_topics", "calibrate_topics"]


@pytest.mark.parametrize("name", [*DERIVED, *WRITTEN])
def test_private_rows_put_into_a_file_after_its_step_are_found(
    run: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put_private_rows(run, name)
    assert re.search(rf"^- {name} was changed after \w+ made it", reasons(run, capsys), flags=re.M)
    assert cli.main(["page", str(run)]) == 0
    assert name == "synthetic.jsonl" or PRIVATE not in read_html(run / "report.html").words


@pytest.mark.parametrize("name", [*DERIVED, *WRITTEN])
def test_they_are_found_though_the_manifest_was_edited(
    run: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    said = "has lines that" if name in DERIVED else "is not what the sampling wrote"
    put_private_rows(run, name)
    hide(run, name)
    assert re.search(rf"^- {name} {said}", reasons(run, capsys), flags=re.M)


def copied(run: Path) -> None:
    shutil.copy(run / "synthetic_topics.jsonl", run / "synthetic_more.jsonl")


def copied_over(run: Path) -> None:
    (run / "synthetic.jsonl").write_bytes(lines("of another run"))


def by_hand(run: Path) -> None:
    """`predict` wrote more samples into the folder, of private prompts."""
    (run / "more").mkdir()
    (run / "more" / "samples.jsonl").write_bytes(lines(PRIVATE))


def another_maker(run: Path) -> None:
    edit_manifest(run, "synthetic.jsonl", step="calibrate_topics")


def another_command(run: Path) -> None:
    edit_manifest(run, "synthetic.jsonl", command=["calibrate"])


def another_source(run: Path) -> None:
    inputs = {"pool_topics.jsonl": digest(run / "pool_topics.jsonl")}
    edit_manifest(run, "synthetic.jsonl", inputs=inputs)


def another_scope(run: Path) -> None:
    edit_manifest(run, "synthetic_topics.jsonl", scope="two_stage")


def a_pool_as_release(run: Path) -> None:
    edit_manifest(run, "pool_topics.jsonl", role="release")


def a_pool_in_its_place(run: Path) -> None:
    shutil.copy(run / "pool_topics.jsonl", run / "synthetic_topics.jsonl")


def private_text_unpaid(run: Path) -> None:
    """A step drew by what it read of private turns, in a scope whose ledger holds no histogram."""
    private = str(run.parent / "private.jsonl")
    end_step(
        run,
        "choose_utterances",
        ["keep-best"],
        [File("synthetic.jsonl", "release", "two_stage", "two_stage")],
        ["candidates.jsonl"],
        private,
    )


def a_histogram_that_was_never_paid_for(run: Path) -> None:
    """It was opened in the scope, and its step is not in the ledger."""
    counts = PrivacyArguments(3.0, delta=1e-5, accountant="rdp", histogram_noise_multiplier=20.0)
    made = {"planned_steps": 1, "data_fingerprint": "f00d", "kind": KIND}
    spec = counts.plan_histogram(2000, "utterance")
    Ledger(run / "ledger.jsonl").open(scope="two_stage", stage="histogram", spec=spec, **made)
    private_text_unpaid(run)


def a_paid_histogram_pays_for_no_other_step(run: Path) -> None:
    """The scope has paid for what one step counted; another one chose by private turns, and paid nothing."""
    private = run.parent / "private.jsonl"
    leave(run, "choose_topics", "keep-best", "chosen_topics.jsonl", ("no",), "synthetic_topics.jsonl", private)


def private_rows_as_prompts(run: Path) -> None:
    """A sampling was asked with private trees, which no step made."""
    (run / "trees.jsonl").write_bytes(lines(PRIVATE))
    sample(run, "two_stage", "candidates.jsonl", "candidates", lines("yes", "yes please", "no"))
    files = [File("candidates.jsonl", "candidates", "two_stage", "two_stage")]
    files.append(File("candidates.jsonl.metrics.json", "metrics", "two_stage", "two_stage"))
    edit_manifest(run, "candidates.jsonl")
    end_step(run, "sample_two_stage", ["predict"], files, ["model_two_stage/checkpoints/last.ckpt", "trees.jsonl"])


def private_prompts_by_hand(run: Path) -> None:
    """`predict` by hand was given private prompts, and the step of the run took its finished file over."""
    path = run / "candidates.jsonl.metrics.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "prompts": digest(run.parent / "private.jsonl")}))
    hide(run, path.name)


def no_manifest(run: Path) -> None:
    (run / "manifest.json").unlink()


ATTACKS = {
    copied: "synthetic_more.jsonl",
    copied_over: "synthetic.jsonl ",
    by_hand: "more/samples.jsonl .*`predict`",
    another_maker: "synthetic.jsonl: .*release.*calibrate_topics",
    another_command: "synthetic.jsonl: .*command.*choose_utterances",
    another_source: "synthetic.jsonl: .*choose_utterances",
    another_scope: "synthetic_topics.jsonl: .*scope.*two_stage.*topics",
    a_pool_as_release: "pool_topics.jsonl: .*release.*sample_topics.*pool",
    a_pool_in_its_place: "synthetic_topics.jsonl ",
    private_text_unpaid: "synthetic.jsonl .*private.*choose_utterances.*ledger",
    a_histogram_that_was_never_paid_for: "synthetic.jsonl .*private.*choose_utterances",
    a_paid_histogram_pays_for_no_other_step: "chosen_topics.jsonl .*private.*choose_topics.*ledger",
    private_rows_as_prompts: "candidates.jsonl .*trees.jsonl",
    private_prompts_by_hand: "candidates.jsonl .*prompts.*sample_two_stage",
    no_manifest: "synthetic.jsonl ",
}


@pytest.mark.parametrize(("attack", "said"), ATTACKS.items(), ids=[attack.__name__ for attack in ATTACKS])
def test_what_no_step_made_is_not_released(
    run: Path, capsys: pytest.CaptureFixture[str], attack: Callable[[Path], None], said: str
) -> None:
    attack(run)
    assert re.search(rf"^- .*{said}", reasons(run, capsys), flags=re.M)


@pytest.mark.parametrize(
    "name", ["private.txt", "audit/private.csv", "two_stage/notes", "wandb/private.csv", "slurm/a.xlsx", ".hidden.txt"]
)
def test_what_no_step_made_is_named_whatever_its_ending_or_place(
    run: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(lines(PRIVATE))
    cli.main(["verify", str(run)])
    assert f"not covered: {name}, which no step of the run made" in capsys.readouterr().out


def test_a_broken_manifest_signs_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "manifest.json").write_text('{"version": 1')
    assert cli.main(["verify", str(run)]) == 2
    assert "manifest.json" in capsys.readouterr().err


def test_what_cannot_be_found_is_a_forgery_of_every_file(run: Path) -> None:
    """The limit that docs/privacy.md states: digests under no key bind files to one another, and to nobody."""
    put_private_rows(run, "pool_topics.jsonl")
    put_private_rows(run, "synthetic_topics.jsonl")
    path = run / "pool_topics.jsonl.metrics.json"
    told: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "sha256": digest(run / "pool_topics.jsonl")}))
    for name in ("pool_topics.jsonl", "pool_topics.jsonl.metrics.json", "synthetic_topics.jsonl"):
        hide(run, name)
    assert cli.main(["verify", str(run)]) == 0
