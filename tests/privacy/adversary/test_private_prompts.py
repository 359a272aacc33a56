"""The attacker samples with private prompts, which stand in every line that is written, and wants these released."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from run_folders import end_step, make_run, sample

import cli
from commands.run_folder.manifest import Manifest
from commands.run_folder.steps import File

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[3]
PRIVATE = '(Lunch "Quetzalcoatl")'
RELEASED = b'{"utterance": null, "parse": "(Yield)"}\n'


def line(tree: str) -> bytes:
    return json.dumps({"utterance": "lunch with Quetzalcoatl", "parse": tree}).encode() + b"\n"


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cli.py"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A private run whose steps have made trees, and a private file beside it."""
    folder = tmp_path / "runs" / "run"
    make_run(folder, metrics={"two_stage": {}})
    sample(folder, "two_stage", "trees.jsonl", "prompts", RELEASED)
    private(folder).write_bytes(line(PRIVATE))
    return folder


def private(run: Path) -> Path:
    return run.parent / "private.jsonl"


def predict(tiny_model: str, output: Path, *words: str, model: str = "parse2utterance") -> int:
    """Two samples of a model, by hand."""
    config = [f"--config={ROOT}/configs/{name}.yaml" for name in (model, "overlays/sample")]
    config += [f"--model.init_args.base_model={tiny_model}", "--trainer.accelerator=cpu", "--trainer.logger=false"]
    config += ["--model.init_args.sampling={redraws: null, max_new_tokens: 4}", "--data.init_args.num_samples=2"]
    config += ["--trainer.callbacks.init_args.stage=two_stage"]
    config += [f"--trainer.callbacks.init_args.output_path={output}", f"--run_dir={output.parent / 'by_hand'}"]
    return cli.main(["predict", *config, *words])


def beside(run: Path) -> Path:
    """Anywhere."""
    return private(run)


def unmade(run: Path) -> Path:
    """In the run folder, where no step has made it."""
    path = run / "more.jsonl"
    path.write_bytes(line(PRIVATE))
    return path


def changed(run: Path) -> Path:
    """Added to the prompts of the run."""
    with (run / "trees.jsonl").open("ab") as file:
        file.write(line(PRIVATE))
    return run / "trees.jsonl"


def linked(run: Path) -> Path:
    """Under the name of the prompts of the run."""
    (run / "trees.jsonl").unlink()
    (run / "trees.jsonl").symlink_to(private(run))
    return run / "trees.jsonl"


def annotated(run: Path) -> Path:
    """Private utterances to which a step of the run has added trees."""
    path = run / "data" / "private_annotated.jsonl"
    path.parent.mkdir()
    path.write_bytes(line(PRIVATE))
    file = File("data/private_annotated.jsonl", "private")
    end_step(run, "annotate_private", ["predict"], [file], private=str(private(run)))
    return path


ATTACKS = {
    beside: "manifest.json",
    unmade: "no step",
    changed: "was changed after sample_two_stage",
    linked: "manifest.json",
    annotated: "annotate_private.*'private'",
}


@pytest.mark.parametrize(("attack", "said"), ATTACKS.items(), ids=[attack.__name__ for attack in ATTACKS])
def test_they_are_refused_before_anything_is_sampled(
    run: Path, tiny_model: str, capsys: pytest.CaptureFixture[str], attack: Callable[[Path], Path], said: str
) -> None:
    path, output = attack(run), run / "synthetic.jsonl"
    assert predict(tiny_model, output, f"--data.init_args.prompts_path={path}") == 2
    told = capsys.readouterr().err
    assert str(path) in told and re.search(said, told) and "is_public" in told
    assert not list(run.glob("synthetic.jsonl*")) and "Quetzalcoatl" not in told


def test_a_private_file_is_not_declared_public(run: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor its rows in another order and with other trees."""
    turns = [f"tell Quetzalcoatl about the {number}th of the many meetings" for number in range(20)]
    private(run).write_text("".join(f"{json.dumps({'utterance': turn})}\n" for turn in turns))
    experiment = {"name": "mine", "systems": ["two_stage"], "data": {"train_path": str(private(run))}}
    (run / "experiment.yaml").write_text(json.dumps(experiment))
    path, output = run.parent / "prompts.jsonl", run / "synthetic.jsonl"
    rows = [{"utterance": f"{turn.upper()}!", "parse": PRIVATE} for turn in reversed(turns)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = [f"--data.init_args.prompts_path={path}", "--data.init_args.is_public=true"]
    assert predict(tiny_model, output, *given) == 2
    told = capsys.readouterr().err
    assert str(path) in told and str(private(run)) in told and "QUETZALCOATL" not in told.upper()
    assert not list(run.glob("synthetic.jsonl*"))


def test_private_utterances_are_no_prompts_of_a_language_model(
    run: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = "{class_path: datamodules.annotation_data_module.AnnotationDataModule, init_args: {path: %s}}"
    assert predict(tiny_model, run / "synthetic.jsonl", f"--data={data % private(run)}", model="utterance_lm") == 2
    told = capsys.readouterr().err
    assert str(private(run)) in told and "is_public" in told and "Quetzalcoatl" not in told
    assert not list(run.glob("synthetic.jsonl*"))


def test_prompts_of_a_run_are_taken_as_its_step_made_them(run: Path, tiny_model: str, tmp_path: Path) -> None:
    """Text sampled for what another run has released is post-processing of both; no run has made it."""
    output = tmp_path / "runs" / "another" / "more.jsonl"
    assert predict(tiny_model, output, f"--data.init_args.prompts_path={run / 'trees.jsonl'}") == 0
    told = json.loads(output.with_name("more.jsonl.metrics.json").read_text())
    assert told["prompts"] == hashlib.sha256(RELEASED).hexdigest()
    assert told["synthetic/num_samples"] == 2
    assert "more.jsonl" in Manifest.read(output.parent).unknown()


def test_what_was_drawn_by_hand_with_other_prompts_is_not_taken_over_by_the_step_of_the_run(
    run: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever says that his private file is public gets his lines, in the place of the run's; there it ends."""
    output = run / "synthetic.jsonl"
    given = [f"--data.init_args.prompts_path={private(run)}", "--data.init_args.is_public=true"]
    assert predict(tiny_model, output, *given) == 0
    before = output.read_bytes()
    assert b"Quetzalcoatl" in before
    assert predict(tiny_model, output, f"--data.init_args.prompts_path={run / 'trees.jsonl'}") == 2
    said = capsys.readouterr().err
    assert str(output) in said and "other prompts" in said and "Quetzalcoatl" not in said
    assert output.read_bytes() == before


def test_what_was_drawn_by_hand_under_another_grammar_is_not_taken_over_by_the_step_of_the_run(
    run: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trees are sampled by hand under a table of private names."""
    table = run.parent / "names.csv"
    table.write_text("Quetzalcoatl,Person\n")
    (run / "trees.jsonl").unlink()
    grammar = "--model.init_args.sampling={redraws: null, max_new_tokens: 4, grammar: %s}"
    assert predict(tiny_model, run / "trees.jsonl", grammar % table, model="parse_tree_lm") == 0
    assert predict(tiny_model, run / "trees.jsonl", model="parse_tree_lm") == 2
    said = capsys.readouterr().err
    assert str(run / "trees.jsonl") in said and "the grammar that they are of" in said
