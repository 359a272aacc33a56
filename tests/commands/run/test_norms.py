"""`norms`: true norms of the loss that is clipped, a C by a stated rule, and not a word about private units."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

import cli
from commands.privacy.gradient_norms import KEPT, kept, measure, micro_batches, recommend
from lightning_modules.causal_lm import CausalLM


def corpus_of(path: Path, *words: str) -> str:
    """Turns that say each of some words, in dialogues of three."""
    turns = [
        {"utterance": " ".join([word] * (1 + i % 5)), "parse": f"({word} :n {i})", "unit": f"dialogue-{i // 3}"}
        for i, word in enumerate(words * 6)
    ]
    path.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    return str(path)


@pytest.fixture
def experiment(tmp_path: Path, tiny_model: str) -> Path:
    """An experiment on private turns, whose reference is public."""
    content = {
        "systems": ["two_stage"],
        "epochs": {"parse_tree": 1, "parse2utterance": 1},
        "model": {"base_model": tiny_model},
        "data": {"train_path": corpus_of(tmp_path / "private.jsonl", "secret", "salary"), "batch_size": 4},
        "privacy": {"max_grad_norm": 7.0},
        "reference": corpus_of(tmp_path / "public.jsonl", "rain", "lunch"),
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "own.yaml"


@pytest.mark.parametrize("unit", ["utterance", "dialogue"])
def test_the_norms_are_those_of_the_units_gradients(unit: str, tmp_path: Path, tiny_model: str) -> None:
    model = CausalLM(base_model=tiny_model)
    data = {"unit": unit, "max_tokens_per_micro_batch": 96}
    path = corpus_of(tmp_path / "public.jsonl", "rain", "lunch")
    found, lengths = measure(model, micro_batches(model, data, path, 1000))
    expected = []
    for batch in micro_batches(model, data, path, 1000):
        for unit_number in range(batch.num_units):
            loss = model.losses(batch).view(batch.num_units, -1)[unit_number].mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            expected.append(torch.cat([g.flatten() for g in gradients]).norm())
    torch.testing.assert_close(found.sort()[0], torch.stack(expected).double().sort()[0], rtol=1e-4, atol=1e-5)
    assert len(found) == (12 if unit == "utterance" else 4)
    assert (lengths.diff() >= 0).all()


@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=60))
def test_the_recommended_norm_is_the_least_that_leaves_every_third_enough(values: list[float]) -> None:
    sizes, lengths = torch.tensor(values, dtype=torch.float64), torch.arange(len(values))
    c = recommend(sizes, lengths)

    def least(max_grad_norm: float) -> float:
        return min(kept(part, max_grad_norm) for part in sizes.tensor_split(3))

    assert least(c * 1.06) >= KEPT >= least(c * 0.94)  # two digits


def test_it_prints_a_table_and_a_norm_for_every_training(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["norms", str(experiment)]) == 0
    said = capsys.readouterr().out
    assert [line.partition(":")[0] for line in said.splitlines() if " units of " in line] == [
        "two_stage-parse_tree",
        "two_stage-parse2utterance",
    ]
    assert said.count("\nlongest third") == said.count("recommended: privacy.max_grad_norm") == 2
    assert any(line.split()[0] == "7" and line.endswith("now") for line in said.splitlines() if line)
    assert "NOT PRIVATE" not in said


def test_private_turns_do_not_enter_the_figures(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["norms", str(experiment)]) == 0
    before = capsys.readouterr().out
    corpus_of(tmp_path / "private.jsonl", "something", "else", "altogether")
    assert cli.main(["norms", str(experiment)]) == 0
    assert capsys.readouterr().out == before


def test_a_public_file_that_names_no_unit_has_rows_for_units(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus_of(tmp_path / "public.jsonl", "rain", "lunch")
    rows = [json.loads(line) for line in (tmp_path / "public.jsonl").read_text().splitlines()]
    (tmp_path / "plain.txt").write_text("".join(f"{row['utterance']}\n" for row in rows))
    said = {}
    for unit in ("utterance", "user"):
        words = ["--set", "systems=[one_stage]", "epochs.one_stage=1", f"data.unit={unit}"]
        assert cli.main(["norms", str(experiment), "--public", str(tmp_path / "plain.txt"), *words]) == 0
        said[unit] = capsys.readouterr().out
    assert said["user"] == said["utterance"]


@pytest.mark.parametrize("way", ["itself", "copy", "link", "validation", "as reference"])
def test_a_file_that_the_experiment_protects_is_refused_under_any_name(
    way: str, experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private, other = tmp_path / "private.jsonl", tmp_path / "other.jsonl"
    words = ["--public", str(private if way == "itself" else other)]
    if way == "copy":
        shutil.copy(private, other)
    elif way == "link":
        other.symlink_to(private)
    elif way == "validation":
        words += ["--set", f"data.val_path={corpus_of(other, 'held', 'out')}"]
    elif way == "as reference":
        words = ["--set", f"reference={private}"]
    assert cli.main(["norms", str(experiment), *words]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "is to be public but" in said.err


def test_figures_of_private_turns_must_be_asked_for_and_say_so(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["norms", str(experiment), "--public", str(tmp_path / "private.jsonl"), "--not-private"]) == 0
    said = capsys.readouterr().out
    assert said.count("NOT PRIVATE") == 2 and "recommended: " not in said


def test_a_public_validation_file_and_the_embedded_grammar_are_public(experiment: Path, tmp_path: Path) -> None:
    other = corpus_of(tmp_path / "other.jsonl", "held", "out")
    settings = [f"data.val_path={other}", "data.val_is_public=true"]
    assert cli.main(["norms", str(experiment), "--public", other, "--set", *settings]) == 0
    embedded = "embedded:train?num=20&seed=1"
    settings = [f"data.train_path={embedded}", "model.max_length=96"]
    assert cli.main(["norms", str(experiment), "--public", embedded, "--set", *settings]) == 0


def test_trained_weights_take_the_place_of_the_first(
    experiment: Path, tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["norms", str(experiment)])
    before = capsys.readouterr().out
    for stage, kinds in {"parse_tree": {"target": "parse"}, "parse2utterance": {"source": "parse"}}.items():
        model = CausalLM(base_model=tiny_model, **kinds)  # type: ignore[arg-type]
        state = {name: value * 3 for name, value in model.state_dict().items()}
        path = tmp_path / "run" / "two_stage" / stage / "checkpoints" / "last.ckpt"
        path.parent.mkdir(parents=True)
        torch.save({"state_dict": state, "text_format": model.text_format.compatibility(), "lora": None}, path)
    assert cli.main(["norms", str(experiment), "--run-dir", str(tmp_path / "run")]) == 0
    after = capsys.readouterr().out
    assert after != before and f"at the weights in {tmp_path / 'run'}" in after


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--set", "epsilon=inf"], "epsilon"),
        (["--set", "reference=null"], "--public"),
        (["--num-units", "2"], "--num-units"),
        (["--public", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(
    words: list[str], reason: str, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["norms", str(experiment), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and reason in error and error.count("\n") == 1
