"""Which families of models train exactly: the table of docs/own-model.md, made here from tiny models of each."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GenerationConfig,
)

from callbacks.export import write_pretrained
from callbacks.row_independence import check_row_independence
from datamodules.batches.batch import IGNORE_INDEX, MicroBatch
from doppel.decoding.decode import DrawingRule, Request, decode, longest_decodable
from doppel.decoding.generate import generate
from doppel.errors import UserError
from doppel.models import lora_folder
from doppel.models.adapters import LoraArguments
from doppel.models.load import load_model
from doppel.privacy.clipping.head import ScaledLogits
from lightning_modules.causal_lm import UtteranceLM

PAGE = Path(__file__).parents[2] / "docs" / "own-model.md"
BASE = "models/base"
EXACT, REFUSED = "exact", "refused"
_ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA = {**_SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64}
_GEMMA = {**_LLAMA, "head_dim": 8}
_NEO = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
_MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
#: Family as transformers calls it → its sizes, and what comes of a training of all weights and of adapters.
FAMILIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 4}, EXACT, EXACT),
    "gpt_neo": (_NEO, EXACT, EXACT),
    "gpt_neox": (_LLAMA, EXACT, EXACT),
    "bloom": ({"hidden_size": 32, "n_layer": 2, "n_head": 4}, EXACT, EXACT),
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3"), (_LLAMA, EXACT, EXACT)),
    **dict.fromkeys(("phi", "phi3", "stablelm", "starcoder2", "granite"), (_LLAMA, EXACT, EXACT)),
    **dict.fromkeys(("cohere", "cohere2", "olmo", "olmo2"), (_LLAMA, EXACT, EXACT)),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), (_GEMMA, EXACT, EXACT)),
    "falcon": ({**_SIZES, "alibi": False}, REFUSED, EXACT),
    "opt": ({**_LLAMA, "ffn_dim": 48, "word_embed_proj_dim": 32}, REFUSED, REFUSED),
    "mamba": (_MAMBA, REFUSED, REFUSED),
}
#: What users bring.
COMMON = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "mistral")
#: Tried wherever tests run; all of them where slow ones do.
QUICK = (*COMMON, "falcon", "opt", "mamba")
WINDOW = 24


def outcome(folder: str, lora: LoraArguments | None) -> str:
    """Norms and clipped sums against autograd, or a refusal in words."""
    try:
        assert check_row_independence(UtteranceLM(base_model=folder, max_length=16, lora=lora).train()) is None
    except UserError as error:
        assert "\n" not in str(error)
        return REFUSED
    return EXACT


def make(family: str, folder: Path, **more: Any) -> str:
    """A folder with a tiny model of random weights, which differ from one another, and the shipped tokenizer."""
    sizes, *_ = FAMILIES[family]
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **sizes, **more, **_ENDS)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def with_random_adapters(folder: str) -> UtteranceLM:
    """A model whose adapters do something."""
    lm = UtteranceLM(base_model=folder, max_length=16, lora=LoraArguments(rank=2)).eval()
    for name, parameter in lm.model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return lm


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FAMILIES])
def test_a_family_is_exact_or_refused_in_words(family: str, tmp_path: Path) -> None:
    folder = make(family, tmp_path)
    assert [outcome(folder, lora) for lora in (None, LoraArguments(rank=2))] == [*FAMILIES[family][1:]]


def test_where_some_layers_lose_the_rows_the_refusal_names_the_others_for_lora(tmp_path: Path) -> None:
    folder = make("opt", tmp_path)
    with pytest.raises(UserError, match=r"layers\.0\.fc1\.lora_A.* lora\.target_modules=\[\w+_proj") as refused:
        check_row_independence(UtteranceLM(base_model=folder, max_length=16, lora=LoraArguments(rank=2)).train())
    named = str(refused.value).rpartition("[")[2].rstrip("]").split(", ")
    assert named == ["k_proj", "out_proj", "q_proj", "v_proj"]
    assert outcome(folder, LoraArguments(rank=2, target_modules=named)) == EXACT


@pytest.mark.parametrize("family", COMMON)
def test_a_common_family_forms_labelled_logits_alone_and_is_sampled_and_exported_as_it_is(
    family: str, tmp_path: Path
) -> None:
    """Sampled by our own decoder, where prompt and text fit in a window, as ``generate`` samples."""
    has_window = family in ("gemma2", "gemma3_text", "phi3", "mistral")
    more = {"initializer_range": 0.5} | ({"sliding_window": WINDOW} if has_window else {})
    lm = with_random_adapters(make(family, tmp_path / "base", **more))
    model, ids = lm.model, torch.randint(5, 1000, (4, 12), generator=torch.Generator().manual_seed(0))

    batch = MicroBatch(ids, ids.masked_fill(torch.arange(12) < 3, IGNORE_INDEX), num_units=4)
    assert lm.head_loss is not None
    assert lm.head_loss.function == (ScaledLogits(cap=30.0) if family == "gemma2" else None)
    losses, lm.head_loss = lm.losses(batch), None
    torch.testing.assert_close(losses, lm.losses(batch), rtol=1e-4, atol=1e-4)

    assert longest_decodable(model) == (WINDOW if has_window else math.inf)
    requests = [Request(row[:n].tolist(), WINDOW - n) for n, row in zip((1, 4, 9, 12), ids, strict=True)]
    config = GenerationConfig(do_sample=False, pad_token_id=2, eos_token_id=None)
    model.generation_config = GenerationConfig()
    rule = DrawingRule(top_k=1, top_p=1.0, temperature=1.0, never=(), eos_id=None)
    assert decode(model, requests, rule, max_rows=3) == generate(model, requests, config, max_rows=3)

    write_pretrained(tmp_path / "out", model, lm.text_format, torch.float32, card={})
    with torch.no_grad():
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
        torch.testing.assert_close(exported(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


def test_of_a_multimodal_base_the_language_model_alone_is_trained_and_released(tmp_path: Path) -> None:
    """Its adapters have the names of the whole, for who loads them onto it, and are read back."""
    tokenizer, base = AutoTokenizer.from_pretrained(BASE), tmp_path / "base"
    tower = {**_SIZES, "image_size": 28, "patch_size": 14}
    text = {**_GEMMA, "vocab_size": len(tokenizer), "initializer_range": 0.5}
    sizes = {"text_config": text, "vision_config": tower, "mm_tokens_per_image": 4}
    whole = Gemma3ForConditionalGeneration(Gemma3Config(**sizes, image_token_index=len(tokenizer) - 1, **_ENDS)).eval()
    for part in (whole, tokenizer):
        part.save_pretrained(base)
    lm = with_random_adapters(str(base))
    model, ids = lm.model.eval(), torch.randint(5, 1000, (2, 9))
    assert not any("vision" in name or parameter.is_meta for name, parameter in model.named_parameters())
    adapted = [module for module in model.modules() if isinstance(module, LoraLayer)]
    assert len(adapted) == 2 * 7 and check_row_independence(lm.train()) is None
    model.eval()

    write_pretrained(tmp_path / "merged", model, lm.text_format, torch.float32, card={})
    lora_folder.write(tmp_path / "adapter", model, str(base), torch.float32)
    found = {
        "merged": AutoModelForCausalLM.from_pretrained(tmp_path / "merged"),
        "peft": PeftModel.from_pretrained(Gemma3ForConditionalGeneration.from_pretrained(base), tmp_path / "adapter"),
        "ours": load_model(tmp_path / "adapter"),
    }
    assert [type(found[name]).__name__ for name in ("merged", "ours")] == ["Gemma3ForCausalLM"] * 2
    with torch.no_grad():
        logits = model(ids).logits
        for other in found.values():
            torch.testing.assert_close(other.eval()(ids).logits, logits, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(whole(ids).logits, logits, atol=1e-2)


def test_the_page_has_this_table() -> None:
    rows = re.findall(r"^\| `([\w`, ]+)` \| (exact|refused) \| (exact|refused) \|", PAGE.read_text(), flags=re.M)
    told = {family: (whole, adapters) for names, whole, adapters in rows for family in names.split("`, `")}
    assert told == {family: tuple(outcomes) for family, (_, *outcomes) in FAMILIES.items()}
