"""The decoder computes the model's own logits and draws from the law of Hugging Face's ``generate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from doppel.decoding import decode as decoding
from doppel.decoding.candidates import candidates, draw
from doppel.decoding.decode import DrawingRule, Request, decode, longest_decodable
from doppel.decoding.generate import generate

BOS, EOS, VOCABULARY, POSITIONS = 0, 1, 9, 48
PLAIN = DrawingRule(top_k=0, top_p=1.0, temperature=1.0, never=(BOS,), eos_id=EOS)
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.5,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": BOS,
}
WINDOW = 20
_WINDOW = {"sliding_window": WINDOW, "head_dim": 4}
_MORE: dict[str, dict[str, Any]] = {
    "OPT": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    **dict.fromkeys(("Mistral", "Phi3", "Gemma2", "Gemma3"), _WINDOW),
    "GptOss": {
        **_WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default"},
    },
}
_GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}


def make_model(name: str) -> PreTrainedModel:
    """A tiny model with random weights, such as ``Llama`` or ``GPT2-eager``."""
    name, _, attention = name.partition("-")
    sizes = {**_SIZES, **_GPT2} if name == "GPT2" else dict(_SIZES)
    if name in ("OPT", "GPT2", "GPTNeoX"):
        del sizes["num_key_value_heads"]
    if name == "GPT2":
        sizes = {key: sizes[key] for key in sizes if key not in ("hidden_size", "intermediate_size")}
    sizes |= _MORE.get(name, {})
    config = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config"))(**sizes)
    config._attn_implementation = attention or ("eager" if name in ("Gemma2", "GptOss") else "sdpa")
    torch.manual_seed(1)
    model_class = {"GPT2": "GPT2LMHeadModel", "Bloom": "BloomForCausalLM"}.get(name, f"{name}ForCausalLM")
    model: PreTrainedModel = getattr(transformers, model_class)(config).eval()
    model.generation_config = GenerationConfig()
    return model


def requests_of_unequal_length(number: int, limit: int) -> list[Request]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 14, (number,), generator=generator).tolist()
    return [
        Request(torch.randint(2, VOCABULARY, (length,), generator=generator).tolist(), min(limit, 3 + i % limit))
        for i, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("name", ["GPT2", "GPT2-eager", "Llama", "Qwen2", "Qwen3", "GPTNeoX", "OPT", "Phi"])
def test_logits_are_those_of_the_whole_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However rows are refilled, moved and grown: in float64, to rounding."""
    monkeypatch.setattr(decoding, "_SPARE_COLUMNS", 2)
    model = make_model(name).double()
    checked = []

    def check(self: Any) -> Tensor:
        logits_RV = real_forward(self)
        for row, text in enumerate(self.texts):
            whole = torch.tensor([[*self.requests[text].prompt, *self._ids[row]]])
            torch.testing.assert_close(logits_RV[row], model(whole).logits[0, -1], rtol=1e-9, atol=1e-9)
            checked.append(row)
        return logits_RV

    real_forward = decoding.DecodingBatch.forward
    monkeypatch.setattr(decoding.DecodingBatch, "forward", check)
    requests = [replace(r, prompt=[*r.prompt, BOS]) for r in requests_of_unequal_length(14, 10)]
    torch.manual_seed(0)
    written = decode(model, requests, PLAIN, max_rows=4)
    assert len(checked) == sum(map(len, written))


