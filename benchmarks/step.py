"""A whole training step of a large model, now and as another commit has it, in turns.

    python -m benchmarks.step BASE --public FILE [--before COMMIT] [--device cuda] [--batch-size 512] [--turns 3]

BASE is the folder of a base model, or one of ``benchmarks._subject.SIZES``, untrained. FILE holds public texts (a table
with a column ``utterance``). Each way of training is a process of its own, at rest while another one takes its step:
the private step, the ordinary one, and with ``--before`` both as they are in that commit. A step is Lightning's own:
batch, forward, backward, clipping, noise, AdamW, ledger. Times are CPU seconds, so that other work on the machine
counts less; on a GPU seconds, there also of steps without CUDA graphs (*eager*), and the peak is that of the GPU's
tensors.

*GFLOP/s* are the operations that a step cannot do without over its CPU seconds: for each token, without padding, 4 for
each frozen weight of a block (forward, gradient of the input), 6 for each trained one, and 4 for each weight of the
head where there is a label. Norms, attention and padding count for nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
#: Keys of a worker's line, in seconds, GFLOP, and GB of resident memory at most so far.
_SECONDS, _WORK, _PEAK = "seconds", "gflop", "peak_gb"
#: End of the name of a way that takes no CUDA graphs.
_EAGER = ", eager"
#: Steps before those that count, in which graphs are recorded.
_WARM_UP = {"cpu": 1, "cuda": 6}


# ------------------------------------------------------------------------------------------------ a way of training
def train(args: argparse.Namespace) -> None:
    """Take a step for each line of the input, and write what it took; runs in the code of either commit."""
    from lightning.pytorch import Trainer, seed_everything
    from lightning.pytorch.callbacks import Callback

    from callbacks.differential_privacy import DifferentialPrivacy
    from datamodules.dialogue_data_module import DialogueDataModule
    from doppel.models.adapters import LoraArguments
    from doppel.privacy.spec import PrivacyArguments
    from lightning_modules.causal_lm import UtteranceLM

    try:
        from doppel.allocator import keep_freed_memory
    except ModuleNotFoundError:  # a commit that had none
        pass
    else:
        keep_freed_memory()
    seed_everything(1)
    adapters = LoraArguments(rank=args.rank, alpha=2.0 * args.rank)
    eager = {"cuda_graphs": "off"} if args.way.endswith(_EAGER) else {}
    is_private = args.way.startswith("private")
    init = "pretrained" if any(Path(args.base).glob("*.safetensors*")) else "random"
    model = UtteranceLM(base_model=args.base, init=init, lora=adapters, max_length=128, **eager)
    work = _work_of(model)

    class Turns(Callback):
        """Waits for its turn, and tells what the step took; comes last, so that the wait is in no time."""

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if not sys.stdin.readline():
                os._exit(0)
            self.start = _now(args.device)

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seconds, peak = _now(args.device) - self.start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            if args.device == "cuda":
                peak = torch.cuda.max_memory_allocated() / 2**30
            line = {_SECONDS: seconds, _WORK: work(batch) / 1e9, _PEAK: peak}
            sys.stdout.write(f"step {json.dumps(line)}\n")
            sys.stdout.flush()

    with tempfile.TemporaryDirectory() as folder:
        privacy = PrivacyArguments(8.0, max_grad_norm=2.7, accountant="rdp", ledger_path=f"{folder}/ledger.jsonl")
        data = DialogueDataModule(
            args.public,
            unit="utterance",
            batch_size=args.batch_size,
            sampling="poisson" if is_private else "shuffle",
            max_tokens_per_micro_batch=args.tokens,
        )
        Trainer(
            accelerator="gpu" if args.device == "cuda" else "cpu",
            devices=1,
            precision=args.precision,
            max_epochs=50,
            callbacks=[*([DifferentialPrivacy(privacy)] if is_private else []), Turns()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            use_distributed_sampler=False,
        ).fit(model, data)


def _now(device: str) -> float:
    """Seconds of the process on a CPU; on a GPU of the clock, when all is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _work_of(model: Any) -> Any:
    """Operations of a logical batch."""
    head = model.model.get_output_embeddings().weight
    blocks = {id(p): p for p in model.model.base_model.parameters() if p.dim() == 2 and p is not head}
    blocks.pop(id(model.model.get_input_embeddings().weight), None)
    per_token = sum((6 if p.requires_grad else 4) * p.numel() for p in blocks.values())

    def work(batch: Any) -> float:
        labelled = sum(int((part.labels[:, 1:] >= 0).sum()) for part in batch.micro_batches)
        return labelled * (per_token + 4 * head.numel())  # of p(x) the last token alone has no label

    return work


