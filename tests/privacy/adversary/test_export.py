"""The attacker reads what was released: weights are paid for; nobody needs the state of the optimiser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from private_training import write_private_run
from run_folders import end_step
from safetensors.torch import load_file
from test_checkpoint_binding import exchange_weights
from transformers import AutoModelForCausalLM, AutoTokenizer

import cli
from commands.run_folder.steps import File
from datamodules.training_rows import TrainingRows
from doppel.privacy.ledger import Ledger, join
from doppel.privacy.spec import plan

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def trained(own_private_run: Path, tiny_model: str, corpus: str) -> Path:
    """RUN/fit of a private training with AdamW, whose state the checkpoint holds, and its configuration."""
    run = own_private_run
    stage = run / "fit"
    assert torch.load(stage / "checkpoints" / "last.ckpt")["optimizer_states"][0]["state"]
    configure(run, tiny_model, corpus, run / "ledger.jsonl")
    return stage


def configure(run: Path, tiny_model: str, corpus: str, ledger: Path) -> None:
    """Write the configuration that the training of a run had."""
    init = {"base_model": tiny_model, "linearisation": "spaced", "task_prefix": True}
    config = {
        "model": {"class_path": "lightning_modules.causal_lm.UtteranceLM", "init_args": init},
        "data": {"init_args": {"train_path": corpus}},
        "privacy": {"target_epsilon": 8.0, "ledger_path": str(ledger)},
    }
    (run / "fit" / "config.yaml").write_text(yaml.safe_dump(config))


def test_the_folder_holds_weights_tokenizer_and_card_and_nothing_else(
    trained: Path, tmp_path: Path, corpus: str
) -> None:
    assert cli.main(["export", str(trained), str(tmp_path / "out")]) == 0
    files = {path.name for path in (tmp_path / "out").rglob("*")}
    assert files <= {
        *("config.json", "generation_config.json", "model.safetensors", "privacy_card.json", "tokenizer.json"),
        *("tokenizer_config.json", "special_tokens_map.json", "README.md"),
    }
    state = torch.load(trained / "checkpoints" / "last.ckpt")["state_dict"]
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert weights and all(torch.equal(value, state[f"model.{name}"]) for name, value in weights.items())
    card = json.loads((tmp_path / "out" / "privacy_card.json").read_text())
    assert card["private"] and 0 < card["epsilon"] <= 8 and card["unit"] == "utterance" and card["num_steps"] == 10
    assert "no step" in card["not_checked"][0], "it was trained by hand"
    assert any("base model" in text for text in card["not_checked"])
    told = "".join(path.read_text() for path in (tmp_path / "out").glob("*.[jm][sd]*"))
    assert corpus not in told and 'fingerprint":' not in told and "exp_avg" not in told
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out") and AutoTokenizer.from_pretrained(tmp_path / "out")


def test_a_card_of_weights_that_nobody_can_vouch_for_states_no_epsilon(trained: Path, tmp_path: Path) -> None:
    Ledger(trained.parent / "ledger.jsonl").caveat("default", "privacy.seed of fit was fixed", voids=True)
    assert cli.main(["export", str(trained), str(tmp_path / "out")]) == 1
    card = json.loads((tmp_path / "out" / "privacy_card.json").read_text())
    assert not card["private"] and "epsilon" not in card and card["statement"].startswith("NOT PRIVATE")


def test_weights_put_into_a_checkpoint_after_its_step_are_not_said_to_be_private(trained: Path, tmp_path: Path) -> None:
    run = trained.parent
    weights = File("fit/checkpoints/last.ckpt", "checkpoint", "default", "default")
    lesson = tmp_path / "lesson.jsonl"
    lesson.write_text("{}\n")
    end_step(run, "fit", ["fit", "--run_dir", str(trained)], [weights], [str(lesson)])
    assert cli.main(["export", str(trained), str(tmp_path / "good")]) == 0
    card = json.loads((tmp_path / "good" / "privacy_card.json").read_text())
    assert "that no private text is in lesson.jsonl, or was learnt by it" in card["not_checked"]
    assert card["private"] and not any("no step" in text for text in card["not_checked"])
    exchange_weights(run / weights.path)
    assert cli.main(["export", str(trained), str(tmp_path / "bad")]) == 1
    card = json.loads((tmp_path / "bad" / "privacy_card.json").read_text())
    assert not card["private"] and "epsilon" not in card
    assert "was changed after" in card["statement"] and "has no release of it" in card["statement"]


def test_a_run_of_a_shared_ledger_is_exported_with_what_the_run_has_spent(
    tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    run, shared = tmp_path / "run", tmp_path / "site" / "people.jsonl"
    join(run / "ledger.jsonl", shared)
    write_private_run(run, tiny_model, corpus)
    configure(run, tiny_model, corpus, shared)
    assert cli.main(["export", str(run / "fit"), str(tmp_path / "out")]) == 0
    card = json.loads((tmp_path / "out" / "privacy_card.json").read_text())
    assert card["private"] and card["epsilon"] == Ledger(run / "ledger.jsonl").epsilon("default")
    (run / "ledger.jsonl").unlink()  # the configuration still names the shared one
    assert cli.main(["export", str(run / "fit"), str(tmp_path / "lost")]) == 1
    card = json.loads((tmp_path / "lost" / "privacy_card.json").read_text())
    assert not card["private"] and "people.jsonl has no budget 'default' of this run" in card["statement"]
    assert not [out for out in ("out", "lost") if str(tmp_path) in (tmp_path / out / "README.md").read_text()]


def test_the_lines_that_load_a_model_of_ones_own_name_files_without_their_folders(
    trained: Path, tmp_path: Path
) -> None:
    given = {"width": 64, "words": "/home/ana/clients/words.txt"}
    content = yaml.safe_load((trained / "config.yaml").read_text())
    content["model"] = {"class_path": "mine.Model", "init_args": given}
    (trained / "config.yaml").write_text(yaml.safe_dump(content))
    assert cli.main(["export", str(trained), str(tmp_path / "out")]) == 0
    told = (tmp_path / "out" / "README.md").read_text()
    assert "Model(width=64, words='words.txt')" in told and "/" not in told.replace("out/pytorch_model.bin", "")


def test_what_all_runs_on_the_same_data_come_to_is_on_the_card_and_names_none(
    trained: Path, tmp_path: Path, corpus: str
) -> None:
    spec, data = plan(60, 12, 1, 8.0, accountant="rdp"), TrainingRows.from_config({"train_path": corpus}).fingerprint
    other = Ledger(tmp_path / "other" / "ledger.jsonl")
    other.spend(other.open(scope="s", stage="fit", spec=spec, planned_steps=5, data_fingerprint=data))
    assert cli.main(["export", str(trained), str(tmp_path / "out")]) == 0
    card = json.loads((tmp_path / "out" / "privacy_card.json").read_text())
    assert "is (ε = 8, δ = " in card["statement"] and f"spent so far: ε = {card['epsilon']:.4g}" in card["statement"]
    assert f"with 1 other run on these data: ε = {card['everything']['target_epsilon']:.4g}" in card["statement"]
    assert card["everything"]["target_epsilon"] > 8 and "other/" not in json.dumps(card)


def test_a_folder_with_other_files_is_refused(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(trained / "checkpoints" / "last.ckpt", out)
    assert cli.main(["export", str(trained), str(out)]) == 2
    assert {path.name for path in out.iterdir()} == {"last.ckpt"}
