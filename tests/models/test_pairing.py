"""A base is what its files say: its tokenizer's ids are its own, its weights are floats, and what is typed is text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from private_training import data_module, fit, privacy
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from datamodules.text_format import TextFormat
from doppel.models.faults import ModelError
from doppel.models.load import check_loads, load_model, load_with_tokenizer
from doppel.models.pairing import check_reads, nats_a_token
from lightning_modules.causal_lm import UtteranceLM

BASE = str(Path(__file__).parents[2] / "models/base")


def permuted(model: Any) -> Any:
    """The model with the rows of its embedding in another order, as if its tokenizer had other ids."""
    weight = model.get_input_embeddings().weight
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        weight.copy_(weight[order].clone())
    return model


def test_a_tokenizer_with_other_ids_is_refused_and_its_own_is_not(tmp_path: Path) -> None:
    model, tokenizer = load_with_tokenizer(BASE)
    assert nats_a_token(tokenizer, model) < 5.0
    check_reads(tokenizer, model, BASE)
    permuted(model).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"where a guess has 8\.3: its tokenizer is not the one"):
        check_reads(tokenizer, model, BASE)


@pytest.mark.slow
def test_a_training_refuses_it_before_a_step_is_charged(tmp_path: Path, corpus: str) -> None:
    model, tokenizer = load_with_tokenizer(BASE)
    permuted(model).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    lm = UtteranceLM(base_model=str(tmp_path / "base"))
    with pytest.raises(ModelError, match="its tokenizer is not the one"):
        fit(tmp_path, lm, data_module(corpus, sampling_seed=None), [privacy(tmp_path, seed=None)])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_weights_that_are_no_floats_are_refused(tmp_path: Path, tiny_model: str, dtype: torch.dtype) -> None:
    model, tokenizer = load_with_tokenizer(tiny_model)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if "attn" in name and name.endswith("weight"))
    save_file(weights | {name: (weights[name] * 100).to(dtype)}, file, {"format": "pt"})
    for load in (load_model, check_loads):
        with pytest.raises(ModelError, match="packed by a tool of which config.json says nothing"):
            load(str(tmp_path))
    save_file(weights | {name: weights[name].bfloat16()}, file, {"format": "pt"})
    load_model(str(tmp_path))


def test_a_typed_special_token_is_text_in_a_vocabulary_that_has_it_as_a_word() -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<s>", "</s>", "<pad>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=80, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(["book a ride at noon </s> <s>", "call a cab </pad>", "<s> say it"] * 9, trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    text_format = TextFormat(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names), None, "utterance", 64)
    plain, typed = text_format.tokenize(["book a ride", "book a </s> ride <pad><s>"])
    assert not {text_format.eos_id, text_format.bos_id, text_format.pad_id} & set(typed)
    assert text_format.decode(plain) == "book a ride"
    said = text_format.decode(typed).replace(" ", "")
    assert said.startswith("booka<") and said.endswith("s>") and "ride" in said
