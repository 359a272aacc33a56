"""The audit from the command line, a false claim caught by it; canaries and the extraction report on their own."""

from __future__ import annotations

import json
import random
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cli
from commands.privacy import audit_subjects, audit_trainer
from commands.privacy.extraction import extraction_report
from datamodules.batches.encoded import encode_examples
from datamodules.dialogue_data_module import DialogueDataModule
from datamodules.guards.canaries import Canary, audit_turns, make_examples
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.text_format import TextFormat
from datamodules.training_rows import first_units
from doppel.grammar.slot_table import SHIPPED, slot_table
from doppel.lispress import is_valid
from doppel.lispress.slots import to_slots
from doppel.models.load import load_tokenizer
from doppel.privacy.audit import AuditResult
from doppel.privacy.noise import GaussianNoise
from lightning_modules.causal_lm import UtteranceLM

ROOT = Path(__file__).resolve().parents[3]
MODELS = ("utterance_lm", "parse_tree_lm", "parse2utterance")

pytestmark = pytest.mark.filterwarnings("ignore")


def arguments(tiny_model: str, corpus: str, model: str = "utterance_lm", epochs: int = 1) -> list[str]:
    """A tiny private run as `fit` and `audit` take it."""
    return [
        "--config",
        str(ROOT / "configs" / f"{model}.yaml"),
        "--data=datamodules.dialogue_data_module.DialogueDataModule",
        f"--model.init_args.base_model={tiny_model}",
        "--model.init_args.sampling.num_beams=1",
        "--model.init_args.sampling.max_new_tokens=16",
        f"--data.init_args.train_path={corpus}",
        "--data.init_args.unit=utterance",
        "--data.init_args.batch_size=20",
        "--privacy.target_epsilon=1",
        "--privacy.accountant=rdp",
        f"--trainer.max_epochs={epochs}",
        "--trainer.accelerator=cpu",
        "--trainer.logger=false",
        "--trainer.enable_progress_bar=false",
    ]


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])


@pytest.fixture(scope="module")
def text_format(tiny_model: str) -> TextFormat:
    return TextFormat(load_tokenizer(tiny_model), None, "utterance", max_length=96)


@pytest.mark.parametrize("model", MODELS)
def test_an_audit_writes_a_report_of_its_own_run(
    tmp_path: Path, tiny_model: str, corpus: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run" / "audit"
    small = ["--num_canaries=24", "--num_samples=12", f"--run_dir={folder}"]
    assert cli.main(["audit", *arguments(tiny_model, corpus, model), *small]) == 0
    shown = capsys.readouterr().out
    report = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    assert report["num_units"] == 60 + 24
    assert report["private/bound"]["num_canaries"] == 24
    assert 0 < report["claim"]["epsilon"] <= 1
    assert report["claim"]["sample_rate"] == pytest.approx(20 / 84)
    assert report["verdict"] in ("consistent with the claim", "too weak to test the claim")
    assert report["private/extraction"]["num_samples"] == 12
    assert ("prompted" in report["private/extraction"]) == (model == "parse2utterance")
    assert report["verdict"] in shown and "NOT PRIVATE" in shown
    assert shown == (folder / "audit.txt").read_text(encoding="utf-8")
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    for name in ("ledger.jsonl", "train.jsonl", "canaries.jsonl", "samples.jsonl", "audit.json", "audit.txt"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name

    coins = [json.loads(line) for line in (folder / "canaries.jsonl").read_bytes().splitlines()]
    trained = {turn.utterance for turn in read_examples(str(folder / "train.jsonl"), "utterance")}
    assert {c["utterance"] in trained for c in coins if c["included"]} <= {True}
    assert {c["utterance"] in trained for c in coins if not c["included"]} <= {False}
    assert {turn.utterance for turn in read_examples(corpus, "utterance")} < trained


@pytest.mark.slow
def test_an_engine_without_noise_ends_with_status_one(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(GaussianNoise, "add_", lambda *args, **kwargs: None)
    folder, short = tmp_path / "audit", tmp_path / "canaries.jsonl"
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=8)) for _ in range(120)]
    short.write_text("".join(json.dumps({"utterance": text}) + "\n" for text in texts), encoding="utf-8")
    eager = [f"--canaries={short}", "--num_samples=0", "--coin_seed=1", f"--run_dir={folder}"]
    settings = [
        "--data.init_args.batch_size=90",
        "--model.init_args.optimizer=torch.optim.AdamW",
        "--model.init_args.optimizer.init_args.lr=5e-3",
        "--privacy.delta=1e-5",
    ]
    assert cli.main(["audit", *arguments(tiny_model, corpus, epochs=100), *settings, *eager]) == 1
    output = capsys.readouterr()
    assert "contradicts the claim" in output.out
    assert output.err.splitlines()[-1].startswith("error: ")
    report = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    assert report["private/bound"]["epsilon_lower_bound"] > 1 >= report["claim"]["epsilon"]


