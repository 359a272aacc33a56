"""Sampling inside a grammar: every finished text is a tree, and follows the model's law cut to the grammar."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
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

from commands.run.experiment.experiment import load, shipped
from commands.run_folder.places import ROOT
from datamodules.text_format import Linearisation, TextFormat
from doppel.decoding.decode import DrawingRule, Request, decode, longest_decodable
from doppel.decoding.sampling import SamplingArguments, sample_texts
from doppel.decoding.tree_constraint import TreeConstraint, tree_constraint
from doppel.errors import UserError
from doppel.grammar import generate
from doppel.lispress import is_valid, read, write
from doppel.lispress.api_table import read_api_names
from doppel.lispress.lark import lark_grammar
from doppel.lispress.tree_names import names_in_trees
from tests.lispress.lispress_trees import corpus_trees, programs

CONSTANTS = ROOT / "configs" / "grammar" / "smcalflow_constants.csv"
TABLE = """\
Yield,Unit,output: Dynamic
FindManager,Recipient,recipient: Recipient
refer,CalflowIntension[Dynamic],constraint: Constraint[Dynamic]
Event.subject,String,obj: Event
?=,Constraint[String],reference: String
MDY,Date,day: Number,month: Month,year: Number
Today,Date
"""
LIMIT = 40
#: What :data:`PIECES` are put together to, at most.
NAMES = ["(f)", '(f e :a 1 (f f) (^(T) f :e e) L "e" (do 1 2) e e e e e e e)', "(L ^T e #(e 1))", "(e #(L 1))"]
PIECES = [*'()() ^#"\\:x01-.eL', "let ", "lambda ", "(let (", "x0 ", "x1", "(f ", ")) ", "^(T) ", ":a ", "\\(", "é"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("api") / "api.csv"
    path.write_text(TABLE)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: str) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(tiny_model)


def make_text_format(tokenizer: PreTrainedTokenizerFast, layout: Linearisation = "spaced") -> TextFormat:
    return TextFormat(tokenizer, None, "parse", 96, layout)


def make_model(text_format: TextFormat, kind: str = "gpt2", sharpness: float = 4.0) -> PreTrainedModel:
    """Random weights; the logits are far apart, so that the model insists on its nonsense."""
    torch.manual_seed(5)
    special = {
        "bos_token_id": text_format.bos_id,
        "eos_token_id": text_format.eos_id,
        "pad_token_id": text_format.pad_id,
    }
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=len(text_format.tokenizer), n_positions=96, n_embd=16, n_layer=2, n_head=2, **special
        )
        model: PreTrainedModel = GPT2LMHeadModel(config)
        model.transformer.ln_f.weight.data *= sharpness
        return model.eval()
    config = MistralConfig(
        vocab_size=len(text_format.tokenizer),
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


def constraint_of(text_format: TextFormat, grammar: str | list[str]) -> TreeConstraint:
    constraint = tree_constraint(text_format, grammar)
    assert constraint is not None
    return constraint


def constraint_to(text_format: TextFormat, trees: Sequence[str]) -> TreeConstraint:
    grammar = lark_grammar(names_in_trees(trees), text_format.linearisation == "spaced")
    return TreeConstraint(grammar, text_format.tokenizer, text_format.eos_id)


def accepts(text_format: TextFormat, tree: str, grammar: str | list[str] | TreeConstraint) -> bool:
    state = (grammar if isinstance(grammar, TreeConstraint) else constraint_of(text_format, grammar)).start()
    ids = text_format.tokenize([text_format.linearise(tree, "parse")])[0]
    return bool(state.try_consume_tokens(ids) == len(ids) and state.is_accepting())


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.sampled_from(["raw", "spaced"]))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_passes_is_well_formed(tokenizer: PreTrainedTokenizerFast, text: str, layout: Linearisation) -> None:
    tree, text_format = f"(f {text})", make_text_format(tokenizer, layout)
    assert is_valid(tree) or not accepts(text_format, tree, constraint_to(text_format, NAMES))


@pytest.mark.slow
@given(programs.map(write), st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_well_formed_call_passes_and_damaged_ones_do_not(
    tokenizer: PreTrainedTokenizerFast, text: str, data: st.DataObject
) -> None:
    assume("(List)" not in text)  # among names, a type without arguments has no brackets
    tree = re.sub(r"\bdo\b", "go", f"(Yield {text})")  # `do` is the notation's, without arguments by name
    for layout in ("raw", "spaced"):
        text_format = make_text_format(tokenizer, layout)
        assert accepts(text_format, tree, constraint_to(text_format, [tree]))
    place = data.draw(st.integers(0, len(tree) - 1))
    damaged = tree[:place] + data.draw(st.sampled_from(["", "(", ")", " ", '"', "x9 "])) + tree[place + 1 :]
    text_format = make_text_format(tokenizer, "raw")
    assert is_valid(damaged) or not accepts(text_format, damaged, constraint_to(text_format, [tree]))


def test_trees_of_the_embedded_grammar_and_of_the_corpus_pass_under_the_public_tables(
    tokenizer: PreTrainedTokenizerFast, data_folder: Path
) -> None:
    """Nearly all: no name was taken from the corpus."""
    trees = [*(turn.parse for turn in generate(200, 3, 1.0)), *corpus_trees("smcalflow", fields=("lispress",))[::8]]
    tables = [str(data_folder / "smcalflow" / "api_types.csv"), str(CONSTANTS)]
    assert sum(accepts(make_text_format(tokenizer, "raw"), tree, tables) for tree in trees) >= 0.99 * len(trees)


def test_under_the_names_of_trees_these_trees_pass_and_others_do_not(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    trees = [*(turn.parse for turn in generate(300, 3, 1.0)), *corpus_trees("smcalflow", fields=("lispress",))[::8]]
    trees += ["(Find ^Date Nowhere #(Path 1) (map (lambda (^Event x0) x0)))", "(Find :of (^((Set T)) f x1))"]
    path, empty, table = (tmp_path / name for name in ("trees.jsonl", "empty.jsonl", "api.csv"))
    table.write_text("Elsewhere,T,of: T\n")
    path.write_text("".join(json.dumps({"parse": tree}) + "\n" for tree in trees if is_valid(tree)))
    text_format = make_text_format(tokenizer, "raw")
    assert all(accepts(text_format, tree, str(path)) for tree in trees if is_valid(tree))
    for tree in ("(Yield (Elsewhere 1))", "(Find Elsewhere)", "(Find :to 1)", "(Find #(Way 1))", "(Find ^Way 1)"):
        assert is_valid(tree) and not accepts(text_format, tree, str(path))
    assert accepts(text_format, "(Yield (Elsewhere 1))", [str(path), str(table)])
    empty.write_text("")
    assert tree_constraint(text_format, [str(empty)]) is None


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ('(Yield (Event.subject_? (?= "lunch")))', True),
        ('(Yield :output (Event.subject_? (?= "lunch")))', True),
        ("(let (x0 (Today)) (do (Yield x0) (Yield true) (Yield 2L)))", True),
        ("(let (x1 (Today) x0 (Yield x1)) (Yield x0))", True),
        ("(Yield (refer (^((Constraint Date)) ?= (Today))))", True),
        ("(Yield (Foo))", False),
        ("(Yield Today)", False),
        ("(Yield)", False),
        ("(Today 1)", False),
        ("(MDY 1 2 3 4)", False),
        ("(Yield :input 1)", False),
        ("(Yield x0)", False),
        ("(Yield (let (x0 1) (Yield x0)) x0)", False),
        ("(Yield (^(Foo) Today))", False),
        ("(Yield (^(Constraint) Today))", False),
        ("(Yield (^((Date Date)) Today))", False),
        ("(Yield (Today.subject_? 1))", False),
        ("(Yield  (Today))", False),
        ("(Yield (Today) )", False),
    ],
)
def test_only_names_of_the_table_pass(
    tokenizer: PreTrainedTokenizerFast, table: str, text: str, is_accepted: bool
) -> None:
    assert accepts(make_text_format(tokenizer, "raw"), text, [table]) == is_accepted


@pytest.mark.parametrize(
    ("kind", "num_beams", "layout"),
    [("gpt2", 1, "spaced"), ("gpt2", 1, "raw"), ("mistral", 1, "spaced"), ("gpt2", 3, "spaced"), ("mistral", 3, "raw")],
)
def test_all_finished_texts_are_trees(
    tokenizer: PreTrainedTokenizerFast, table: str, kind: str, num_beams: int, layout: Linearisation
) -> None:
    text_format = make_text_format(tokenizer, layout)
    model = make_model(text_format, kind, sharpness=1.0)
    assert longest_decodable(model) == (math.inf if kind == "gpt2" else 8)  # the other goes through `generate`
    prompts = [[text_format.bos_id]] * 24
    shape: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": LIMIT, "max_rows": 18}
    free = sample_texts(model, text_format, prompts, SamplingArguments(**shape), stream=[1])
    assert not any(is_valid(text) and text.startswith("(") for text, _ in free)
    texts = sample_texts(model, text_format, prompts, SamplingArguments(**shape, grammar=[table]), stream=[1])
    trees = {text for text, finished in texts if finished}
    assert trees and all(is_valid(tree) and write(read(tree)) == tree for tree in trees)
    assert all(accepts(text_format, tree, [table]) for tree in trees)
    assert all(text.startswith("(") for text, finished in texts if not finished)


def test_the_law_is_the_models_cut_to_the_grammar(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Whole texts against the product of masked and renormalised softmaxes; candidates are cut after the mask."""
    path = tmp_path / "api.csv"
    path.write_text("a,T\nbe,T\nc,T\n")
    text_format = make_text_format(tokenizer, "raw")
    constraint, model = constraint_of(text_format, [str(path)]), make_model(text_format, sharpness=2.0)
    number, limit = 3000, 9
    for top_k in (0, 2):
        law: dict[tuple[int, ...], float] = {}

        def follow(state: LLMatcher, ids: tuple[int, ...], probability: float) -> None:
            with torch.no_grad():
                logits = model(torch.tensor([[text_format.bos_id, *ids]])).logits[0, -1:].double()
            logits = logits.masked_fill(constraint.mask([state], logits), -torch.inf)[0]
            if top_k:  # noqa: B023
                logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)  # noqa: B023
            for token in logits.isfinite().nonzero().flatten().tolist():
                p = probability * float(logits.softmax(0)[token])
                if token == text_format.eos_id or len(ids) + 1 == limit:
                    law[(*ids, token)] = p  # noqa: B023
                elif p * number >= 5:  # else no text that begins so is common
                    after = state.deep_copy()
                    constraint.advance(after, token)
                    follow(after, (*ids, token), p)

        # `do` with its many arguments has the rest of the mass, in texts that are not followed to their end
        follow(constraint.start(), (), 1.0)
        rule = DrawingRule(top_k, 1.0, 1.0, (), text_format.eos_id, constraint)
        torch.manual_seed(1)
        counts = Counter(
            map(tuple, decode(model, [Request([text_format.bos_id], limit)] * number, rule, max_rows=1000))
        )
        common = [ids for ids in law if law[ids] * number >= 5]
        pairs = [(counts[ids], law[ids]) for ids in common]
        pairs.append((number - sum(n for n, _ in pairs), max(1e-9, 1 - sum(p for _, p in pairs))))
        chi_square = sum((n - number * p) ** 2 / max(number * p, 1) for n, p in pairs)
        assert len(pairs) > 3 and chi_square < len(pairs) + 5 * (2 * len(pairs)) ** 0.5


