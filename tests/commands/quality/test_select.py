"""`select`: what is discarded, how the rest is ranked, and what is said about privacy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from run_folders import FINGERPRINT, make_run

import cli
from commands.quality.sifter import Sifter, SifterError
from doppel.metrics.fluency import text_losses
from doppel.privacy.fingerprint import sealed

ROOT = Path(__file__).resolve().parents[3]


def write_samples(run: Path, texts: list[str], system: str = "two_stage") -> None:
    name = "synthetic.jsonl" if system == "two_stage" else f"synthetic_{system}.jsonl"
    (run / name).write_text("".join(json.dumps({"utterance": text}) + "\n" for text in texts))


def test_losses_are_those_of_each_text_alone(tiny_model: str) -> None:
    sifter = Sifter(tiny_model)
    examples = [[0, 5, 6, 7, 1], [0, 9, 1], [0, 40, 41, 42, 43, 44, 45, 1]]
    together = text_losses(sifter.model.model, examples, tokens_per_batch=16)
    for ids, loss in zip(examples, together, strict=True):
        logits = sifter.model.model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        expected = -logits[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert torch.equal(sifter.losses(["hello there", ""]).isfinite(), torch.tensor([True, True]))
    with pytest.raises(ValueError, match="no token to predict"):
        text_losses(sifter.model.model, [[0]])


def test_noise_is_discarded_and_the_best_sum_wins(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sifter = Sifter(tiny_model)
    texts = ["book lunch with Ana", "yes", "thanks a lot", "will it rain", "q", "zzz qqq xxx"]
    losses = sifter.losses(texts)
    fluent, noise = texts[int(losses.argmin())], texts[int(losses.argmax())]
    bound = float(losses.min() + losses.max()) / 2
    for name, text, mauve in (("a", fluent, 0.3), ("b", fluent, 0.6), ("c", noise, 0.9)):
        for seed in (1, 2):
            run = tmp_path / "runs" / f"{name}{seed}"
            make_run(run, seed=seed, metrics={"two_stage": {"mauve": mauve}}, experiment=name)
            write_samples(run, [text, text])
    make_run(tmp_path / "runs" / "d", metrics={"two_stage": {"mauve": 0.9}}, experiment="d")  # has no samples
    command = ["select", str(tmp_path / "runs"), "--sifter", tiny_model, "--max-loss", str(bound)]
    assert cli.main([*command, "--out", str(tmp_path / "selection.json")]) == 0
    content = json.loads((tmp_path / "selection.json").read_text())
    found = {setup["setting"]["experiment"]: setup for setup in content["setups"]}
    assert [found[name]["rank"] for name in "abcd"] == [2, 1, None, None]
    assert "above the bound" in found["c"]["why"] and "no samples" in found["d"]["why"]
    assert found["b"]["score"] == pytest.approx(0.6 + 0.7)
    assert found["a"]["mean_loss"] == pytest.approx(losses.min().item(), rel=1e-4)
    out = capsys.readouterr().out
    spent = found["a"]["epsilon_spent"]
    assert f"ε ≤ {7 * spent:.4g}" in out  # all that was tried, discarded ones too
    assert "not covered by any ε" in out and "must be public text" in out and f"{spent:.3f}" in out


def test_setups_of_different_epsilon_are_not_ranked_against_each_other(tiny_model: str, tmp_path: Path) -> None:
    for epsilon in (3.0, 8.0, None):
        run = tmp_path / f"run{epsilon}"
        make_run(run, epsilon=epsilon, metrics={"two_stage": {}})
        write_samples(run, ["yes"])
    assert cli.main(["select", str(tmp_path), "--sifter", tiny_model, "--max-loss", "100"]) == 0
    content = json.loads((tmp_path / "selection.json").read_text())
    assert [setup["rank"] for setup in content["setups"]] == [1, 1, 1]
    assert "have no ε" in content["if_all_were_released"][sealed(FINGERPRINT)]


def test_a_missing_score_is_said(tiny_model: str, tmp_path: Path) -> None:
    make_run(tmp_path / "run", metrics={"two_stage": {"parsed_function_overlap": None}}, parser=None)
    write_samples(tmp_path / "run", ["yes"])
    assert cli.main(["select", str(tmp_path), "--sifter", tiny_model, "--max-loss", "100"]) == 0
    (setup,) = json.loads((tmp_path / "selection.json").read_text())["setups"]
    assert setup["rank"] is None and "without a semantic parser" in setup["why"]


def test_bad_sifters_and_folders_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.ckpt").write_text("")
    with pytest.raises(SifterError, match=r"config\.yaml"):
        Sifter(str(tmp_path / "x.ckpt"))
    assert cli.main(["select", str(tmp_path), "--sifter", "nowhere"]) == 2
    assert "no run that can be judged" in capsys.readouterr().err