@pytest.mark.slow
def test_a_training_with_bands_is_audited(tmp_path: Path, tiny_model: str, corpus: str) -> None:
    """An audit tests what was released, whatever the steps have in common."""
    folder = tmp_path / "audit"
    optimizer = "--model.init_args.optimizer=doppel.privacy.optimizer.DPAdam"
    settings = ["--data.init_args.batch_size=20", "--privacy.bands=4", optimizer, f"--run_dir={folder}"]
    settings += ["--num_canaries=24", "--num_samples=0"]
    assert cli.main(["audit", *arguments(tiny_model, corpus, epochs=3), *settings]) == 0
    report = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    assert report["claim"]["bands"] == 4 and 0.9 < report["claim"]["epsilon"] <= 1
    assert report["verdict"] in (audit_trainer.CONSISTENT, audit_trainer.UNTESTED)


@pytest.mark.slow
def test_a_saved_configuration_is_audited_without_touching_its_run_and_goes_on_where_it_stopped(
    tmp_path: Path, tiny_model: str, corpus: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage, folder = tmp_path / "run" / "one_stage", tmp_path / "run" / "audit"
    assert cli.main(["fit", *arguments(tiny_model, corpus), f"--run_dir={stage}"]) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    audit = ["audit", "--config", str(stage / "config.yaml"), "--num_canaries=20", "--num_samples=4"]
    assert cli.main([*audit, f"--run_dir={folder}"]) == 0
    assert {path: path.read_bytes() for path in before} == before
    spent, report = (folder / "ledger.jsonl").read_bytes(), (folder / "audit.json").read_bytes()

    capsys.readouterr()
    assert cli.main([*audit, f"--run_dir={folder}"]) == 0
    assert (folder / "ledger.jsonl").read_bytes() == spent
    assert (folder / "audit.json").read_bytes() == report

    leak = AuditResult(20, 20, 20, epsilon_lower_bound=2.0, delta=1e-5, confidence=0.95)
    with monkeypatch.context() as patch:
        patch.setattr(audit_trainer, "audit_scores", lambda *args: leak)
        assert cli.main([*audit, f"--run_dir={folder}"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")

    for changed, message in (
        ([f"--run_dir={folder}", "--model.init_args.linearisation=raw"], "other settings"),
        ([f"--run_dir={stage}"], "another training"),
        ([f"--run_dir={folder}", "--trainer.devices=2"], "one device"),
        ([f"--run_dir={folder}", "--ckpt_path=null", "--num_canaries=1"], "num_canaries"),
    ):
        assert cli.main([*audit, *changed]) == 2, message
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error: ") and message in error


def test_without_privacy_there_is_no_claim_and_given_canaries_are_used(
    tmp_path: Path, tiny_model: str, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "canaries.jsonl"
    own.write_text("".join(json.dumps({"utterance": f"secret {i}"}) + "\n" for i in range(6)), encoding="utf-8")
    public = [word for word in arguments(tiny_model, corpus) if not word.startswith("--privacy")]
    folder = tmp_path / "audit"
    audit = ["audit", *public, "--not_private=true", f"--canaries={own}", "--num_samples=0"]
    assert cli.main([*audit, f"--run_dir={folder}"]) == 0
    report = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    assert report["claim"] is None and report["verdict"] == "no claim to test"
    assert report["private/bound"]["num_canaries"] == 6
    assert "secret" in (folder / "canaries.jsonl").read_text(encoding="utf-8")

    own.write_text(json.dumps({"utterance": "secret " * 200}) + "\n", encoding="utf-8")
    capsys.readouterr()
    assert cli.main([*audit, f"--run_dir={tmp_path / 'other'}"]) == 2
    assert "canary 1 " in capsys.readouterr().err


def test_canaries_are_neither_selected_nor_cut_and_absent_ones_teach_nothing(tiny_model: str, tmp_path: Path) -> None:
    """As the run selects, masks or cuts its own rows; a hundred coins of which half are heads."""
    rows = [
        {"text": f"call number {n} please", "parse": "(Yield (Call))" if n % 2 else "(Yield (Ask))"} for n in range(80)
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given: dict[str, Any] = {"keep_share": 0.4, "keep_function": "Call", "truncate": True, "unit": "utterance"}
    data = DialogueDataModule(str(tmp_path / "own.jsonl"), batch_size=4, **given)
    subject = audit_subjects.TextSubject(UtteranceLM(base_model=tiny_model), data)
    own = data.rows.read()
    assert 0 < len(own) < 40
    canaries = canaries_of(subject.make(100, None, random.Random(0)), [n % 2 == 0 for n in range(100)])
    subject.hide(canaries, tmp_path)
    found = data.rows.read()
    assert [row.utterance for row in found[: len(own)]] == [row.utterance for row in own]
    assert {c.turn.utterance for c in canaries if c.included} <= {row.utterance for row in found}
    assert len(found) == len(own) + 100
    encoded = encode_examples(found, subject._format, data.truncate)
    taught = encoded.lengths > encoded.num_prompt
    assert taught.tolist() == [True] * len(own) + [c.included for c in canaries]


def test_help_says_what_an_audit_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        cli.main(["audit", "--help"])
    assert done.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in ("canary is hidden", "lower bound on epsilon", "--num_canaries", "--canaries", "--num_samples"):
        assert words in text


def test_an_audit_without_a_folder_is_a_one_line_error(
    tiny_model: str, corpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", *arguments(tiny_model, corpus)]) == 2
    assert "--run_dir" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- canaries
def canaries_of(turns: list[Example], coins: list[bool]) -> list[Canary]:
    return [Canary(turn, coin, 0.0) for turn, coin in zip(turns, coins, strict=True)]


def test_made_up_canaries_have_the_fields_of_the_data_and_share_no_word_with_their_tree() -> None:
    data = [Example("hello", "(Yield (Today))", "0", "weather"), Example("bye", None, "1", "social")]
    turns = make_examples(50, data, random.Random(0))
    assert len({turn.utterance for turn in turns}) == 50
    for turn in turns:
        assert turn.parse is not None and is_valid(turn.parse)
        assert to_slots(turn.parse, turn.utterance, slot_table(SHIPPED).kinds).tree == turn.parse
        assert not set(turn.utterance.split()) & set(turn.parse.split('"')[1].split())
        assert turn.label in ("weather", "social")
    bare = make_examples(1, [Example("hello", None, "0")], random.Random(0))[0]
    assert bare.parse is None and bare.label is None


@pytest.mark.parametrize("target", ["utterance", "parse"])
def test_coins_change_contents_alone_and_an_absent_canary_contributes_zero(
    text_format: TextFormat, target: Any
) -> None:
    text_format = TextFormat(text_format.tokenizer, None, target, text_format.max_length)
    data = [Example("hello there", "(Yield (Today))", f"canary-{i}") for i in range(3)]
    turns = make_examples(10, data, random.Random(0))
    heads, tails = (audit_turns(data, canaries_of(turns, [coin] * 10), text_format) for coin in (True, False))
    assert [turn.unit for turn in heads] == [turn.unit for turn in tails]
    assert len({turn.unit for turn in heads}) == 13
    for own, without_loss in ((heads, []), (tails, list(range(3, 13)))):
        encoded = encode_examples(own, text_format)
        assert (encoded.num_prompt == encoded.lengths).nonzero()[0].tolist() == without_loss


def test_a_limit_keeps_the_first_units_whole() -> None:
    turns = [Example(str(i), None, unit) for i, unit in enumerate("abacb")]
    assert [turn.utterance for turn in first_units(turns, 2)] == ["0", "1", "2", "4"]
    assert first_units(turns, None) == turns


# ----------------------------------------------------------------------------------------------- extraction
def test_extraction_tells_canaries_control_and_training_text_apart(text_format: TextFormat) -> None:
    texts = ["one two three four five six", "seven eight nine ten eleven twelve", "yes"]
    canaries = canaries_of([Example(text, None, "") for text in texts[:2]], [True, False])
    samples = [{"canary": None, "text": text} for text in ("One two three four five six!", "yes", "no", "maybe")]
    report = extraction_report(samples, canaries, [Example(texts[2], None, "0")], text_format)
    shares = report["shares"]
    assert shares["included_canaries"]["exact_copies"] == shares["training_text"]["exact_copies"] == 0.25
    assert shares["included_canaries"]["exact_copies_long"] == 1.0
    assert shares["training_text"]["exact_copies_long"] == shares["excluded_canaries"]["near_copies"] == 0.0
    assert report["extracted"]["included_canaries"] == {"num_canaries": 1, "exact": 1, "near": 1}
    assert report["extracted"]["excluded_canaries"] == {"num_canaries": 1, "exact": 0, "near": 0}
    assert "prompted" not in report


def test_extraction_compares_prompted_samples_with_their_own_canary(text_format: TextFormat) -> None:
    text_format = TextFormat(text_format.tokenizer, "parse", "utterance", text_format.max_length)
    turns = [Example("a b c d e f", "(A)", ""), Example("g h i j k l", "(B)", ""), Example("m n o p q r", "(C)", "")]
    samples = [{"canary": 0, "text": "a b c d e f"}, {"canary": 1, "text": "a b c d e f"}, {"canary": None, "text": ""}]
    report = extraction_report(samples, canaries_of(turns, [True, True, False]), turns, text_format)
    assert report["prompted"]["included_canaries"] == {"num_canaries": 2, "exact": 1, "near": 1}
    assert report["prompted"]["excluded_canaries"]["num_canaries"] == 0


def test_losses_are_those_of_each_turn(tiny_model: str) -> None:
    model = UtteranceLM(base_model=tiny_model)
    turns = [Example(text, None, "") for text in ("yes", "book lunch with Ana", "will it rain in Oslo")]
    together = audit_subjects.losses(model, turns, torch.device("cpu"))
    alone = torch.cat([audit_subjects.losses(model, [turn], torch.device("cpu")) for turn in turns])
    assert torch.allclose(together, alone, atol=1e-5)
    assert model.training
