"""The attacker hands on a run whose parts do not fit together, and wants it signed off."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_folders import edit_manifest, evaluate, make_run, sample, write_ledger
from test_unvouched_samples import ATTACKS, no_record

import cli
from commands.pipeline.manifest import Manifest
from commands.pipeline.run_record import RunRecord
from commands.privacy.verify import card
from commands.quality.report_text import render
from doppel.privacy.checkpoint import weights_fingerprint
from doppel.privacy.ledger import Ledger


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished private run of one system, in which everything fits."""
    folder = tmp_path / "runs" / "run"
    make_run(folder, metrics={"two_stage": {}}, report=False)
    sample(folder, "two_stage")
    evaluate(folder, "two_stage", {"mauve_own_base": 0.5})
    return folder


def checkpoint_of(run: Path) -> Path:
    return run / "model_two_stage" / "checkpoints" / "last.ckpt"


def test_a_run_in_which_everything_fits_is_signed_off(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(run)]) == 0
    told = capsys.readouterr().out
    content = json.loads((run / "privacy_card.json").read_text())
    assert told == (run / "privacy_card.txt").read_text()
    assert content["signed"] and content["prevents"] == [] and "SIGNED OFF by ledger" in told
    epsilons = content["scopes"]["two_stage"]["epsilon_by_accountant"]
    assert set(epsilons) == {"rdp", "pld"} and 0 < epsilons["pld"] < epsilons["rdp"] <= 3
    assert content["samples"][0]["lines"] == 1 and len(content["samples"][0]["sha256"]) == 64
    assert content["ledger"] == Ledger(run / "ledger.jsonl").anchor


def unfinished(run: Path) -> None:
    shutil.rmtree(run)
    make_run(run, metrics={"two_stage": {}}, done=15)
    sample(run, "two_stage")


def other_noise(run: Path) -> None:
    """The checkpoint was trained with less noise than the ledger accounts."""
    sample(run, "two_stage", spec={"noise_multiplier": 0.1, "target_epsilon": 3.0})


def other_configuration(run: Path) -> None:
    text = (
        "privacy: {target_epsilon: 3.0, max_grad_norm: 99.0, accountant: rdp}\ndata: {init_args: {batch_size: 100}}\n"
    )
    (run / "model_two_stage" / "config.yaml").write_text(text)


def privacy_off(run: Path) -> None:
    (run / "model_two_stage" / "config.yaml").write_text("privacy: null\n")


def other_weights(run: Path) -> None:
    """The weights in the checkpoint were replaced after sampling; its privacy state was kept."""
    checkpoint = torch.load(checkpoint_of(run), weights_only=True)
    torch.save({**checkpoint, "state_dict": {"weight": torch.zeros(2)}}, checkpoint_of(run))


def other_weights_that_fit(run: Path) -> None:
    """Weights were exchanged before sampling; the manifest and the record of the sampling fit them."""
    other_weights(run)
    files, weights = Manifest.read(run).files, weights_fingerprint({"weight": torch.zeros(2)})
    told = run / "synthetic.jsonl.metrics.json"
    told.write_text(json.dumps({**json.loads(told.read_text()), "weights": weights}))
    for changed in ("model_two_stage/checkpoints/last.ckpt", told.name):
        digest = hashlib.sha256((run / changed).read_bytes()).hexdigest()
        edit_manifest(run, changed, sha256=digest)
        for path, entry in files.items():
            if changed in entry.inputs:
                edit_manifest(run, path, inputs={**entry.inputs, changed: digest})


def no_line_of_weights(run: Path) -> None:
    """An earlier version trained it."""
    path = run / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    write_ledger(path, "".join(line for line in lines if json.loads(line)["type"] != "weights"))
    # of the note that the newest line was there, nothing is left: it is another machine
    shutil.rmtree(f"{os.environ['DOPPEL_KEY']}.ledgers")


def unbound_samples(run: Path) -> None:
    (run / "synthetic.jsonl.metrics.json").unlink()


def no_samples(run: Path) -> None:
    (run / "synthetic.jsonl").unlink()


def other_samples(run: Path) -> None:
    """Private lines were put among the samples."""
    with (run / "synthetic.jsonl").open("a") as file:
        file.write('{"utterance": "lunch with Ana"}\n')


def a_caveat(run: Path) -> None:
    Ledger(run / "ledger.jsonl").caveat("two_stage", "histogram", voids=True)


def a_second_checkpoint(run: Path) -> None:
    """A checkpoint of more steps than were paid lies beside the one that was sampled."""
    sample(run, "unconstrained", num_steps=300)


MORE = {
    unfinished: "two_stage/fit .*15 of 20",
    other_noise: "noise_multiplier",
    other_configuration: "max_grad_norm .*99.0.*16.0",
    privacy_off: "model_two_stage",
    other_weights: "weights .*model_two_stage/checkpoints/last.ckpt",
    other_weights_that_fit: "model_two_stage/checkpoints/last.ckpt: its weights are not those",
    no_line_of_weights: "model_two_stage/checkpoints/last.ckpt: nothing binds its weights",
    unbound_samples: "synthetic.jsonl.*weights",
    no_samples: "synthetic.jsonl .*sample_two_stage",
    other_samples: "synthetic.jsonl .*sample_two_stage",
    a_caveat: "histogram",
    a_second_checkpoint: "300 ",
}


@pytest.mark.parametrize(
    ("attack", "said"), [*ATTACKS.items(), *MORE.items()], ids=[attack.__name__ for attack in (*ATTACKS, *MORE)]
)
def test_what_does_not_fit_prevents_it_and_is_named(
    run: Path, capsys: pytest.CaptureFixture[str], attack: Callable[[Path], None], said: str
) -> None:
    attack(run)
    assert cli.main(["verify", str(run)]) == 1
    told = capsys.readouterr().out
    assert "SIGNED OFF by ledger" not in told
    assert re.search(rf"^- .*{said}", told.split("NOT SIGNED OFF:")[1], flags=re.M)
    assert json.loads((run / "privacy_card.json").read_text())["signed"] is False


def test_a_void_card_states_no_epsilon(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spent = Ledger(run / "ledger.jsonl").epsilon("two_stage")
    for attack in (attack for attack in ATTACKS if attack is not no_record):
        attack(run)
    cli.main(["verify", str(run)])
    assert f"{spent:.4g}" not in capsys.readouterr().out
    assert f"{spent:.4g}" not in (run / "privacy_card.json").read_text()


def test_an_edited_ledger_is_not_signed_off(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert cli.main(["verify", str(run)]) == 2
    assert "lines are gone" in capsys.readouterr().err


def test_a_run_without_a_ledger_is_not_signed_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(tmp_path)]) == 2
    assert "private run" in capsys.readouterr().err


def test_the_report_shows_the_card(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(run)]) == 0
    assert "Privacy card: SIGNED OFF" in capsys.readouterr().out
    report = json.loads((run / "report.json").read_text())
    assert report["card"]["signed"] and (run / "privacy_card.txt").is_file()
    other_weights(run)
    report["card"] = card(RunRecord(run))
    assert "Privacy card: NOT SIGNED OFF:" in render(report, run / "synthetic.jsonl", [])
