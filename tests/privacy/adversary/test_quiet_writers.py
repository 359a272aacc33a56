"""The attacker reads console, W&B page and hashes of whatever goes through private rows: none of it may count them."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
from pathlib import Path

import pytest
import wandb
from lightning.pytorch.callbacks import ProgressBar
from run_folders import end_step
from transformers import AutoTokenizer
from wandb_records import pieces

import cli
from callbacks.progress_lines import ProgressLines
from commands.lightning.cli import DoppelCLI
from commands.run_folder.steps import File
from datamodules.batches.encoded import encode_examples
from datamodules.reading.examples import read_examples
from datamodules.text_format import TextFormat
from doppel.errors import UserError
from lightning_modules.sampling import Sample
from tests.callbacks.tiny_sampling import NUM_SAMPLES, PromptData, TinyModel, sample
from tests.tiny_model import PAIRS

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")
ROOT = Path(__file__).resolve().parents[3]
NUM_ROWS = 53
MARK = "quetzalcoatl"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """What stands on a terminal."""
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda self: True, raising=False)
    return capsys


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("private") / "turns.jsonl"
    rows = [{"utterance": f"{PAIRS[i % 6][0]} {MARK} {i}", "parse": PAIRS[i % 6][1]} for i in range(NUM_ROWS)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory, tiny_model: str, corpus: str) -> list[str]:
    """Words of ``predict`` that name a public parser."""
    patch = pytest.MonkeyPatch()
    patch.setattr(sys, "argv", ["cli.py"])
    run = tmp_path_factory.mktemp("parser") / "parser"
    encoder = f"{{name: small, tokenizer: {tiny_model}, num_layers: 1}}"
    decoder = "{num_layers: 1, size: 32, num_heads: 2, feedforward_size: 64, dropout: 0.0}"
    sizes = [f"--model.init_args.encoder={encoder}", f"--model.init_args.decoder={decoder}"]
    sizes += ["--model.init_args.max_actions=8", "--trainer.accelerator=cpu"]
    config = [f"--config={ROOT}/configs/semantic_parser.yaml", *sizes]
    data = [f"--data.init_args.train_paths=[{corpus}]", "--trainer.max_epochs=1", "--trainer.logger=false"]
    assert cli.main(["fit", *config, *data, f"--run_dir={run}"]) == 0
    patch.undo()
    overlay = f"--config={ROOT}/configs/overlays/annotate.yaml"
    return [config[0], overlay, *sizes, f"--ckpt_path={run}/checkpoints/last.ckpt"]


def annotate(parser: list[str], path: object, output: Path, *words: str) -> int:
    """Let a parser annotate a file with the writer and the artifacts of a sampling, as somebody would by mistake."""
    arguments = f"{{output_path: {output}, stage: annotate, log_samples: 20}}"
    writer = f"{{class_path: callbacks.synthetic_writer.SyntheticWriter, init_args: {arguments}}}"
    callbacks = f"--trainer.callbacks=[{{class_path: callbacks.wandb_lineage.WandbLineage}}, {writer}]"
    given = [f"--data.init_args.path={path}", "--data.init_args.batch_size=10", f"--run_dir={output.parent}/annotate"]
    try:
        return cli.main(["predict", *parser, *given, callbacks, *words])
    finally:
        wandb.finish()
        wandb.teardown()


def figures(text: str) -> set[str]:
    """Whole numbers of what was said, without those of paths."""
    return set(re.findall(r"(?<![\w.:-])\d+(?![\w.:-])", re.sub(r"\S*/\w\S*", "", text)))


def test_who_annotates_private_turns_tells_no_figure_of_them(
    parser: list[str],
    private: Path,
    tmp_path: Path,
    terminal: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = tmp_path / "run" / "annotated.jsonl"
    with caplog.at_level(logging.INFO), pytest.warns(UserWarning, match=r"annotated\.jsonl is not written yet\."):
        assert annotate(parser, private, output, "--trainer.limit_predict_batches=2") == 0
    with caplog.at_level(logging.INFO):
        assert annotate(parser, private, output) == 0  # goes on after 20 rows
    assert len(output.read_text().splitlines()) == NUM_ROWS
    told = terminal.readouterr()
    said = "\n".join([told.out, told.err, caplog.text])
    assert not figures(said) & {"4", "6", "33", "20", str(NUM_ROWS)}, said
    assert "/4" not in said and "/6" not in said and "samples" not in said and MARK not in said
    record = json.loads(output.with_name("annotated.jsonl.metrics.json").read_text())
    assert record.keys() == {"weights", "prompts", "sha256"}
    plain = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (output, private)}
    assert all(not digest.startswith((record["sha256"], record["prompts"])) for digest in plain)
    runs = pieces(output.parent / "annotate")
    assert runs and not any(key.startswith("synthetic") for run in runs for key in run.keys | run.config.keys())
    assert not any(run.artifacts for run in runs)
    page = b"".join(path.read_bytes() for path in (output.parent / "annotate").rglob("*") if path.is_file())
    assert MARK.encode() not in page and not any(digest.encode() in page for digest in plain)


def test_who_annotates_a_release_or_the_public_grammar_tells_all(
    parser: list[str], tmp_path: Path, terminal: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    released = tmp_path / "run" / "synthetic.jsonl"
    released.parent.mkdir()
    released.write_text('{"utterance": "yes"}\n' * 7)
    end_step(released.parent, "sample", ["predict"], [File(released.name, "release", "one_stage", "one_stage")])
    for path, number in (("embedded:train?num=8", 8), (released, 7)):
        output = tmp_path / f"annotated_{number}.jsonl"
        assert annotate(parser, path, output) == 0
        record = json.loads(output.with_name(f"{output.name}.metrics.json").read_text())
        assert record["synthetic/num_samples"] == number
        assert record["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()
        assert f"wrote {number} samples" in caplog.text


class Silent(TinyModel):
    """Writes nothing that is a sample."""

    def predict_step(self, batch: object, batch_idx: int) -> list[Sample]:
        return [Sample(i, "", None, True, faults=["empty"], is_dropped=True) for i in batch.indices]  # type: ignore


class Mute(PromptData):
    """A data module that does not say of what it reads."""

    is_public = None  # type: ignore[assignment]


def test_an_error_counts_no_rows_of_a_data_module_that_does_not_say(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text for") as error:
        sample(tmp_path / "out.jsonl", model=Silent(), data=Mute([None] * NUM_SAMPLES))
    assert not figures(str(error.value).removesuffix("keeps all texts")) and "empty" not in str(error.value)


@pytest.mark.parametrize(
    ("verb", "is_public"), [("validate", False), ("validate", True), ("test", False), ("fit", False)]
)
def test_a_bar_counts_batches_of_public_rows_alone(
    tiny_model: str, private: Path, tmp_path: Path, terminal: object, verb: str, is_public: bool
) -> None:
    """How many batches a file makes follows from the lengths of its rows."""
    words = [f"--config={ROOT}/configs/utterance_lm.yaml", f"--model.init_args.base_model={tiny_model}"]
    words += ["--data=datamodules.dialogue_data_module.DialogueDataModule", f"--data.init_args.train_path={private}"]
    for name in ("val", "test"):
        path = "embedded:valid?num=20" if is_public else private
        words += [f"--data.init_args.{name}_path={path}", f"--data.init_args.{name}_is_public={is_public}"]
    words += ["--data.init_args.batch_size=30", "--trainer.accelerator=cpu", "--trainer.logger=false"]
    words += ["--privacy.target_epsilon=8", "--privacy.accountant=rdp", "--trainer.max_epochs=1"]
    trainer = DoppelCLI([verb, *words, f"--run_dir={tmp_path}/run/one_stage"]).trainer
    bars = [callback for callback in trainer.callbacks if isinstance(callback, ProgressBar)]
    assert [type(bar) is ProgressLines for bar in bars] == [not is_public]


def test_nothing_counts_the_rows_that_are_tokenised(
    tiny_model: str, private: Path, terminal: pytest.CaptureFixture[str]
) -> None:
    text_format = TextFormat(AutoTokenizer.from_pretrained(tiny_model), None, "utterance", 96)
    assert len(encode_examples(read_examples(str(private), "utterance"), text_format)) == NUM_ROWS
    told = terminal.readouterr()
    assert not told.out and not told.err
