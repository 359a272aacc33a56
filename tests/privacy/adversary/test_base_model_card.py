"""The attacker starts a private training from weights that have learnt the same people before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from peft import LoraConfig, get_peft_model
from private_training import data_module, fit, privacy
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import cli
from callbacks.differential_privacy import PrivateTrainingError
from callbacks.export import ExportPretrained
from commands.run.experiment.experiment import shipped
from doppel.errors import UserError
from doppel.models.adapters import LoraArguments
from doppel.privacy.ledger import Ledger
from lightning_modules.causal_lm import UtteranceLM

pytestmark = pytest.mark.filterwarnings("ignore")


def train_plainly(stage: Path, base: str, corpus: str, is_public: bool = False, **kwargs: Any) -> None:
    """RUN/STAGE of a training without privacy, as `fit` leaves it."""
    data = data_module(corpus, is_public=is_public)
    ckpt_path = kwargs.pop("ckpt_path", None)
    trainer = fit(stage, UtteranceLM(base_model=base, **kwargs), data, [], max_steps=2, ckpt_path=ckpt_path)
    (stage / "checkpoints").mkdir(parents=True)
    trainer.save_checkpoint(stage / "checkpoints" / "last.ckpt")
    configure(stage, base)


def configure(stage: Path, base: str) -> None:
    init = {"base_model": base, "linearisation": "spaced", "task_prefix": True}
    model = {"class_path": "lightning_modules.causal_lm.UtteranceLM", "init_args": init}
    ledger = {"target_epsilon": 8.0, "ledger_path": str(stage.parent / "ledger.jsonl")}
    (stage / "config.yaml").write_text(yaml.safe_dump({"model": model, "data": {"init_args": {}}, "privacy": ledger}))


def export(stage: Path, out: Path) -> Path:
    assert cli.main(["export", str(stage), str(out)]) == 0
    return out


def caveats(folder: Path, model: UtteranceLM, corpus: str, scope: str = "second") -> str:
    """What the ledger of a private training from a model does not cover."""
    fit(folder, model, data_module(corpus, sampling_seed=None), [privacy(folder, scope=scope, seed=None)], max_steps=1)
    return " ".join(Ledger(folder / "ledger.jsonl").summary()["scopes"][scope]["caveats"])


@pytest.fixture
def not_private(tmp_path: Path, tiny_model: str, corpus: str) -> Path:
    """Export of a training of the private rows without privacy."""
    train_plainly(tmp_path / "plain" / "fit", tiny_model, corpus)
    return export(tmp_path / "plain" / "fit", tmp_path / "plain_export")


@pytest.mark.parametrize("lora", [None, LoraArguments(rank=2)])
def test_a_base_that_says_it_is_not_private_is_refused(
    not_private: Path, corpus: str, tmp_path: Path, lora: LoraArguments | None
) -> None:
    with pytest.raises(PrivateTrainingError, match="nobody declared public") as refused:
        caveats(tmp_path / "run", UtteranceLM(base_model=str(not_private), lora=lora), corpus)
    assert str(not_private) in str(refused.value)
    assert not (tmp_path / "run" / "ledger.jsonl").exists(), "nothing is declared, and nothing spent"


def test_a_run_is_refused_before_its_first_stage(
    not_private: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(shipped("quickstart")), str(tmp_path / "run"), "--check", "--set"]
    assert cli.main([*words, f"model.base_model={not_private}"]) == 2
    assert "model.base_model" in capsys.readouterr().err


def test_nor_does_it_fill_a_column(not_private: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text(f"mood: {{made: model, by: {not_private}, values: [calm, angry], ask: 'Said: {{text}} Mood:'}}\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "show my events"}\n')
    assert (
        cli.main(["fill", str(tmp_path / "rows.jsonl"), "--schema", str(schema), "--out", str(tmp_path / "o.jsonl")])
        == 2
    )
    assert "nobody declared public" in capsys.readouterr().err and not (tmp_path / "o.jsonl").exists()


def test_an_exported_card_names_no_folder_of_the_machine(not_private: Path, corpus: str, tmp_path: Path) -> None:
    train_plainly(tmp_path / "public" / "fit", str(not_private), corpus, is_public=True)
    card = (export(tmp_path / "public" / "fit", tmp_path / "nested") / "privacy_card.json").read_text()
    assert str(tmp_path) not in card and '"path": "plain_export"' in card


def test_weights_that_the_ledger_does_not_cover_end_with_a_status(
    own_private_run: Path, tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(own_private_run / "fit", tiny_model)
    (own_private_run / "ledger.jsonl").unlink()
    assert cli.main(["export", str(own_private_run / "fit"), str(tmp_path / "out")]) == 1
    assert "NOT PRIVATE" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "privacy_card.json").read_text())["private"] is False


def test_an_architecture_alone_has_learnt_nothing(not_private: Path, corpus: str, tmp_path: Path) -> None:
    assert caveats(tmp_path / "run", UtteranceLM(base_model=str(not_private), init="random"), corpus) == ""


def test_public_data_on_top_do_not_make_a_base_public(not_private: Path, corpus: str, tmp_path: Path) -> None:
    stage = tmp_path / "public" / "fit"
    train_plainly(stage, str(not_private), corpus, is_public=True)
    starts = [
        UtteranceLM(base_model=str(export(stage, tmp_path / "nested"))),
        UtteranceLM(base_model=str(not_private), init="random", init_weights=str(stage)),
    ]
    for number, model in enumerate(starts):
        with pytest.raises(PrivateTrainingError, match="nobody declared public"):
            caveats(tmp_path / f"run{number}", model, corpus)


def test_public_data_after_a_resumption_do_not_make_weights_public(
    tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    train_plainly(tmp_path / "plain" / "fit", tiny_model, corpus)
    last, stage = tmp_path / "plain" / "fit" / "checkpoints" / "last.ckpt", tmp_path / "public" / "fit"
    train_plainly(stage, tiny_model, corpus, is_public=True, ckpt_path=str(last))
    with pytest.raises(PrivateTrainingError, match="nobody declared public"):
        caveats(tmp_path / "run", UtteranceLM(base_model=tiny_model, init_weights=str(stage)), corpus)


def test_a_base_of_public_data_costs_nothing(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    train_plainly(tmp_path / "public" / "fit", tiny_model, corpus, is_public=True)
    out = export(tmp_path / "public" / "fit", tmp_path / "out")
    assert caveats(tmp_path / "run", UtteranceLM(base_model=str(out)), corpus) == ""


def test_a_private_base_adds_up_whichever_ledger_has_paid(
    own_private_run: Path, tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    configure(own_private_run / "fit", tiny_model)
    Ledger(own_private_run / "ledger.jsonl").caveat("default", "of this the base says nothing", voids=False)
    base = str(export(own_private_run / "fit", tmp_path / "out"))
    elsewhere = caveats(tmp_path / "run", UtteranceLM(base_model=base), corpus)
    assert "charged to another ledger" in elsewhere and "of this the base says nothing" in elsewhere
    here = caveats(own_private_run, UtteranceLM(base_model=base), corpus)
    assert "another ledger" not in here and "charged to budget 'default': the two add up" in here
    # A training of public data in between changes nothing.
    train_plainly(tmp_path / "public" / "fit", base, corpus, is_public=True)
    nested = str(export(tmp_path / "public" / "fit", tmp_path / "nested"))
    assert "charged to another ledger" in caveats(tmp_path / "third", UtteranceLM(base_model=nested), corpus)


def test_a_scope_without_an_epsilon_gives_its_weights_to_no_other(
    own_private_run: Path, tiny_model: str, corpus: str
) -> None:
    ledger = Ledger(own_private_run / "ledger.jsonl")
    ledger.caveat("default", "privacy.seed of fit was fixed", voids=True)
    caveats(own_private_run, UtteranceLM(base_model=tiny_model, init_weights=str(own_private_run / "fit")), corpus)
    assert ledger.summary()["scopes"]["second"]["epsilon"] is None


def test_other_weights_under_a_card_are_refused(
    own_private_run: Path, tiny_model: str, corpus: str, tmp_path: Path
) -> None:
    configure(own_private_run / "fit", tiny_model)
    base = export(own_private_run / "fit", tmp_path / "out")
    file = base / "model.safetensors"
    save_file({name: value * 1.01 for name, value in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(PrivateTrainingError, match="not those that its privacy_card.json tells of"):
        caveats(own_private_run, UtteranceLM(base_model=str(base)), corpus)


def lora_weights(folder: Path, base: str) -> str:
    """LoRA weights of somebody else's on a base, without a card."""
    config = LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return str(folder)


