"""A base model is whole, is numbers, and has a row for each token; else it is refused, in one line, before anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, T5Config

from doppel.decoding.sampling import SamplingArguments, sample_texts
from doppel.errors import UserError
from doppel.models.load import load_model
from doppel.models.quantized import check_packed
from lightning_modules.causal_lm import UtteranceLM


def changed_weights(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def changed_config(**values: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return damage


def more_tokens(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<user{i}>" for i in range(9)])
    tokenizer.save_pretrained(folder)


def foreign_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": Path("x")}, folder / "pytorch_model.bin")


def torn(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a weight is missing": (changed_weights(lambda w: w.pop("transformer.h.1.ln_1.weight")), "lacks 1 .*h.1.ln_1"),
    "weights too many": (changed_config(n_layer=1), "does not know .*transformer.h.1"),
    "another shape": (changed_config(n_inner=24), "another shape are .*mlp"),
    "not a number": (
        changed_weights(lambda w: w["transformer.h.0.ln_1.weight"].fill_(float("nan"))),
        "h.0.ln_1.weight holds numbers that are not finite",
    ),
    "more tokens": (more_tokens, "ids up to .*resize_token_embeddings"),
    "quantised": (changed_config(quantization_config={"quant_method": "gptq", "bits": 4}), "quantised"),
    "own code": (changed_config(model_type="mine", auto_map={"AutoConfig": "c.C"}), "code of its own"),
    "no language model": (lambda folder: T5Config().save_pretrained(folder), "T5Config"),
    "torn": (torn, "damaged"),
    "pointer": (lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs"), "Git LFS"),
    "pickle": (foreign_pickle, "pickle that holds more than weights"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer of .*tokenizer.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_is_no_whole_model_is_refused_in_one_line(damage: str, tiny_model: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    change, said = DAMAGES[damage]
    change(folder)
    with pytest.raises(UserError, match=said) as caught:
        UtteranceLM(base_model=str(folder))
    assert (
        "\n" not in str(caught.value) and str(folder) in str(caught.value) and "weights_only" not in str(caught.value)
    )


def test_special_tokens_that_no_text_holds_need_no_row(tiny_model: str, tmp_path: Path) -> None:
    """Gemma 3's for images: in a text it is plain text, and it is never sampled; one that pads rows needs its row."""
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    tokenizer, token = AutoTokenizer.from_pretrained(tmp_path), "<image_soft_token>"
    tokenizer.add_special_tokens({"additional_special_tokens": [token]})
    tokenizer.save_pretrained(tmp_path)
    model = UtteranceLM(base_model=str(tmp_path))
    rows, image = model.model.get_input_embeddings().num_embeddings, tokenizer.convert_tokens_to_ids(token)
    assert image == rows and max(model.text_format.tokenize([f"show me {token}"])[0]) < rows
    sampling = SamplingArguments(max_new_tokens=6, redraws=None)
    assert len(sample_texts(model.model, model.text_format, [[rows - 1]] * 3, sampling)) == 3
    tokenizer.pad_token = token
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"ids up to {rows}"):
        UtteranceLM(base_model=str(tmp_path))


def test_no_dropout_means_none_of_any_name(tmp_path: Path) -> None:
    names = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model("bert", is_decoder=True, vocab_size=32, **sizes, **names)
    ).save_pretrained(tmp_path)
    model = load_model(str(tmp_path), dropout=0.0)
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))
    assert any(m.p == 0.3 for m in load_model(str(tmp_path)).modules() if isinstance(m, torch.nn.Dropout))


@pytest.mark.parametrize("is_frozen", [True, False])
def test_eight_bits_are_not_told_to_train_lora_which_takes_four(is_frozen: bool) -> None:
    with pytest.raises(ValueError, match="in four bits alone"):
        check_packed({"quant_method": "bitsandbytes", "load_in_8bit": True}, is_frozen)
