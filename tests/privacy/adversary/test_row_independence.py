"""The attacker's row is long, so that the model treats the rows beside it in another way, and all gradients move.

Phi-3's "longrope" and "dynamic" scaling choose the frequencies of all rows by the longest one of the batch: one row
more then moved the sum by up to eight times the bound.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from private_training import data_module, fit, privacy
from transformers import AutoModelForCausalLM, AutoTokenizer, Phi3Config, PreTrainedModel

from doppel.errors import UserError
from lightning_modules.utterance_lm import UtteranceLM


def phi3(tiny_model: str, folder: Path, rope: dict[str, object] | None) -> str:
    """A folder with a random Phi-3 of 64 positions, trained on 16 if its frequencies are scaled."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": len(tokenizer)}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": 16 if rope else 64}
    config = Phi3Config(**sizes, **heads, **special, **lengths, bos_token_id=tokenizer.bos_token_id, rope_scaling=rope)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


def change_by_a_long_row(model: PreTrainedModel) -> float:
    """What a row of 48 tokens changes in the hidden states of a row of 8 beside it."""
    ids = torch.arange(3, 51).unsqueeze(0)
    with torch.no_grad():
        alone = model(input_ids=ids[:, :8]).logits
        beside = model(input_ids=torch.cat([torch.nn.functional.pad(ids[:, :8], (0, 40)), ids])).logits[:1, :8]
    return (alone - beside).abs().max().item()


def test_a_model_that_looks_at_the_longest_row_is_refused_by_name(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    base = phi3(tiny_model, tmp_path / "long", LONG)
    module = UtteranceLM(base_model=base)
    assert change_by_a_long_row(module.model.eval()) > 1e-4  # the attack is real
    with pytest.raises(UserError, match="longrope"):
        fit(tmp_path, module, data_module(corpus), [privacy(tmp_path)], max_epochs=1)
    assert not (tmp_path / "ledger.jsonl").exists()  # nothing was spent


def test_a_model_that_looks_at_each_row_alone_is_not(tiny_model: str, corpus: str, tmp_path: Path) -> None:
    module = UtteranceLM(base_model=phi3(tiny_model, tmp_path / "plain", None))
    assert change_by_a_long_row(module.model.eval()) < 1e-5
    fit(tmp_path, module.train(), data_module(corpus), [privacy(tmp_path)], max_epochs=1)
