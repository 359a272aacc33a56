"""The lines of Python in the README of an exported model ask it as its run does."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import cli
from commands.lightning.trained_model import trained_model
from commands.run.experiment.experiment import load
from commands.run_folder.stage_config import StageConfig
from datamodules.text_format import TextFormat
from doppel.decoding.sampling import SamplingArguments, sample_texts
from doppel.errors import UserError

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
STAGES = {
    "one_stage/one_stage": (None, "utterance"),
    "labels/labels": ("label", "utterance"),
    "two_stage/parse2utterance": ("parse", "utterance"),
}


def lines_of(folder: Path) -> str:
    (block,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.S)
    return str(block)


def written(lines: str) -> list[str]:
    out = StringIO()
    with redirect_stdout(out):
        exec(lines, {})
    return out.getvalue().removesuffix("\n").split("\n")


@pytest.mark.parametrize("stage", STAGES)
def test_they_write_what_the_run_writes(run: Path, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "released"
    assert cli.main(["export", str(run / stage), str(out)]) == 0
    monkeypatch.chdir(tmp_path)
    lines = lines_of(out)
    assert written(lines) and len(lines.strip().splitlines()) == 8, "five behind the imports and a blank line"
    settings = json.loads((out / "generation_config.json").read_text())
    assert settings["do_sample"] and (settings["top_k"], settings["max_new_tokens"]) == (50, 8)
    (out / "generation_config.json").write_text(json.dumps({**settings, "top_k": 1}))  # so that chance decides nothing
    trained = trained_model(run / stage / "checkpoints" / "last.ckpt", StageConfig.read(run / stage))
    source, target = STAGES[stage]
    tokenizer, plain = trained.text_format.tokenizer, trained.text_format
    text_format = TextFormat(tokenizer, source, target, 96, plain.linearisation, plain.task_prefix, plain.slots)  # type: ignore[arg-type]
    samples = run / ("two_stage/samples.jsonl" if source == "parse" else "labels/samples.jsonl")
    given = [json.loads(line)[source] for line in samples.read_bytes().splitlines()] if source else [None]
    given += ["(Yield (Today))"] if source == "parse" else []  # where no released tree is of a telling length
    prompts = {text_format.prompt_text(text): text for text in given}
    (prompt,) = re.findall(r"^folder, prompt = \"released\", (.*)$", lines, flags=re.M)
    source_text = prompts[json.loads(prompt)]
    texts = sample_texts(
        trained.model,
        text_format,
        [text_format.encode_prompt(source_text)],
        SamplingArguments(top_k=1, max_new_tokens=8),
    )
    assert [text.strip() for text in written(lines)] == [texts[0].text.strip()] * 5


def test_the_lines_name_no_folder_of_the_machine(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cli.main(["export", str(run / "two_stage/parse_tree"), str(tmp_path / "out")]) == 0
    assert "init_weights" not in caplog.text, "a warning for trainings"
    (commit,) = load(run / "experiment.yaml").commit
    told = json.loads((tmp_path / "out" / "privacy_card.json").read_text())["not_checked"]
    assert any(f"the code which ran ({commit})" in text for text in told), told
    readme = (tmp_path / "out" / "README.md").read_text()
    assert str(tmp_path) not in readme and "under its grammar" in readme
    assert readme.startswith("# out\n\nPRIVATE: ")


def test_a_base_that_was_named_from_the_checkout_is_found_from_elsewhere(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StageConfig.read(run / "one_stage/one_stage")
    base = Path(config.model["base_model"]).resolve()
    config.model["base_model"] = base.name
    checkpoint = (run / "one_stage/one_stage" / "checkpoints" / "last.ckpt").resolve()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="cannot load"):
        trained_model(checkpoint, config)
    monkeypatch.setattr("commands.lightning.trained_model.ROOT", base.parent)
    assert trained_model(checkpoint, config).text_format.tokenizer.is_fast
