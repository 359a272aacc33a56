"""What a language model loses by how its texts begin: a token at place 0, and what stands between prompt and text.

    make base-135m
    DOPPEL_DATA=… python -m benchmarks.text_start

A base trains adapters on public requests, a few steps without privacy, once in each form; the table has the mean loss
of a token of held-out requests after that (``--steps 0``: before). All forms of a seed see the same rows in the same
order from the same adapters, and have a loss on the same tokens: those of the text and its end. A form names what
stands before the prompt, then what stands between prompt and text: ``-`` nothing, ``bos`` the token of that name
(``<|im_start|>`` of SmolLM2), ``document`` its ``<|endoftext|>``, ``line`` a line feed. SmolLM2's tokenizer puts
nothing at place 0; forms with a token there stand for bases whose tokenizer does.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks._harness import Report, result_file, table
from datamodules.batches.batch import MicroBatch
from datamodules.batches.cut import pad
from datamodules.reading.example import Example, Field
from datamodules.reading.examples import read_examples
from datamodules.text_format import TextFormat
from doppel.models.adapters import LoraArguments
from lightning_modules.causal_lm import CausalLM, UtteranceLM

#: What prompts a request, and the folder of its data. SMCalFlow has trees, SGD has labels (the domain of a dialogue).
TASKS: dict[str, tuple[Field | None, str]] = {
    "no prompt": (None, "smcalflow"),
    "tree": ("parse", "smcalflow"),
    "label": ("label", "sgd"),
}
FORMS = ("- bos", "- line", "bos line", "bos bos", "- document", "document line", "document document")
COLUMNS = ("prompt", "form", "steps", "seeds", "loss", "less that of the first form, by seed")
_RATE, _WARMUP = 1e-3, 6


class Row(NamedTuple):
    """Token ids of one request and its prompt, without what begins, parts and ends them."""

    prompt: list[int]
    text: list[int]


def rows_of(task: str, part: str, text_format: TextFormat, options: argparse.Namespace, seed: int) -> list[Row]:
    """Rows of the public data in random order, none longer than ``--max-length``."""
    source, name = TASKS[task]
    (file,) = sorted(Path(options.data, name).glob(f"{part}.*.zip"))
    turns = read_examples(str(file), "utterance", needs=(source,) if source else ())
    random.Random(seed).shuffle(turns)
    turns = turns[: 4 * options.batch_size * (options.steps + 10)]
    asked = TextFormat(text_format.tokenizer, source, "utterance", options.max_length, "spaced", True, None)
    prompts = asked.tokenize([_prompt(asked, turn, source) for turn in turns])
    texts = asked.tokenize([turn.utterance for turn in turns])
    rows = [Row(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    return [row for row in rows if len(row.prompt) + len(row.text) + 3 <= options.max_length]


def _prompt(text_format: TextFormat, turn: Example, source: Field | None) -> str:
    return text_format.prompt_text(None if source is None else str(getattr(turn, source))).removeprefix(" ")


def ids_of(form: str, text_format: TextFormat) -> list[list[int]]:
    """What stands before the prompt and between prompt and text."""
    tokenizer = text_format.tokenizer
    ids = {
        "-": [],
        "bos": [text_format.bos_id],
        "document": [tokenizer.convert_tokens_to_ids("<|endoftext|>")],
        "line": tokenizer("\n", add_special_tokens=False)["input_ids"],
    }
    return [ids[part] for part in form.split()]


def batch_of(rows: Sequence[Row], form: str, text_format: TextFormat) -> MicroBatch:
    """Rows in a form, padded; the text and its end have labels."""
    before, between = ids_of(form, text_format)
    starts = [[*before, *row.prompt, *between] for row in rows]
    ids = [[*start, *row.text, text_format.eos_id] for start, row in zip(starts, rows, strict=True)]
    return MicroBatch(*pad(ids, list(map(len, starts)), text_format.pad_id), num_units=len(rows))


def adapted(options: argparse.Namespace, seed: int) -> CausalLM:
    """The base with adapters, frozen weights in bfloat16."""
    torch.manual_seed(seed)
    lora = LoraArguments(rank=16, alpha=32.0, target_modules=options.target_modules)
    model = UtteranceLM(base_model=options.model, loss_divisor=1.0, lora=lora)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.bfloat16()
    return model.train()


def batches(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """So many rows at a time, in order."""
    return (rows[start : start + size] for start in range(0, len(rows), size))


@torch.no_grad()
def loss_of(model: CausalLM, rows: Sequence[Row], form: str) -> float:
    """Mean loss of a token in nats."""
    model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        parts = [model.losses(batch_of(part, form, model.text_format)).sum().item() for part in batches(rows, 16)]
    model.train()
    return sum(parts) / sum(len(row.text) + 1 for row in rows)


def trained(form: str, rows: Sequence[Row], held_out: Sequence[Row], options: argparse.Namespace, seed: int) -> float:
    """Loss on the held-out rows after the training."""
    model = adapted(options, seed)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(weights, _RATE, (0.9, 0.98), weight_decay=0.0)
    for step, part in zip(range(options.steps), batches(rows, options.batch_size), strict=False):
        optimizer.param_groups[0]["lr"] = _RATE * min((step + 1) / _WARMUP, 1 - step / options.steps)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.losses(batch_of(part, form, model.text_format)).sum()
        optimizer.zero_grad()
        (loss / sum(len(row.text) + 1 for row in part)).backward()
        optimizer.step()
    return loss_of(model, held_out, form)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in every form, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("DOPPEL_DATA"), help="folder of the data sets (DOPPEL_DATA)")
    parser.add_argument("--model", default="models/smollm2-135m", help="base model")
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS[:3]))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a step")
    parser.add_argument("--max-length", type=int, default=48, help="longest row in tokens; longer ones are left out")
    parser.add_argument("--held-out", type=int, default=96, help="rows that the loss is measured on")
    parser.add_argument("--target-modules", nargs="+", help="layers with adapters; default: all linear ones")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--out", type=Path, help="file to write; default: benchmarks/results/text_start-cpu.md")
    parser.add_argument("--append", action="store_true", help="keep what the file holds")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    notes = ("LoRA of rank 16, base in bfloat16, AdamW, rate 1e-3 with linear warm-up and decay",)
    report = Report("How a text begins", "cpu", options.out or result_file("text_start", "cpu"), options.append, notes)
    text_format = UtteranceLM(base_model=options.model).text_format
    for task in options.tasks:
        found: dict[str, list[float]] = {form: [] for form in options.forms}
        held_out = rows_of(task, "valid", text_format, options, seed=0)[: options.held_out]
        for seed in options.seeds:
            rows = rows_of(task, "train", text_format, options, seed)
            for form, losses in found.items():
                losses.append(trained(form, rows, held_out, options, seed))
                print(f"{task}, seed {seed}, {form}: {losses[-1]:.3f}", flush=True)
        lines = []
        for form, losses in found.items():
            less = [own - first for own, first in zip(losses, found[options.forms[0]], strict=True)]
            counts = [str(options.steps), str(len(losses))]
            told = ", ".join(f"{value:+.3f}" for value in less)
            lines.append([task, form, *counts, f"{statistics.mean(losses):.3f}", told])
        report.add(table(COLUMNS, lines))


if __name__ == "__main__":
    main()
