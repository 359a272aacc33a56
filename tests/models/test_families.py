"""Which families of models train exactly: the table of docs/own-model.md, made here from tiny models of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from callbacks.row_independence import check_row_independence
from doppel.errors import UserError
from doppel.models.adapters import LoraArguments
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
    **dict.fromkeys(("llama", "mistral", "qwen3", "smollm3"), (_LLAMA, EXACT, EXACT)),
    **dict.fromkeys(("phi", "phi3", "stablelm", "starcoder2", "granite"), (_LLAMA, EXACT, EXACT)),
    **dict.fromkeys(("cohere", "cohere2", "olmo", "olmo2"), (_LLAMA, EXACT, EXACT)),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), (_GEMMA, EXACT, EXACT)),
    "falcon": ({**_SIZES, "alibi": False}, REFUSED, EXACT),
    "opt": ({**_LLAMA, "ffn_dim": 48, "word_embed_proj_dim": 32}, REFUSED, REFUSED),
    "mamba": (_MAMBA, REFUSED, REFUSED),
}
#: Tried wherever tests run; all of them where slow ones do.
QUICK = ("gemma3_text", "falcon", "opt", "mamba")


def outcome(folder: str, lora: LoraArguments | None) -> str:
    """Norms and clipped sums against autograd, or a refusal in words."""
    try:
        assert check_row_independence(UtteranceLM(base_model=folder, max_length=16, lora=lora).train()) is None
    except UserError as error:
        assert "\n" not in str(error)
        return REFUSED
    return EXACT


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FAMILIES])
def test_a_family_is_exact_or_refused_in_words(family: str, tmp_path: Path) -> None:
    sizes, *expected = FAMILIES[family]
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **sizes, **_ENDS)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert [outcome(str(tmp_path), lora) for lora in (None, LoraArguments(rank=2))] == expected


def test_the_page_has_this_table() -> None:
    rows = re.findall(r"^\| `([\w`, ]+)` \| (exact|refused) \| (exact|refused) \|", PAGE.read_text(), flags=re.M)
    told = {family: (whole, adapters) for names, whole, adapters in rows for family in names.split("`, `")}
    assert told == {family: tuple(outcomes) for family, (_, *outcomes) in FAMILIES.items()}
