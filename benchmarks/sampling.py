"""Samples per second of our decoder and of Hugging Face's plain ``generate`` at its best batch size.

    python -m benchmarks.sampling [--model models/base | --config gpt2] [--device cpu] [--threads 2]
        [--num-samples 256] [--repeats 3] [--sizes 16 32 64 128] [--max-rows 128] [--lora 16] [--bf16] [--out FILE]

Both draw from the same distribution of the same model in the same process, in turns. ``generate`` gets its prompts
sorted by length and is timed at every batch size of ``--sizes``; the fastest one counts. Prompts are none (an
unconditional model, which starts at its separator) and parse trees of the embedded grammar. ``--config`` builds a GPT-2
of that size with random weights; such weights hardly ever end a text, so every text then has ``--max-new-tokens`` ids,
and only the shipped base model shows texts of natural, varied length. ``--bf16`` times our decoder a second time, in
bfloat16 with copies of the weights, as an experiment with ``trainer.precision: auto`` samples.

Prints a Markdown table; ``--out`` appends it to a file as well.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from datamodules.reading.examples import read_examples
from datamodules.text_format import TextFormat
from doppel.decoding.decode import DrawingRule, Request, decode
from doppel.models.adapters import LoraArguments, add_adapters
from doppel.models.frozen_layers import freeze_layers
from doppel.models.load import load_model, load_tokenizer

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
}
#: Keys of our decoder, in float32 and bfloat16, among the batch sizes of ``generate``.
OURS, HALF = 0, -1


@dataclass
class Timing:
    """Rates of one way to sample, over the repeats.

    Attributes:
        samples: Samples per second.
        tokens: Ids written per second, the end of text included.
    """

    samples: list[float]
    tokens: list[float]


def generate(model: PreTrainedModel, requests: list[Request], rule: DrawingRule, size: int, pad: int) -> list[int]:
    """Lengths of the texts that ``generate`` writes, ``size`` prompts at a time, longest first."""
    config = GenerationConfig(
        do_sample=True,
        top_k=rule.top_k,
        top_p=rule.top_p,
        temperature=rule.temperature,
        suppress_tokens=list(rule.never) or None,
        eos_token_id=rule.eos_id,
        pad_token_id=pad,
    )
    lengths: list[int] = []
    ordered = sorted(requests, key=lambda r: -len(r.prompt))
    for start in range(0, len(ordered), size):
        part = ordered[start : start + size]
        width = max(len(r.prompt) for r in part)
        ids = torch.tensor([[pad] * (width - len(r.prompt)) + r.prompt for r in part], device=model.device)
        mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in part], device=model.device)
        config.max_new_tokens = min(r.limit for r in part)
        function: Callable[..., Any] = model.generate  # type: ignore[assignment]
        rows = function(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
        lengths += [row.index(rule.eos_id) + 1 if rule.eos_id in row else len(row) for row in rows]
    return lengths


def measure(run: Callable[[], list[int]], timing: Timing, device: torch.device) -> None:
    """Time one run, which returns the lengths of its texts."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    lengths = run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    timing.samples.append(len(lengths) / seconds)
    timing.tokens.append(sum(lengths) / seconds)


