"""Our constraint on parse trees against llguidance with a grammar that is generated from the same tables.

    python -m benchmarks.tree_grammar --model models/base --num-samples 500 --seeds 1 2 3 [--tables API.csv …]

Both constrain the same decoder, so what differs is the law of the trees and the time of a mask. llguidance
(`pip install llguidance`) reads a context-free grammar: variables are numbered by depth, up to three, and nothing makes
a tree end within the limit. Prints a line for each: the well-formed share, χ² of the function types against held-out
trees of the embedded grammar, mean tokens, samples a second.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llguidance.hf
import llguidance.torch
import torch
from llguidance import LLExecutor, LLMatcher

from datamodules.codec import Codec
from datamodules.tables import read_turns
from doppel.lispress import is_valid
from doppel.lispress.api_table import read_api_names
from doppel.lispress.names import ApiNames
from doppel.metrics.type_counts import chi_square_distance, count_function_types
from lightning_modules.backbone.base_models import load_model, load_tokenizer
from lightning_modules.decoding.grammar import tree_constraint
from lightning_modules.decoding.slots import DrawingRule, Request, decode

_MOST_BOUND = 3
_NOTATION = r"""
start: " " call_0
STRING: /" ([^"\\\x00-\x1f]|\\[^\x00-\x1f])* "/
NUMBER: /-?[0-9]+(L|(\.[0-9]+)?([eE][+-]?[0-9]+)?)/
"""
_ANY_NAMES = r"""
NAME: /[^\s()"\\#^:][^\s()"\\]*/ & ~/-?[0-9]+(L|(\.[0-9]+)?([eE][+-]?[0-9]+)?)/ & ~/x[0-9]+/ & ~/let|lambda/
KEYWORD: /:[^\s()"\\]+/
type: NAME | "(" NAME (" " type)* ")"
"""


def lark(names: ApiNames | None) -> Iterator[str]:
    """The grammar of spaced trees, rule by rule."""
    yield _NOTATION
    if names is None:
        yield _ANY_NAMES
        calls = [("any", "NAME", "*", "KEYWORD")]
    else:
        yield from _types(names)
        calls = list(_calls(names))
        for number, name, _, keywords in calls:
            yield f"KEYWORD_{number}: {keywords}" if keywords else ""
            yield f"NAME_{number}: {name}"
        calls = [(n, f"NAME_{n}", times, f"KEYWORD_{n}" if words else "") for n, _, times, words in calls]
    yield 'types: type (" " type)*'
    for bound in range(_MOST_BOUND + 1):
        variables = "".join(f' | "x{i}"' for i in range(bound))
        symbol = "NAME" if names is None else '"true" | "false"'
        yield f'value_{bound}: call_{bound} | STRING | NUMBER | {symbol}{variables} | "^" type " " value_{bound}'
        forms = [f"of_{number}_{bound}" for number, *_ in calls]
        for number, name, times, keywords in calls:
            argument = f'" " value_{bound}' + (f' | " " {keywords} " " value_{bound}' if keywords else "")
            arguments = "" if times == "{0,0}" else f"({argument}){times}"
            yield f'of_{number}_{bound}: ({name} | "^(" types ") " {name}) {arguments}'
        if bound < _MOST_BOUND:
            forms.append(f'"let (x{bound} " value_{bound} ") " value_{bound + 1}')
            typed = f'("^" type " ")? "x{bound}"'
            forms.append(f'"lambda (" {typed} ") " value_{bound + 1}')
        yield f'call_{bound}: "(" ({" | ".join(forms)}) ")"'


def _calls(names: ApiNames) -> Iterator[tuple[str, str, str, str]]:
    """Number, names, how many arguments and keywords of the functions with one signature."""
    alike: dict[Any, list[str]] = {}
    for name, signature in names._signatures.items():
        alike.setdefault(signature, []).append(name)
    for number, (signature, functions) in enumerate(alike.items()):
        most = "" if signature.max_args is None else signature.max_args
        yield str(number), _one_of(functions), f"{{{signature.min_args},{most}}}", _one_of(signature.keywords)


def _types(names: ApiNames) -> Iterator[str]:
    plain = [name for name, signature in names._types.items() if not signature.min_args]
    forms = [f'"({name}" (" " type){{{s.min_args}}} ")"' for name, s in names._types.items() if s.min_args]
    yield f"TYPE: {_one_of(plain)}"
    yield f"type: {' | '.join(['TYPE', *forms])}"


def _one_of(words: Any) -> str:
    return "/" + "|".join(re.escape(word).replace("/", r"\/") for word in sorted(words)) + "/" if words else ""


class Guidance:
    """llguidance in place of a :class:`~lightning_modules.decoding.constraint.TreeConstraint`."""

    def __init__(self, codec: Codec, grammar: str) -> None:
        tokenizer = llguidance.hf.from_tokenizer(codec.tokenizer, eos_token=codec.eos_id)
        self.start = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
        if self.start.is_error():
            raise SystemExit(self.start.get_error())
        self._executor = LLExecutor(1)
        self._num_tokens = len(codec.tokenizer)

    def check_limit(self, limit: int) -> None:
        """Nothing is promised."""

    def advance(self, state: LLMatcher, token: int) -> LLMatcher:
        """The matcher after one more token; that of the start is copied."""
        after = state.deep_copy() if state is self.start else state
        after.consume_token(token)
        return after

    def mask(self, states: Sequence[LLMatcher], num_left: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """Which scores are to be cut off."""
        bits = llguidance.torch.allocate_token_bitmask(len(states), self._num_tokens)
        if self.start in states:
            states = [state.deep_copy() if state is self.start else state for state in states]
        llguidance.torch.fill_next_token_bitmask_par(
            self._executor, list(zip(states, range(len(states)), strict=True)), bits
        )
        allowed = (bits[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1
        forbidden = torch.ones(like.shape, dtype=torch.bool)
        forbidden[:, : self._num_tokens] = allowed.flatten(1)[:, : self._num_tokens] == 0
        return forbidden


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/base", help="base model, which writes trees by itself")
    parser.add_argument("--checkpoint", type=Path, help="last.ckpt of a tree model's fit")
    parser.add_argument("--tables", nargs="*", default=[], help="tables of an API; none: any names")
    parser.add_argument("--num-samples", type=int, default=500)
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.model).eval()
    if args.checkpoint is not None:
        state = torch.load(args.checkpoint, map_location="cpu", weights_only=True)["state_dict"]
        model.load_state_dict({k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")})
    codec = Codec(load_tokenizer(args.model), None, "parse", 256, "spaced", True)
    turns = read_turns("embedded:test?num=1000&seed=9&skew=1.5", "utterance")
    truth = count_function_types((turn.parse for turn in turns), "node_labels")
    grammar = "\n".join(lark(read_api_names(args.tables) if args.tables else None))
    ways: dict[str, Any] = {
        "none": lambda: None,
        "ours": lambda: tree_constraint(codec, args.tables or "lispress"),
        "llguidance": lambda: Guidance(codec, grammar),
    }
    for name, make in ways.items():
        start = time.perf_counter()
        constraint = make()
        rule = DrawingRule(50, 1.0, 1.0, tuple({codec.pad_id, codec.bos_id} - {codec.eos_id}), codec.eos_id, constraint)
        print(f"{name}: made in {time.perf_counter() - start:.2f} s", flush=True)
        for seed in args.seeds:
            torch.manual_seed(seed)
            start = time.perf_counter()
            request = Request(codec.encode_prompt(None), args.max_new_tokens)
            written = decode(model, [request] * args.num_samples, rule, 128)
            seconds = time.perf_counter() - start
            texts = [codec.decode(ids) if ids[-1] == codec.eos_id else "" for ids in written]
            valid = [text for text in texts if text and is_valid(text)]
            distance = chi_square_distance(count_function_types(valid, "node_labels"), truth)
            print(
                f"| {name} | {seed} | well-formed {len(valid) / len(texts):.4f}"
                f" | cut off {texts.count('') / len(texts):.4f}"
                f" | chi2 {distance:.4f} | {statistics.fmean(map(len, written)):.1f} tokens"
                f" | {len(texts) / seconds:.2f} samples/s |",
                flush=True,
            )


if __name__ == "__main__":
    main()