@pytest.mark.parametrize("name", ["Mistral", "Phi3", "Gemma2", "Gemma3", "GptOss"])
def test_texts_as_long_as_a_window_are_those_of_generate(name: str) -> None:
    """The likeliest texts; one more token would find the window, in which the logits are others than without."""
    model = make_model(name)
    assert longest_decodable(model) == WINDOW
    requests = [Request(r.prompt, WINDOW - len(r.prompt)) for r in requests_of_unequal_length(12, 1)]
    likeliest = replace(PLAIN, top_k=1, eos_id=None)
    config = GenerationConfig(do_sample=False, suppress_tokens=[BOS], pad_token_id=BOS, eos_token_id=None)
    assert decode(model, requests, likeliest, max_rows=5) == generate(model, requests, config, max_rows=5)
    ids = torch.randint(2, VOCABULARY, (8, WINDOW + 1), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        last = model(ids).logits[:, -1]
        model.config.sliding_window = WINDOW + 1
        assert not torch.allclose(model(ids).logits[:, -1], last, atol=1e-4)


def test_each_text_ends_itself_or_has_its_own_longest_length() -> None:
    model = make_model("Llama")
    requests = requests_of_unequal_length(40, 12)
    torch.manual_seed(0)
    written = decode(model, requests, PLAIN, max_rows=12)
    ended = [ids[-1] == EOS for ids in written]
    assert 0 < sum(ended) < len(ended)
    for request, ids, is_ended in zip(requests, written, ended, strict=True):
        assert EOS not in ids[:-1] and BOS not in ids
        assert len(ids) <= request.limit if is_ended else len(ids) == request.limit


def test_equal_prompts_are_read_once() -> None:
    model = make_model("GPT2")
    read: list[int] = []
    model.transformer.wte.register_forward_hook(lambda module, inputs, output: read.append(inputs[0].numel()))
    decode(model, [Request([2, 3, 4, 5], 1)] * 6 + [Request([6, 7], 1)] * 2, PLAIN, max_rows=8)
    assert read == [2 * 3, 8]  # two distinct prompts, padded and without their last token; then one step of 8 rows


def reference(model: PreTrainedModel, prompts: Sequence[Sequence[int]], rule: DrawingRule, limit: int) -> list[Any]:
    """Samples of Hugging Face's ``generate``."""
    width = max(map(len, prompts))
    config = GenerationConfig(
        do_sample=True,
        top_k=rule.top_k,
        top_p=rule.top_p,
        temperature=rule.temperature,
        max_new_tokens=limit,
        suppress_tokens=list(rule.never),
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=BOS,
    )
    ids = torch.tensor([[BOS] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    rows = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
    return [tuple(row[: row.index(EOS) + 1] if EOS in row else row) for row in rows]


def excess(first: Counter[Any], second: Counter[Any]) -> float:
    """Chi-square statistic of two equally large samples from one law, in standard deviations above its mean.

    Outcomes seen fewer than ten times are counted as one.
    """
    common = [key for key in first | second if first[key] + second[key] >= 10]
    cells = [(first[key], second[key]) for key in common]
    cells.append((first.total() - sum(a for a, _ in cells), second.total() - sum(b for _, b in cells)))
    cells = [(a, b) for a, b in cells if a + b > 0]
    statistic = sum((a - b) ** 2 / (a + b) for a, b in cells)
    freedom = max(len(cells) - 1, 1)
    return float((statistic - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("name", ["GPT2", pytest.param("Llama", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        (PLAIN, {"temperature": 1.3}),
        (DrawingRule(5, 0.9, 1.2, (BOS,), EOS), {"temperature": 1.5}),
    ],
    ids=["plain", "cut"],
)
def test_law_is_that_of_generate(name: str, rule: DrawingRule, wrong: dict[str, Any]) -> None:
    """Whole texts of up to four tokens, after prompts of unequal length; a sampler with another law is found out."""
    model, limit, number = make_model(name), 4, 1500
    model.get_output_embeddings().weight.data *= 0.5 if name == "GPT2" else 3.0  # texts vary, but not evenly
    prompts = [[3], [5, 2, 8], [4, 4, 7, 6, 2]]
    torch.manual_seed(0)
    expected = reference(model, prompts * number, rule, limit)

    def total_excess(tried: DrawingRule) -> float:
        torch.manual_seed(1)
        written = decode(model, [Request(p, limit) for p in prompts] * number, tried, max_rows=900)
        return sum(excess(Counter(map(tuple, written[i::3])), Counter(expected[i::3])) for i in range(3)) / 3**0.5

    assert total_excess(rule) < 3.5
    assert total_excess(DrawingRule(**{**vars(rule), **wrong})) > 8


@pytest.mark.parametrize("size", [9, 1000, 4099])
@pytest.mark.parametrize("top_k", [0, 1, 5, 50])
@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_candidates_are_those_of_the_warpers(size: int, top_k: int, top_p: float) -> None:
    generator = torch.Generator().manual_seed(size)
    exact = torch.randn(6, size, generator=generator) * 3
    for scores in (exact, (exact * 2).round() / 2 if top_p == 1 else exact):  # the second has many ties
        wanted = scores
        warpers: list[Callable[..., Tensor]] = []
        warpers += [TopKLogitsWarper(top_k)] if top_k else []
        warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        for warper in warpers:
            wanted = warper(None, wanted)
        kept, ids = candidates(scores, top_k, top_p)
        assert torch.equal(torch.full_like(scores, -torch.inf).scatter(1, ids, kept), wanted)


def test_draws_follow_the_scores() -> None:
    scores = torch.tensor([[-torch.inf, 0.0, 1.0, -1.0, -torch.inf]])
    torch.manual_seed(0)
    counts = torch.bincount(draw(scores.expand(20_000, -1)).flatten(), minlength=5).double()
    expected = 20_000 * scores[0].double().softmax(0)
    seen = expected > 0
    assert counts[~seen].sum() == 0
    assert ((counts - expected)[seen] ** 2 / expected[seen]).sum() < 13.8  # 0.999 quantile, 2 degrees of freedom


def test_autocast_is_followed() -> None:
    model = make_model("GPT2")
    requests = requests_of_unequal_length(10, 6)
    decoder = decoding.DecodingBatch(model, requests, PLAIN, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        written = decoder.write()
    assert all(written)
    assert {buffer.dtype for buffer in decoder.cache.buffers()} == {torch.bfloat16}