@contextmanager
def architecture(size: str) -> Iterator[str]:
    """A folder with a configuration and the shipped base's tokenizer, and no weights."""
    from transformers import AutoConfig, AutoTokenizer

    from benchmarks._subject import SIZES

    fields = dict(SIZES[size])
    with tempfile.TemporaryDirectory() as folder:
        AutoConfig.for_model(fields.pop("model_type", "gpt2"), **fields).save_pretrained(folder)
        AutoTokenizer.from_pretrained(ROOT / "models" / "base").save_pretrained(folder)
        yield folder


# ------------------------------------------------------------------------------------------------ turns
class Worker:
    """A process that takes steps one at a time.

    Args:
        way: ``private`` or ``ordinary``.
        code: Root of the code that it runs.
        args: The benchmark's own.
    """

    def __init__(self, way: str, code: Path, args: argparse.Namespace) -> None:
        words = [sys.executable, str(Path(__file__).resolve()), args.base, "--way", way, "--public", args.public]
        for name in ("batch_size", "tokens", "rank", "precision", "device"):
            words += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
        environment = {**os.environ, "PYTHONPATH": str(code), "PYTHONWARNINGS": "ignore"}
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            words,
            cwd=code,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def step(self) -> dict[str, float]:
        """Let it take one."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("step "):
                found: dict[str, float] = json.loads(line.removeprefix("step "))
                return found
        self._said.seek(0)
        raise RuntimeError(f"a way of training ended: {self._said.read().splitlines()[-1]}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._said.close()


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the code of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def measure(args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """What each way's steps took, in turns after those that warm up."""
    ways = ["private", "ordinary"]
    ways += [way + _EAGER for way in ways] if args.device == "cuda" else []
    with ExitStack() as stack:
        places = {"": ROOT}
        if args.before is not None:
            places[f" at {args.before}"] = stack.enter_context(checked_out(args.before))
        workers = {f"{way}{name}": Worker(way, code, args) for name, code in places.items() for way in ways}
        for worker in workers.values():
            stack.callback(worker.close)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
        for turn in range(args.turns + _WARM_UP[args.device]):
            for name, worker in workers.items():
                line = worker.step()
                found[name] += [line] if turn >= _WARM_UP[args.device] else []
    return found


def report(found: dict[str, list[dict[str, float]]]) -> str:
    """A row for each way: CPU seconds, GFLOP/s, the peak, and its time for the same work over the private step's."""
    from benchmarks._harness import table

    def pace(lines: list[dict[str, float]]) -> float:
        return statistics.median(line[_WORK] / line[_SECONDS] for line in lines)

    now = pace(found["private"])
    rows = [
        [
            name,
            f"{statistics.median(line[_SECONDS] for line in lines):.3g}",
            f"{pace(lines):.3g}",
            f"{lines[-1][_PEAK]:.1f}",
            f"{now / pace(lines):.2f}",
        ]
        for name, lines in found.items()
    ]
    return table(["step", "s", "GFLOP/s", "peak GB", "private step's GFLOP/s over these"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="folder of the base model, or one of benchmarks._subject.SIZES")
    parser.add_argument("--public", required=True, help="public texts: a table with a column utterance")
    parser.add_argument("--before", help="a commit of this repository to compare with")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4096, help="of a micro-batch, at most")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="file to write, default: none")
    args = parser.parse_args(argv)
    if args.way is not None:
        train(args)
        return
    from benchmarks._harness import Report
    from benchmarks._subject import SIZES

    notes = [f"{args.precision}, LoRA of rank {args.rank}, B = {args.batch_size}, {args.tokens} tokens a micro-batch"]
    text = Report("A training step", args.device, args.out, append=False, notes=notes)
    args.public = str(Path(args.public).resolve())
    with architecture(args.base) if args.base in SIZES else nullcontext(Path(args.base).resolve()) as base:
        args.base = str(base)
        text.add(report(measure(args)))


if __name__ == "__main__":
    main()