def test_lora_weights_without_a_card_do_not_hide_the_card_of_their_base(
    not_private: Path, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = lora_weights(tmp_path / "theirs", str(not_private))
    with pytest.raises(PrivateTrainingError, match="nobody declared public") as refused:
        caveats(tmp_path / "run", UtteranceLM(base_model=base), corpus)
    assert str(not_private) in str(refused.value) and not (tmp_path / "run" / "ledger.jsonl").exists()
    words = ["run", str(shipped("quickstart")), str(tmp_path / "run"), "--check", "--set"]
    assert cli.main([*words, f"model.base_model={base}"]) == 2
    assert "nobody declared public" in capsys.readouterr().err


def test_lora_weights_hold_under_their_card_and_on_their_base_alone(
    tiny_model: str, corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_model, base)
    stage = tmp_path / "first" / "fit"
    train_plainly(stage, str(base), corpus, is_public=True, lora=LoraArguments(rank=2))
    config = yaml.safe_load((stage / "config.yaml").read_text())
    config["model"]["init_args"]["lora"] = {"rank": 2}
    (stage / "config.yaml").write_text(yaml.safe_dump(config))
    folder = export(stage, tmp_path / "out")
    named = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**named, "base_model_name_or_path": str(base)}))
    assert caveats(tmp_path / "run", UtteranceLM(base_model=str(folder)), corpus) == ""

    file = folder / "adapter_model.safetensors"
    kept = file.read_bytes()
    save_file({name: value + 0.1 for name, value in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(PrivateTrainingError, match="not those that its privacy_card.json tells of"):
        caveats(tmp_path / "other", UtteranceLM(base_model=str(folder)), corpus)
    assert cli.main(["verify", str(folder)]) == 1
    assert "its weights are not those that privacy_card.json tells of" in capsys.readouterr().out

    file.write_bytes(kept)
    weights = load_file(base / "model.safetensors")
    save_file({name: value * 1.01 for name, value in weights.items()}, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="LoRA weights for another base") as refused:
        UtteranceLM(base_model=str(folder))
    assert "\n" not in str(refused.value) and str(base) in str(refused.value)
    assert cli.main(["verify", str(folder)]) == 1
    assert "another base" in capsys.readouterr().out


def test_verify_reads_the_card_of_an_exported_folder(
    own_private_run: Path, not_private: Path, tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(own_private_run / "fit", tiny_model)
    folder = export(own_private_run / "fit", tmp_path / "out")
    capsys.readouterr()
    assert cli.main(["verify", str(folder)]) == 0
    stated, verdict = capsys.readouterr().out.splitlines()
    assert stated.startswith("PRIVATE: ") and "ε = 8" in stated and verdict == "VERIFIED"
    assert cli.main(["verify", str(not_private)]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["NOT VERIFIED:", "- no ε holds for its weights"]


def test_a_model_that_a_callback_writes_has_a_card_too(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    writer = ExportPretrained(str(tmp_path / "model"))
    fit(tmp_path / "plain", UtteranceLM(base_model=tiny_model), data_module(corpus), [writer], max_steps=1)
    assert json.loads((tmp_path / "model" / "privacy_card.json").read_text())["is_public"] is False
    with pytest.raises(PrivateTrainingError, match="nobody declared public"):
        caveats(tmp_path / "run", UtteranceLM(base_model=str(tmp_path / "model")), corpus)
    with pytest.raises(UserError, match="cli.py export"):
        callbacks = [privacy(tmp_path), writer]
        fit(tmp_path / "private", UtteranceLM(base_model=tiny_model), data_module(corpus), callbacks, max_steps=1)
