"""A base of four bits below adapters: exact, row by row, in a third of the memory; stored, sampled and merged."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from private_training import data_module, fit, privacy
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, LlamaConfig

import cli
from callbacks.export import write_pretrained
from callbacks.row_independence import check_row_independence
from commands.lightning.trained_model import trained_model
from commands.run_folder.stage_config import StageConfig
from doppel.errors import UserError
from doppel.models.adapters import LoraArguments, merged_weights
from doppel.models.footprint import Micro, footprint
from doppel.models.frozen_base import FrozenBase
from doppel.models.load import check_loads, load_model, load_with_tokenizer
from doppel.models.quantized import PackedLinear, check_bitsandbytes
from doppel.privacy.card import CARD
from lightning_modules.causal_lm import UtteranceLM

pytest.importorskip("bitsandbytes", reason="no bitsandbytes: pip install 'doppel[quantized]'")
check_bitsandbytes()

LORA = LoraArguments(rank=2)
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


@pytest.fixture(scope="module")
def llama(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a tiny Llama in bfloat16."""
    folder, tokenizer = tmp_path_factory.mktemp("llama"), AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=96, **SMALL, **ENDS)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=[False, True], ids=["float scales", "packed scales"])
def of_hub(request: pytest.FixtureRequest, llama: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the same model as the hub has them, in four bits, with a quantization_config."""
    folder: Path = tmp_path_factory.mktemp("packed")
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=request.param)
    AutoModelForCausalLM.from_pretrained(llama, quantization_config=how, device_map="cpu").save_pretrained(folder)
    AutoTokenizer.from_pretrained(llama).save_pretrained(folder)
    return folder


def packed(base: str, **changes: Any) -> UtteranceLM:
    """A model with adapters that are no longer at their start, where B = 0 hides A."""
    torch.manual_seed(1)
    model = UtteranceLM(base_model=base, **({"lora": LORA, "quantization": "nf4"} | changes))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("shape", [(96, 64), (33, 30), (7, 5)])
def test_a_packed_layer_multiplies_by_its_unpacked_weight_and_so_does_its_gradient(shape: tuple[int, int]) -> None:
    layer, x = nn.Linear(*shape), torch.randn(3, 4, shape[0], requires_grad=True)
    before = layer.weight.detach().clone()
    PackedLinear.pack(layer)
    assert isinstance(layer, PackedLinear)
    weight = layer.unpacked(torch.float32)
    assert weight.shape == before.shape and (weight - before).abs().max() < 0.16 * before.abs().max()
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            found, expected = layer(x), F.linear(x.to(dtype), weight.to(dtype), layer.bias.to(dtype))
        assert found.dtype is dtype and torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
        own, other = (torch.autograd.grad(y.float().square().sum(), x)[0] for y in (found, expected))
        assert torch.allclose(own, other, rtol=1e-2, atol=1e-3 if dtype is torch.bfloat16 else 1e-5)


def test_packing_takes_what_bitsandbytes_takes_and_gives_what_it_gives() -> None:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    layer = nn.Linear(256, 512, bias=False)
    expected = dequantize_4bit(*quantize_4bit(layer.weight.data, quant_type="nf4"), quant_type="nf4")
    PackedLinear.pack(layer)
    assert torch.equal(layer.unpacked(torch.float32), expected)
    assert layer.weight.nbytes / (256 * 512) <= 0.6


@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"dropout": None}], ids=str)
def test_norms_and_clipped_sums_are_exact_and_rows_independent(changes: dict[str, Any], llama: str) -> None:
    assert check_row_independence(packed(llama, max_length=16, **changes).train()) is None


def test_all_but_head_embeddings_norms_and_adapters_is_packed(llama: str) -> None:
    model = packed(llama)
    bases = [module.base_layer for module in model.modules() if hasattr(module, "base_layer")]
    assert len(bases) == 14 and all(type(layer) is PackedLinear for layer in bases)
    assert {p.dtype for n, p in model.named_parameters() if "lora_" in n} == {torch.float32}
    assert model.base is not None and model.base.dtype is torch.bfloat16
    assert model.base.record()["quantization"] == "nf4"


def test_a_checkpoint_holds_adapters_and_is_refused_on_a_base_that_is_not_packed(llama: str) -> None:
    model, other, plain = packed(llama), packed(llama), packed(llama, quantization=None)
    checkpoint: dict[str, Any] = {"state_dict": model.state_dict()}
    model.on_save_checkpoint(checkpoint)
    assert checkpoint["state_dict"] and all("lora_" in name for name in checkpoint["state_dict"])
    other.on_load_checkpoint(checkpoint)
    with pytest.raises(UserError, match="quantization nf4, and the model has null: set model.quantization"):
        plain.on_load_checkpoint(checkpoint)


def test_a_private_training_is_stored_taken_up_and_exported(llama: str, corpus: str, tmp_path: Path) -> None:
    model, stage = packed(llama), tmp_path / "fit"
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = fit(stage, model, data_module(corpus, sampling_seed=None), [privacy(tmp_path, seed=None)], max_steps=2)
    (stage / "checkpoints").mkdir(parents=True)
    trainer.save_checkpoint(stage / "checkpoints" / "last.ckpt")
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all("lora_" in name for name in moved)
    init = {"base_model": llama, "linearisation": "spaced", "task_prefix": True, "lora": asdict(LORA)}
    config = {
        "model": {"class_path": "lightning_modules.causal_lm.UtteranceLM", "init_args": init | {"quantization": "nf4"}},
        "data": {"init_args": {"train_path": corpus}},
        "privacy": {"target_epsilon": 8.0, "ledger_path": str(tmp_path / "ledger.jsonl")},
    }
    (stage / "config.yaml").write_text(yaml.safe_dump(config))
    restored = trained_model(stage / "checkpoints" / "last.ckpt", StageConfig.read(stage))
    ids = torch.randint(3, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.eval().model(input_ids=ids).logits
        assert torch.allclose(restored.eval().model(input_ids=ids).logits, expected, atol=1e-5)
        assert cli.main(["export", str(stage), str(tmp_path / "out"), "--merge", "--dtype", "float32"]) == 0
        merged = load_model(tmp_path / "out").eval()
        assert torch.allclose(merged(input_ids=ids).logits, expected, atol=1e-5)
        assert cli.main(["export", str(stage), str(tmp_path / "lora")]) == 0
        assert json.loads((tmp_path / "lora" / CARD).read_text())["base"]["quantization"] == "nf4"
        readme = (tmp_path / "lora" / "README.md").read_text()
        (how,) = re.findall(r"`quantization_config=(BitsAndBytesConfig\(.*?\))`", readme)
        base = AutoModelForCausalLM.from_pretrained(llama, quantization_config=eval(how), device_map="cpu")
        layer, own = base.model.layers[1].mlp.up_proj, restored.model.model.layers[1].mlp.up_proj.base_layer
        dequantize = importlib.import_module("bitsandbytes.functional").dequantize_4bit
        packed_so = dequantize(layer.weight.data, layer.weight.quant_state).float()
        assert torch.allclose(own.unpacked(torch.bfloat16).float(), packed_so, rtol=0.01), "as its README loads it"


def test_merged_weights_are_the_unpacked_ones_and_their_adapters(llama: str) -> None:
    model = packed(llama).eval()
    merged = load_model(llama)
    merged.load_state_dict(merged_weights(model.model, torch.float32))
    ids = torch.randint(3, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = merged.eval()(input_ids=ids).logits, model.model(input_ids=ids).logits
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_folder_of_four_bits_loads_under_lora_and_is_exact(of_hub: Path, llama: str) -> None:
    check_loads(of_hub, is_frozen=True)
    model = packed(str(of_hub), quantization=None, max_length=16).train()
    assert check_row_independence(model) is None
    weights = {n: m for n, m in FrozenBase(llama).load().named_modules() if type(m) is nn.Linear}
    layers = {n: m for n, m in FrozenBase(str(of_hub)).load().named_modules() if isinstance(m, PackedLinear)}
    assert layers.keys() == weights.keys() - {"lm_head"}
    for name, layer in layers.items():
        exact = weights[name].weight.float()
        assert (layer.unpacked(torch.float32) - exact).abs().max() < 0.16 * exact.abs().max()
    write_pretrained(of_hub / "whole", model.model, model.text_format, torch.float32, {})
    whole, ids = load_model(of_hub / "whole").eval(), torch.arange(3, 21).view(2, 9)
    with torch.no_grad():
        assert torch.allclose(whole(input_ids=ids).logits, model.eval().model(input_ids=ids).logits, atol=1e-5)
    for refused in (load_with_tokenizer, check_loads):
        with pytest.raises(UserError, match="quantised, which no gradient trains: train LoRA on them"):
            refused(of_hub)


def test_lora_weights_on_four_bits_are_merged_into_layers_that_stay_whole(
    of_hub: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    below = AutoModelForCausalLM.from_pretrained(of_hub, device_map="cpu")
    adapted = get_peft_model(below, LoraConfig(r=2, lora_alpha=5, target_modules=["q_proj", "down_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(tmp_path / "theirs")
    base = str(tmp_path / "theirs")
    check_loads(base, is_frozen=True)
    layers = {n: m for n, m in FrozenBase(base).load().named_modules() if isinstance(m, nn.Linear)}
    assert "4 layers of four bits hold the LoRA weights" in caplog.text and "no longer packed" in caplog.text
    for name, layer in FrozenBase(str(of_hub)).load().named_modules():
        if isinstance(layer, PackedLinear) and name.endswith(("q_proj", "down_proj")):
            delta = adapted.base_model.model.get_submodule(name).get_delta_weight("default").detach().float()
            found, expected = layers[name].weight.float(), layer.unpacked(torch.float32) + delta
            assert (found - expected).norm() < 0.01 * expected.norm() and delta.norm() > 0.1 * expected.norm()
        elif isinstance(layer, PackedLinear):
            assert isinstance(layers[name], PackedLinear) and torch.equal(layers[name].weight, layer.weight)
    assert check_row_independence(packed(base, quantization=None, max_length=16).train()) is None
    again = UtteranceLM(base_model=base, lora=LORA, quantization="nf4", max_length=16)
    assert all(isinstance(m.base_layer, PackedLinear) for m in again.modules() if hasattr(m, "base_layer"))
    with pytest.raises(UserError, match="quantised, which no gradient trains: train LoRA on them"):
        UtteranceLM(base_model=base)


def test_four_bits_beside_float16_are_taken_up_as_a_training_held_them(llama: str, tmp_path: Path) -> None:
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    whole = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float16, quantization_config=how, device_map="cpu")
    whole.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(llama).save_pretrained(tmp_path)
    model, other = (packed(str(tmp_path), quantization=None) for _ in range(2))
    assert model.base is not None and other.base is not None and other.base.dtype is torch.float16
    model.base.settle(torch.device("cpu"), "bf16-mixed")
    checkpoint: dict[str, Any] = {"state_dict": model.state_dict()}
    model.on_save_checkpoint(checkpoint)
    other.on_load_checkpoint(checkpoint)
    assert other.base.dtype is torch.bfloat16 and other.base.digest == model.base.digest


def test_what_cannot_be_packed_is_told_before_a_weight_is_read(
    llama: str, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="quantization packs weights that are not trained"):
        UtteranceLM(base_model="/nowhere", quantization="nf4")
    with pytest.raises(UserError, match="GPT2LMHeadModel has no linear layer that it packs"):
        UtteranceLM(base_model=tiny_model, quantization="nf4", lora=LORA)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"bitsandbytes, which is not installed .*\[train,quantized\]"):
        UtteranceLM(base_model="/nowhere", quantization="nf4", lora=LORA)


def test_what_a_packed_base_holds_is_counted_on_shapes(llama: str) -> None:
    with torch.device("meta"):
        model = UtteranceLM(base_model=llama, lora=LORA, quantization="nf4", max_length=16, init="random")
    found, whole = footprint(model.model, Micro(512), model.head_loss), packed(llama, max_length=16)
    assert found is not None and whole.base is not None
    assert 0 <= found.base - whole.base.num_bytes < 1000, "buffers are more"
