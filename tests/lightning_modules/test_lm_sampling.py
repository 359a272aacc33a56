"""Sampling follows the model's own distribution, whatever the padding, the rank or the restart."""

from __future__ import annotations

import logging
import warnings
from collections import Counter

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from datamodules.text_format import TextFormat
from doppel.decoding.decode import longest_decodable
from doppel.decoding.sampling import SamplingArguments, sample_texts
from doppel.errors import UserError

WORDS = [f"w{i}" for i in range(8)]
NUM_POSITIONS = 12
PLAIN = {"top_k": 0, "top_p": 1.0}


def make_text_format(*special: str) -> TextFormat:
    """Words w0 … w7 after the special tokens: beginning, end and padding, or one for all three."""
    vocabulary = {token: i for i, token in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=special[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    names = ["bos_token", "eos_token", "pad_token"] if len(special) == 3 else ["eos_token"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **dict(zip(names, special, strict=True)))
    return TextFormat(fast, source="label", target="utterance", max_length=NUM_POSITIONS)


@pytest.fixture(params=[("<bos>", "<eos>", "<pad>"), ("<end>",)], ids=["three", "one"])
def text_format(request: pytest.FixtureRequest) -> TextFormat:
    return make_text_format(*request.param)


def make_model(text_format: TextFormat, sharpness: float = 1.0) -> GPT2LMHeadModel:
    torch.manual_seed(3)
    config = GPT2Config(
        vocab_size=len(text_format.tokenizer),
        n_positions=NUM_POSITIONS,
        n_embd=8,
        n_layer=2,
        n_head=2,
        initializer_range=0.5,
        bos_token_id=text_format.bos_id,
        eos_token_id=text_format.eos_id,
    )
    model = GPT2LMHeadModel(config).eval()
    model.transformer.ln_f.weight.data *= sharpness
    return model


def prompt(text_format: TextFormat, *words: int) -> list[int]:
    return text_format.encode_prompt(" ".join(WORDS[i] for i in words) if words else None)


def first_token_law(model: GPT2LMHeadModel, text_format: TextFormat, ids: list[int]) -> dict[str, float]:
    """What the first written word may be ("" is the end of text), and its probability."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    names = text_format.tokenizer.convert_ids_to_tokens(range(len(text_format.tokenizer)))
    kept = [i for i, name in enumerate(names) if name in WORDS or i == text_format.eos_id]
    law = logits[kept].softmax(0)
    return {"" if i == text_format.eos_id else names[i]: float(p) for i, p in zip(kept, law, strict=True)}


def chi_square(counts: Counter[str], law: dict[str, float]) -> float:
    total = sum(counts.values())
    return sum((counts[word] - total * p) ** 2 / (total * p) for word, p in law.items())


def test_one_beam_draws_from_the_softmax_of_the_model(text_format: TextFormat) -> None:
    model = make_model(text_format)
    arguments = SamplingArguments(**PLAIN, max_new_tokens=1)
    prompts = [prompt(text_format), prompt(text_format, 1, 5, 2), prompt(text_format, 7, 7, 7, 0, 3)]
    texts = sample_texts(model, text_format, prompts * 3000, arguments, stream=[1])
    for i, ids in enumerate(prompts):
        counts = Counter(t.text for t in texts[i::3])
        law = first_token_law(model, text_format, ids)
        assert set(counts) <= set(law)
        assert chi_square(counts, law) < 26.1  # 0.999 quantile with 8 degrees of freedom
    other = first_token_law(model, text_format, prompts[0])
    assert chi_square(Counter(t.text for t in texts[1::3]), other) > 26.1  # the test can tell laws apart


@pytest.mark.parametrize("num_beams", [1, 3])
def test_padding_changes_nothing(text_format: TextFormat, num_beams: int) -> None:
    model = make_model(text_format)
    model.lm_head.register_forward_hook(
        lambda module, inputs, output: output.index_fill(-1, torch.tensor([text_format.eos_id]), -1e4)
    )
    cold = SamplingArguments(num_beams=num_beams, temperature=1e-3, max_new_tokens=5)
    prompts = [
        prompt(text_format),
        prompt(text_format, 1),
        prompt(text_format, 1, 5, 2, 4, 6),
        prompt(text_format, 3, 3),
    ]
    together = sample_texts(model, text_format, prompts, cold, stream=[0])
    alone = [sample_texts(model, text_format, [ids], cold, stream=[0])[0] for ids in prompts]
    assert together == alone
    assert len({t.text for t in together}) > 1  # the texts do depend on their prompts


@pytest.mark.parametrize("num_beams", [1, 5])
def test_special_tokens_are_never_sampled_and_nothing_warns(
    text_format: TextFormat, num_beams: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)  # for caplog
    model = make_model(text_format)
    never = sorted({text_format.pad_id, text_format.bos_id} - {text_format.eos_id})
    bias = torch.zeros(len(text_format.tokenizer))
    bias[never] = 100.0
    model.lm_head.register_forward_hook(lambda module, inputs, output: output + bias)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arguments = SamplingArguments(num_beams=num_beams, max_new_tokens=4)
        texts = sample_texts(model, text_format, [prompt(text_format), prompt(text_format, 1, 2)] * 20, arguments)
    for text, finished in texts:
        words = text.split()
        assert set(words) <= set(WORDS)
        assert finished == (len(words) < 4) or (finished and len(words) == 4)
    assert not caplog.records


def test_beams_write_likelier_text(text_format: TextFormat) -> None:
    model = make_model(text_format)

    def mean_log_likelihood(num_beams: int) -> float:
        arguments = SamplingArguments(**PLAIN, num_beams=num_beams, max_new_tokens=6)
        total = 0.0
        texts = sample_texts(model, text_format, [prompt(text_format)] * 200, arguments, stream=[2])
        for text, finished in texts:
            target = text_format.tokenize([text])[0] + [text_format.eos_id] * finished
            ids = torch.tensor([prompt(text_format) + target])
            with torch.no_grad():
                total -= float(model(ids, labels=ids).loss)
        return total / len(texts)

    assert mean_log_likelihood(5) > mean_log_likelihood(1) + 0.2


def test_narrow_candidate_sets_do_not_break_beams(text_format: TextFormat) -> None:
    model = make_model(text_format, sharpness=30.0)
    for cut in ({"top_k": 1}, {"top_k": 0, "top_p": 0.01}, {"top_k": 0, "temperature": 0.01}):
        texts = sample_texts(model, text_format, [prompt(text_format)] * 8, SamplingArguments(num_beams=5, **cut), [0])
        assert all(set(t.text.split()) <= set(WORDS) for t in texts)


def test_the_prompt_is_stripped_by_tokens(text_format: TextFormat) -> None:
    model = make_model(text_format)
    end_after_w3 = torch.zeros(len(text_format.tokenizer), len(text_format.tokenizer))
    w3 = text_format.tokenizer.convert_tokens_to_ids("w3")
    end_after_w3[:, w3] = 100.0
    end_after_w3[w3, w3] = -100.0
    end_after_w3[w3, text_format.eos_id] = 100.0
    seen: list[torch.Tensor] = []
    model.transformer.wte.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model.lm_head.register_forward_hook(
        lambda module, inputs, output: output + end_after_w3[seen[-1]][:, -output.shape[1] :]
    )
    # Prompts that hold the very word, or end in what would be padding, come back without it.
    texts = sample_texts(model, text_format, [prompt(text_format, 3, 3), prompt(text_format)], SamplingArguments(), [0])
    assert texts == [("w3", True), ("w3", True)]


def test_length_is_bounded_by_the_positions_of_the_model(text_format: TextFormat) -> None:
    model = make_model(text_format)
    model.lm_head.register_forward_hook(
        lambda module, inputs, output: output.index_fill(-1, torch.tensor([text_format.eos_id]), -1e4)
    )
    crowded = prompt(text_format, *[1] * (NUM_POSITIONS - 3))
    prompts = [
        prompt(text_format),
        crowded,
        prompt(text_format, *[2] * NUM_POSITIONS),
        prompt(text_format, *[2] * (NUM_POSITIONS - 1)),
    ]
    texts = sample_texts(model, text_format, prompts, SamplingArguments(max_new_tokens=6), stream=[0])
    assert [len(t.text.split()) for t in texts] == [6, 2, 0, 0]  # the crowded prompt does not cut the first
    assert not any(t.finished for t in texts)
    texts = sample_texts(model, text_format, [prompt(text_format)], SamplingArguments(num_beams=2), stream=[0])
    assert len(texts[0].text.split()) == NUM_POSITIONS - 1
    prompts = [prompt(text_format), prompt(text_format, 1, 2, 3), prompt(text_format, *[4] * 6)]
    for num_beams in (1, 2):  # without max_new_tokens, each prompt is followed by as much as there is room for
        texts = sample_texts(
            model, text_format, prompts, SamplingArguments(num_beams=num_beams, max_rows=2), stream=[0]
        )
        assert [len(t.text.split()) for t in texts] == [NUM_POSITIONS - len(p) for p in prompts]


@pytest.mark.parametrize("num_beams", [1, 2])
def test_models_with_attention_windows_are_sampled_too(text_format: TextFormat, num_beams: int) -> None:
    torch.manual_seed(3)
    config = MistralConfig(
        vocab_size=len(text_format.tokenizer),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=NUM_POSITIONS,
        sliding_window=4,
        initializer_range=0.5,
        pad_token_id=None,
    )
    model = MistralForCausalLM(config).eval()
    assert longest_decodable(model) == 4
    prompts = [prompt(text_format), prompt(text_format, 1, 2, 3), prompt(text_format, *[4] * 9)] * 5
    arguments = SamplingArguments(num_beams=num_beams, max_new_tokens=4, max_rows=4)
    texts = sample_texts(model, text_format, prompts, arguments, stream=[0])
    assert texts == sample_texts(model, text_format, prompts, arguments, stream=[0])
    for ids, (text, finished) in zip(prompts, texts, strict=True):
        assert len(text.split()) <= min(4, NUM_POSITIONS - len(ids))
        assert finished or len(text.split()) == min(4, NUM_POSITIONS - len(ids))


def test_streams_are_reproducible_and_differ(text_format: TextFormat) -> None:
    model = make_model(text_format)
    prompts = [prompt(text_format)] * 30

    def draw(stream: list[int] | None, seed: int = 0) -> list[str]:
        arguments = SamplingArguments(**PLAIN, max_new_tokens=6, seed=seed)
        return [t.text for t in sample_texts(model, text_format, prompts, arguments, stream)]

    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = draw([0, 1, 2])
    assert draw([0, 1, 2]) == first
    assert draw([0, 1]) != first  # what another batch, rank or resumed run draws
    assert draw([3, 4, 5]) != first
    assert draw([0, 1, 2], seed=1) != first
    assert torch.equal(torch.get_rng_state(), state)
    assert draw(None) != draw(None)  # the global generator moves on


def test_the_defaults_and_mode_of_the_model_are_left_alone(text_format: TextFormat) -> None:
    model = make_model(text_format).train()
    defaults = model.generation_config
    defaults.min_new_tokens = 5
    defaults.max_length = 3
    model.lm_head.register_forward_hook(
        lambda module, inputs, output: output.index_fill(-1, torch.tensor([text_format.eos_id]), 1e4)
    )
    assert sample_texts(model, text_format, [prompt(text_format)], SamplingArguments()) == [("", True)]
    assert model.generation_config is defaults and model.training


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_beams": 0},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"temperature": 0.0},
        {"max_new_tokens": 0},
        {"max_rows": 0},
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        SamplingArguments(**wrong)  # type: ignore[arg-type]
