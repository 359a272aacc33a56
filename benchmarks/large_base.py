"""A private LoRA step on a frozen base of 1 B and more: what it holds beside what is planned, its pace, a checkpoint.

    python -m benchmarks.large_base --sizes llama-3.2-1b qwen2.5-7b --layers 2          # on a CPU, at true widths
    python -m benchmarks.large_base --device cuda --sizes llama-3.2-1b llama-3.1-8b

The weights are fresh, and held in bfloat16, or their linear layers in four bits (nf4) where bitsandbytes is installed.
A logical batch is ``--units`` rows of 64 tokens, in micro-batches that the planner chose for the memory that is free,
or of ``--tokens``. *Bytes of a frozen parameter* are those of all tensors after a step but for trained weights, their
gradients and the optimiser's means, over the number of frozen weights; of linear layers, without what embeddings, head
and norms take, over theirs: these are what nf4 packs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks._harness import Report, freed_memory, result_file, table
from benchmarks._memory_meter import live_bytes, peak_bytes
from benchmarks._subject import MAX_GRAD_NORM, NOISE_MULTIPLIER, SIZES
from doppel.files import sha256_of
from doppel.gradients import GradientReducer
from doppel.models.adapters import LoraArguments, add_adapters
from doppel.models.footprint import LONG, Micro, budget, footprint
from doppel.models.frozen_base import FrozenBase
from doppel.models.memory import free_bytes
from doppel.models.quantized import pack, packable
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.head import HeadLoss
from doppel.privacy.noise import GaussianNoise
from doppel.privacy.private_step import noisy_mean

#: How the base is held, and the package that it takes.
WAYS = {"bfloat16": None, "nf4": "bitsandbytes"}
COLUMNS = (
    "base, held in",
    "frozen weights, M",
    "bytes of one",
    "… of linear layers",
    "trained, M",
    "micro-batch",
    "planned peak, GB",
    "measured, GB",
    "ratio",
    "tokens/s",
    "checkpoint, MB",
    "s",
)


def fresh(size: str, device: str, rank: int, layers: int | None) -> PreTrainedModel:
    """A model with adapters on weights that nobody trained, frozen in bfloat16.

    Args:
        size: Key of ``benchmarks._subject.SIZES``.
        device: ``cpu`` or ``cuda``.
        rank: Of the adapters.
        layers: Layers of the model, in place of its own; None: its own.
    """
    fields = dict(SIZES[size])
    if layers is not None:
        fields["num_hidden_layers"] = layers
    config = AutoConfig.for_model(fields.pop("model_type", "gpt2"), **fields, use_cache=False)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
    add_adapters(model, LoraArguments(rank, 2.0 * rank))
    FrozenBase(size).freeze(model)
    return model


class Training:
    """Private LoRA.

    Args:
        model: Of :func:`fresh`; it is packed here, where it is to be.
        way: Key of :data:`WAYS`.
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, model: PreTrainedModel, way: str, device: str) -> None:
        if way == "nf4":
            pack(model)
        self.device = torch.device(device)
        self.model = model.to(self.device)  # type: ignore[arg-type]
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.loss = HeadLoss(model.get_output_embeddings(), 16.0)
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-4, weight_decay=0.0)
        self.clipper = PerSampleClipper(model, MAX_GRAD_NORM)
        self.noise = GaussianNoise(NOISE_MULTIPLIER, MAX_GRAD_NORM)
        self.reducer = GradientReducer(self.trained)
        self.num_steps = 0

    def step(self, rows: Tensor, num_rows: int) -> None:
        """One optimiser step on rows [B, 65], so many at a time."""
        self.reducer.zero()
        for ids in rows.split(num_rows):
            with self.clipper.capture(len(ids)):
                with torch.autocast(self.device.type, torch.bfloat16):
                    states = self.model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
                    losses = self.loss(states, ids[:, 1:])
                del states
                losses.sum().backward()
            del losses
            self.clipper.accumulate()
        noisy_mean(self.trained, self.noise, len(rows), self.num_steps, self.reducer)
        self.num_steps += 1
        self.optimizer.step()

    def checkpoint(self) -> tuple[int, float]:
        """Bytes of what is trained and of the means, and seconds to write and hash them."""
        with tempfile.TemporaryDirectory() as folder:
            begin, path = time.monotonic(), Path(folder) / "last.ckpt"
            names = {id(p): name for name, p in self.model.named_parameters()}
            state = {names[id(p)]: p.detach() for p in self.trained}
            torch.save({"state_dict": state, "optimizer_states": [self.optimizer.state_dict()]}, path)
            sha256_of(path)
            return path.stat().st_size, time.monotonic() - begin


