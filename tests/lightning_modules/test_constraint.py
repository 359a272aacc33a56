"""Sampling inside a grammar: every text is a tree, ends in time, and follows the model's law cut to the grammar."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from commands.pipeline.experiment import load, shipped
from commands.pipeline.yaml_files import ROOT
from datamodules.codec import Codec
from doppel.errors import UserError
from doppel.lispress import is_valid, read, write
from doppel.lispress.api_table import read_api_names
from doppel.lispress.incremental import Layout, Recognizer
from lightning_modules.decoding.byte_trie import token_bytes
from lightning_modules.decoding.constraint import TreeConstraint, TreeState
from lightning_modules.decoding.slots import DrawingRule, Request, decode, is_supported
from lightning_modules.sampling import SamplingArguments, sample_texts

TABLE = """\
Yield,Unit,output: Dynamic
Execute,Dynamic,intension: CalflowIntension[Dynamic]
Event.subject,String,obj: Event
?=,Constraint[String],reference: String
MDY,Date,day: Number,month: Month
Today,Date
"""
LIMIT = 30


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("api") / "api.csv"
    path.write_text(TABLE)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: str) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(tiny_model)


def make_codec(tokenizer: PreTrainedTokenizerFast, layout: Layout = "spaced") -> Codec:
    assert layout != "any"
    return Codec(tokenizer, None, "parse", 96, layout)


def make_model(codec: Codec, kind: str = "gpt2", sharpness: float = 4.0) -> PreTrainedModel:
    """Random weights; the logits are far apart, so that the model insists on its nonsense."""
    torch.manual_seed(5)
    special = {"bos_token_id": codec.bos_id, "eos_token_id": codec.eos_id, "pad_token_id": codec.pad_id}
    if kind == "gpt2":
        config = GPT2Config(vocab_size=len(codec.tokenizer), n_positions=96, n_embd=16, n_layer=2, n_head=2, **special)
        model: PreTrainedModel = GPT2LMHeadModel(config)
        model.transformer.ln_f.weight.data *= sharpness
        return model.eval()
    config = MistralConfig(
        vocab_size=len(codec.tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=96,
        sliding_window=8,
        initializer_range=0.5,
        **special,
    )
    return MistralForCausalLM(config).eval()


@pytest.mark.parametrize(
    ("kind", "num_beams", "layout"),
    [("gpt2", 1, "spaced"), ("gpt2", 1, "raw"), ("mistral", 1, "spaced"), ("gpt2", 3, "spaced"), ("mistral", 3, "raw")],
)
def test_all_texts_are_trees_and_end_in_time(
    tokenizer: PreTrainedTokenizerFast, table: str, kind: str, num_beams: int, layout: Layout
) -> None:
    codec = make_codec(tokenizer, layout)
    model = make_model(codec, kind)
    assert is_supported(model) == (kind == "gpt2")  # the other goes through `generate`
    prompts = [[codec.bos_id]] * 12
    shape = {"num_beams": num_beams, "max_new_tokens": LIMIT, "max_rows": 18}
    free = sample_texts(model, codec, prompts, SamplingArguments(**shape), stream=[1])
    assert not any(is_valid(text) and text.startswith("(") for text, _ in free)
    for grammar in ("lispress", [table]):
        texts = sample_texts(model, codec, prompts, SamplingArguments(**shape, grammar=grammar), stream=[1])
        assert all(finished and is_valid(text) and text.startswith("(") for text, finished in texts)
        assert all(write(read(text)) == text for text, _ in texts)
        assert all(len(tokenizer(" " + text)["input_ids"]) < 4 * LIMIT for text, _ in texts)
        assert len(set(texts)) > 3
        if grammar != "lispress":
            recognizer = Recognizer(read_api_names([table]), "raw", only_calls=True)
            for text, _ in texts:
                state = recognizer.read(text)
                assert state is not None and recognizer.accepts(state)
                bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
                assert set(re.findall(r"[A-Z][a-z]+", bare)) <= set(re.findall(r"[A-Z][a-z]+", TABLE))


@pytest.mark.parametrize("limit", [3, 4, 6, 9])
def test_the_tightest_limits_hold(tokenizer: PreTrainedTokenizerFast, limit: int, tmp_path) -> None:
    """`" (a)"` and the end of text take at most five tokens."""
    codec = make_codec(tokenizer)
    arguments = SamplingArguments(max_new_tokens=limit, grammar="lispress")
    if limit < 5:
        with pytest.raises(UserError, match="max_new_tokens.* 5"):
            sample_texts(make_model(codec), codec, [[codec.bos_id]], arguments)
        return
    texts = sample_texts(make_model(codec), codec, [[codec.bos_id]] * 40, arguments, stream=[2])
    assert all(finished and is_valid(text) for text, finished in texts)


def toy() -> tuple[TreeConstraint, list[bytes]]:
    """Trees of two functions, one of which needs an argument; several tokens spell the same text."""
    path = "f,T,a: T\ng,T\n"
    spellings = [b"", b"", *(bytes([c]) for c in sorted(set(b' ()"0^truefalsletambdx-.eLog123456789T:')))]
    spellings += [b" (", b"))", b"(g)", b" (f", b" 1"]
    return TreeConstraint(Recognizer(names_of(path), "raw", only_calls=True), spellings, eos_id=1), spellings


def names_of(table: str):
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(table)
        file.flush()
        return read_api_names([file.name])


def reference_mask(constraint: TreeConstraint, spellings: list[bytes], text: bytes, num_left: int) -> np.ndarray:
    """By definition: the token keeps the text in the grammar, and its shortest end fits."""
    recognizer = constraint.recognizer
    allowed = np.zeros(len(spellings), dtype=bool)
    before = recognizer.read(text.decode(), recognizer.start(after_blank=True))
    assert before is not None
    for token, spelling in enumerate(spellings):
        state = before if token == constraint.eos_id else recognizer.read(spelling.decode(), before)
        if token == constraint.eos_id:
            allowed[token] = state is not None and recognizer.accepts(state)
        elif spelling:
            allowed[token] = state is not None and recognizer.shortest_end(state) <= num_left - 2
    return allowed


def walks(constraint: TreeConstraint, spellings: list[bytes], number: int) -> Iterator[tuple[TreeState, bytes, int]]:
    generator = np.random.default_rng(0)
    for _ in range(number):
        state, text, num_left = constraint.start, b"", int(generator.integers(constraint.shortest, 30))
        while True:
            yield state, text, num_left
            token = int(generator.choice(np.flatnonzero(constraint.allowed(state, num_left))))
            if token == constraint.eos_id:
                break
            after = constraint.advance(state, token)
            assert after is not None
            state, text, num_left = after, text + spellings[token], num_left - 1


def test_masks_are_those_of_the_definition() -> None:
    constraint, spellings = toy()
    seen = 0
    for state, text, num_left in walks(constraint, spellings, 60):
        expected = reference_mask(constraint, spellings, text, num_left)
        assert expected.any()
        np.testing.assert_array_equal(constraint.allowed(state, num_left), expected)
        seen += 1
    assert seen > 300


def test_masks_of_a_real_tokenizer_are_those_of_the_definition(tokenizer: PreTrainedTokenizerFast, table: str) -> None:
    """Tokens of parts of characters apart: they are allowed inside strings alone."""
    spellings = token_bytes(tokenizer)
    whole = np.array([spelling.isascii() for spelling in spellings])
    for names, layout in itertools.product((None, read_api_names([table])), ("raw", "spaced")):
        constraint = TreeConstraint(Recognizer(names, layout, only_calls=True), spellings, tokenizer.eos_token_id)
        for state, text, num_left in walks(constraint, spellings, 4):
            allowed = constraint.allowed(state, num_left)
            if state.partial == (0, 0, 0):
                simple = text.decode()
                expected = reference_mask(constraint, [s if s.isascii() else b"" for s in spellings], text, num_left)
                np.testing.assert_array_equal(allowed[whole], expected[whole], err_msg=simple)
            assert state.state.is_in_string or not allowed[~whole].any()


def test_strings_hold_whole_characters(tokenizer: PreTrainedTokenizerFast) -> None:
    spellings = token_bytes(tokenizer)
    number_of = {spelling: i for i, spelling in enumerate(spellings) if len(spelling) == 1}
    constraint = TreeConstraint(Recognizer(layout="raw"), spellings, tokenizer.eos_token_id)

    def after(text: bytes) -> TreeState:
        state: TreeState | None = constraint.start
        for byte in text:
            state = constraint.advance(state, number_of[bytes([byte])])
        assert state is not None
        return state

    for character in "é€𝄞":
        encoded = character.encode()
        for end in range(1, len(encoded)):
            state = after(b' (f "' + encoded[:end])
            allowed = np.flatnonzero(constraint.allowed(state, 30))
            firsts = {spellings[token][0] for token in allowed}
            assert encoded[end] in firsts and firsts <= set(range(0x80, 0xC0))
            # Bytes, quote, bracket, end of text: no token more, none less.
            assert constraint.allowed(state, len(encoded) - end + 3).any()
            assert not constraint.allowed(state, len(encoded) - end + 2).any()
        assert is_valid((b'(f "' + encoded + b'")').decode())
        assert constraint.advance(after(b" (f "), number_of[encoded[:1]]) is None


def test_the_law_is_the_models_cut_to_the_grammar() -> None:
    """Whole texts against the product of masked and renormalised softmaxes; candidates are cut after the mask."""
    constraint, spellings = toy()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(spellings), n_positions=16, n_embd=8, n_layer=1, n_head=1)
    model = GPT2LMHeadModel(config).eval()
    model.transformer.ln_f.weight.data *= 20
    limit, number = constraint.shortest + 1, 3000
    for top_k in (0, 3):
        law: dict[tuple[int, ...], float] = {}

        def follow(state: TreeState, ids: tuple[int, ...], probability: float) -> None:
            with torch.no_grad():
                logits = model(torch.tensor([[1, 0, *ids]])).logits[0, -1].double()
            allowed = torch.from_numpy(constraint.allowed(state, limit - len(ids)))
            logits = logits.masked_fill(~allowed, -torch.inf)
            if top_k:  # noqa: B023
                logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)  # noqa: B023
            for token, p in enumerate(logits.softmax(0).tolist()):
                if token == constraint.eos_id and p:
                    law[(*ids, token)] = probability * p  # noqa: B023
                elif p:
                    after = constraint.advance(state, token)
                    assert after is not None
                    follow(after, (*ids, token), probability * p)

        follow(constraint.start, (), 1.0)
        assert sum(law.values()) == pytest.approx(1) and len(law) > 5
        rule = DrawingRule(top_k, 1.0, 1.0, (0,), constraint.eos_id, constraint)
        torch.manual_seed(1)
        counts = Counter(map(tuple, decode(model, [Request([1, 0], limit)] * number, rule, max_rows=1000)))
        assert set(counts) <= set(law)
        common = [ids for ids in law if law[ids] * number >= 5]
        pairs = [(counts[ids], law[ids]) for ids in common]
        pairs.append((number - sum(n for n, _ in pairs), max(1e-9, 1 - sum(p for _, p in pairs))))
        chi_square = sum((n - number * p) ** 2 / max(number * p, 1) for n, p in pairs)
        assert chi_square < len(pairs) + 5 * (2 * len(pairs)) ** 0.5


def test_misuse_is_named(tokenizer: PreTrainedTokenizerFast, table: str) -> None:
    utterances = Codec(tokenizer, None, "utterance", 96)
    model = make_model(utterances)
    with pytest.raises(UserError, match="sampling.grammar"):
        sample_texts(model, utterances, [[0]], SamplingArguments(max_new_tokens=9, grammar="lispress"))
    words = Tokenizer(models.WordLevel({"<eos>": 0, "(": 1}, unk_token="<eos>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    other = Codec(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>"), None, "parse", 96)
    with pytest.raises(UserError, match="byte-level BPE"):
        sample_texts(make_model(other), other, [[0]], SamplingArguments(max_new_tokens=9, grammar="lispress"))
    with pytest.raises(UserError, match="token"):
        TreeConstraint(Recognizer(), [b"", b"("], 0)
    with pytest.raises(UserError, match=r"\.missing"):
        sample_texts(
            model, make_codec(tokenizer), [[0]], SamplingArguments(max_new_tokens=9, grammar=table + ".missing")
        )


def test_the_shipped_tables_hold_what_trees_are_made_of(data_folder: Path) -> None:
    experiment = load(shipped("smcalflow-best-small"))
    tables = experiment.stages["parse_tree"]["sampling"]["grammar"]
    assert {"Yield", "Event.subject_?", "Friday"} <= read_api_names([ROOT / table for table in tables]).functions