@pytest.mark.parametrize("num_more", [-3, 0, 3])
def test_a_model_may_have_fewer_or_more_columns_than_its_tokenizer_has_ids(
    tokenizer: PreTrainedTokenizerFast, table: str, num_more: int
) -> None:
    """Gemma 3's tokenizer has a token for images, without a row in a text model; others have rows for no token."""
    text_format = make_text_format(tokenizer)
    constraint, num_tokens = constraint_of(text_format, [table]), len(tokenizer)
    like = torch.zeros(2, num_tokens + num_more)
    state = constraint.start()
    forbidden, of_any = constraint.mask([state, None], like)
    whole = constraint.mask([state], torch.zeros(1, num_tokens))[0]
    assert 0 < (~whole).sum() < num_tokens - 3
    assert torch.equal(forbidden[:num_tokens], whole[: len(forbidden)]) and forbidden[num_tokens:].all()
    assert not of_any[:num_tokens].any() and of_any[num_tokens:].all()


def test_misuse_is_named(tokenizer: PreTrainedTokenizerFast, table: str) -> None:
    utterances = TextFormat(tokenizer, None, "utterance", 96)
    model = make_model(utterances)
    with pytest.raises(UserError, match="sampling.grammar"):
        sample_texts(model, utterances, [[0]], SamplingArguments(max_new_tokens=9, grammar=table))
    words = Tokenizer(models.WordLevel({"<eos>": 0, "(": 1}, unk_token="<eos>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    other = TextFormat(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>"), None, "parse", 96)
    with pytest.raises(UserError, match="byte-level"):
        sample_texts(make_model(other), other, [[0]], SamplingArguments(max_new_tokens=9, grammar=table))
    with pytest.raises(UserError, match=r"\.missing"):
        sample_texts(
            model, make_text_format(tokenizer), [[0]], SamplingArguments(max_new_tokens=9, grammar=table + ".missing")
        )


def test_the_shipped_tables_hold_what_trees_are_made_of(data_folder: Path) -> None:
    experiment = load(shipped("smcalflow-best-small"))
    tables = experiment.stages["parse_tree"]["sampling"]["grammar"]
    assert {"Yield", "Event.subject_?", "Friday"} <= read_api_names([ROOT / table for table in tables]).functions