def alive(device: torch.device) -> int:
    """Bytes of tensors that are alive."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    return live_bytes()


def measure(size: str, way: str, device: torch.device, options: argparse.Namespace) -> list[str]:
    """Cells of a row of the table, but for the first."""
    others = alive(device)
    model = fresh(size, "cpu" if way == "nf4" else device.type, options.rank, options.layers)
    loss, is_packed = HeadLoss(model.get_output_embeddings(), 16.0), way == "nf4"
    wanted = Micro(options.tokens or LONG, None, torch.bfloat16, device.type, 8 * 1024, is_packed=is_packed)
    if options.tokens is None:
        held = 0 if is_packed else sum(p.nbytes for p in model.parameters())  # which is still on the CPU
        wanted = budget(model, wanted, (free_bytes(device) or 0) + held, loss)
    wanted = replace(wanted, max_units=wanted.units(LONG))  # of rows of 64 tokens, and of no others
    planned = footprint(model, wanted, loss)
    assert planned is not None
    num_frozen, linear = planned.num_weights - planned.num_trained, sum(m.weight.numel() for m in packable(model))
    training = Training(model, way, device.type)
    num_rows = wanted.units(LONG)
    rows = torch.randint(model.config.vocab_size, (max(options.units, num_rows), LONG + 1), device=device)
    few = rows[:num_rows]
    training.step(few, num_rows)
    copies = 2 * planned.num_trained  # of LoRA weights, in half precision
    held = alive(device) - others - 4 * planned.trained - copies - rows.nbytes
    of_linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    of_linear -= {id(training.loss.head.weight)}
    other = sum(p.nbytes for p in model.parameters() if not p.requires_grad and id(p) not in of_linear)
    peak = peak_bytes(lambda: training.step(few, num_rows), device.type) - others
    begin, num_steps = time.monotonic(), 0
    while not num_steps or time.monotonic() - begin < options.seconds:
        training.step(rows, num_rows)
        if device.type == "cuda":
            torch.cuda.synchronize()
        num_steps += 1
    pace = num_steps * len(rows) * LONG / (time.monotonic() - begin)
    num_bytes, taken = training.checkpoint()
    cells = [f"{num_frozen / 1e6:,.1f}", f"{held / num_frozen:.3f}", f"{(held - other) / linear:.3f}"]
    cells += [f"{planned.num_trained / 1e6:.2f}", f"{num_rows} × {LONG}", f"{planned.peak / 1e9:.3f}"]
    cells += [
        f"{peak / 1e9:.3f}",
        f"{planned.peak / peak:.3f}",
        f"{pace:,.0f}",
        f"{num_bytes / 1e6:.1f}",
        f"{taken:.2f}",
    ]
    return cells


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every base and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=sorted(SIZES), default=["llama-3.2-1b", "llama-3.1-8b"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    there = [way for way, package in WAYS.items() if package is None or find_spec(package) is not None]
    parser.add_argument("--ways", nargs="+", choices=there, default=there, help="in which the base is held")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--layers", type=int, help="of the model, in place of its own")
    parser.add_argument("--units", type=int, default=2048, help="of a logical batch")
    parser.add_argument("--tokens", type=int, help="of a micro-batch, in place of what the planner chooses")
    parser.add_argument("--seconds", type=float, default=10.0, help="of steps that are timed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    path = options.out or result_file("large-base", options.device)
    layers = "" if options.layers is None else f", {options.layers} layers"
    report = Report("A private step on a frozen base", options.device, path, False, ["LoRA, bf16 autocast, AdamW"])
    lines = []
    for size, way in product(options.sizes, options.ways):
        with freed_memory(options.device):
            cells = measure(size, way, torch.device(options.device), options)
            lines.append([f"{size}{layers}, LoRA {options.rank}, {way}", *cells])
            print(" | ".join(lines[-1]), flush=True)
    report.add(table(COLUMNS, lines))


if __name__ == "__main__":
    main()
