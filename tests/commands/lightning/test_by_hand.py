"""The command that samples or annotates by a training that no run made."""

from __future__ import annotations

from pathlib import Path

from commands.lightning.by_hand import predict_command


def test_a_parser_is_given_a_file_of_utterances_and_a_model_of_texts_none(tmp_path: Path) -> None:
    stage = tmp_path / "run" / "parser"
    stage.mkdir(parents=True)
    (stage / "config.yaml").write_text("model: {}\n")
    assert predict_command(stage, writes_texts=False).endswith(" --data.init_args.path UTTERANCES.jsonl")
    assert "configs/overlays/annotate.yaml" in predict_command(stage, writes_texts=False)
    assert "--data." not in predict_command(stage) and "configs/overlays/sample.yaml" in predict_command(stage)