def processor(device: torch.device) -> str:
    """Kind of the machine that computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {len(names)} cores, {torch.get_num_threads()} threads"


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def ratio(of: Timing, to: Timing) -> str:
    """Median and range of the ratios of samples a second, turn by turn."""
    ratios = [a / b for a, b in zip(of.samples, to.samples, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def prompts_of(kind: str, text_format: TextFormat, number: int) -> list[list[int]]:
    """Prompts without text, or parse trees of the embedded grammar."""
    if kind == "none":
        return [text_format.encode_prompt(None)] * number
    turns = read_examples(f"embedded:test?num={number}&seed=7", "utterance")
    return text_format.encode_prompts([turn.parse or "" for turn in turns])


def rows(args: argparse.Namespace, model: PreTrainedModel, tokenizer: Any) -> Iterator[str]:
    """Table rows, one for each kind of prompt."""
    device, narrow = model.device, copy.deepcopy(model)
    for parameter in narrow.parameters():
        if not parameter.requires_grad:  # as a frozen base is held under bfloat16
            parameter.data = parameter.data.bfloat16()
    positions = model.config.max_position_embeddings
    for kind in args.prompts:
        text_format = TextFormat(tokenizer, None if kind == "none" else "parse", "utterance", positions, "spaced")
        requests = [
            Request(prompt, min(args.max_new_tokens, positions - len(prompt)))
            for prompt in prompts_of(kind, text_format, args.num_samples)
            if len(prompt) < positions
        ]
        never = tuple(sorted({text_format.pad_id, text_format.bos_id} - {text_format.eos_id}))
        rule = DrawingRule(50, 1.0, 1.0, never, text_format.eos_id)

        def ours(rule: DrawingRule = rule, requests: list[Request] = requests, held: Any = model) -> list[int]:
            return [len(ids) for ids in decode(held, requests, rule, args.max_rows)]

        def half(ours: Callable[..., list[int]] = ours) -> list[int]:
            with torch.autocast(device.type, torch.bfloat16):
                return ours(held=narrow)

        runs = {OURS: ours} | ({HALF: half} if args.bf16 else {})
        for size in args.sizes:
            runs[size] = lambda rule=rule, requests=requests, size=size, pad=text_format.pad_id: generate(  # type: ignore[misc]
                model, requests, rule, size, pad
            )
        timings = {size: Timing([], []) for size in runs}
        for repeat in range(args.repeats + 1):
            torch.manual_seed(repeat)
            for size, run in runs.items():
                measure(run, timings[size] if repeat else Timing([], []), device)  # the first is warm-up
        best = max(args.sizes, key=lambda size: statistics.median(timings[size].samples))
        mine, plain = timings[OURS], timings[best]
        tokens = statistics.median(mine.tokens) / statistics.median(plain.tokens)
        length = statistics.median(mine.tokens) / statistics.median(mine.samples)
        yield (
            f"| {kind} | {len(requests)} | {length:.0f}"
            f" | {spread(plain.samples)} at {best} | {spread(mine.samples)} at {args.max_rows} rows"
            f" | {ratio(mine, plain)} | {tokens:.2f} | {ratio(timings[HALF], mine) if args.bf16 else '–'} |"
        )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/base", help="folder or hub name (default: %(default)s)")
    parser.add_argument("--config", choices=CONFIGS, help="a GPT-2 of this size with random weights instead")
    parser.add_argument("--prompts", nargs="+", choices=["none", "trees"], default=["none", "trees"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--num-samples", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each, after one that is not")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32, 64, 128], help="batch sizes of generate")
    parser.add_argument("--max-rows", type=int, default=128, help="rows of our decoder")
    parser.add_argument("--max-new-tokens", type=int, default=250)
    parser.add_argument("--lora", type=int, help="adapters of this rank on the model")
    parser.add_argument("--bf16", action="store_true", help="time our decoder in bfloat16 too")
    parser.add_argument("--out", type=Path, help="append the table to this file too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = load_tokenizer(args.model)
    if args.config is None:
        model, name = load_model(args.model), args.model
    else:
        special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
        model = GPT2LMHeadModel(GPT2Config(**CONFIGS[args.config], **special))
        name = f"{args.config}, random weights"
    if args.lora is not None:
        add_adapters(model, LoraArguments(rank=args.lora, alpha=2.0 * args.lora))
        freeze_layers(model)
        name += f" with adapters of rank {args.lora}"
    model.generation_config = GenerationConfig()
    model = model.eval().to(args.device)
    lines = [
        f"{name} on {processor(model.device)}; torch {torch.__version__}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}; {datetime.date.today()}. Median (range) of "
        f"{args.repeats} interleaved runs; at most {args.max_new_tokens} tokens a text, top_k 50.",
        "",
        "| prompts | texts | tokens a text | generate, samples/s at its best batch | ours, samples/s "
        "| ratio of samples/s | of tokens/s | bfloat16 to float32, ours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for row in rows(args, model, tokenizer):
        lines.append(row)
        print(row, flush=True)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("a", encoding="utf-8") as file:
            file.write("\n".join([*lines, "", ""]))


if __name__ == "__main__":
    main()
