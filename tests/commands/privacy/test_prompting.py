"""The lines of Python in the README of an exported model, wherever its base puts the begin of text."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from callbacks.export import write_pretrained
from commands.privacy.prompting import Prompting
from datamodules.reading.example import Field
from doppel.decoding.sampling import SamplingArguments, sample_texts
from doppel.models.load import load_tokenizer
from lightning_modules.causal_lm import UtteranceLM


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("source", "is_first"), [(None, False), ("label", True)])
def test_they_write_what_the_model_writes(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Field | None, is_first: bool
) -> None:
    tokenizer = load_tokenizer(tiny_model)
    tokenizer.sep_token = None
    if is_first:
        begin = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)])
        tokenizer.backend_tokenizer.post_processor = begin
    torch.manual_seed(1)
    model = UtteranceLM(base_model=tiny_model, init="random")
    tokenizer.save_pretrained(tmp_path / "base")
    model.model.save_pretrained(tmp_path / "base")
    model = UtteranceLM(base_model=str(tmp_path / "base"))
    greedy = SamplingArguments(top_k=1, max_new_tokens=8)
    asked = Prompting(source, "utterance", "calendar" if source else None, greedy)
    out = tmp_path / "released"
    model.model.generation_config = asked.generation_config(model.text_format)
    write_pretrained(out, model.model, model.text_format, torch.float32, {})
    readme = asked.readme(out, model.text_format, "")
    drawn = replace(asked, is_drawn=True).readme(out, model.text_format, "")
    assert "draws by the shares" in drawn and "draws by the shares" not in readme
    (lines,) = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
    monkeypatch.chdir(tmp_path)
    with redirect_stdout(StringIO()) as written:
        exec(lines, {})
    text_format = model.text_format
    text_format.source = source
    (told,) = sample_texts(model.model, text_format, [text_format.encode_prompt(asked.example)], greedy)
    assert told.text.split() and written.getvalue().split() == told.text.split() * 5
    assert ("[[0] + tokenizer" in lines) == is_first
