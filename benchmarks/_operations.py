"""How many operations PyTorch dispatches for a micro-batch: what decides the pace of small models on a GPU.

Counted is what a GPU would dispatch: there, parts are larger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks._harness import table
from benchmarks._subject import MAX_GRAD_NORM, Setting, Subject
from doppel.privacy.clipping import PerSampleClipper, groups

#: (size, rank of LoRA) whose operations are counted: of rows of 64 tokens, at widths that take the rules of SmolLM2's.
COUNTED = (("llama-30", 0), ("llama-30", 16), ("gpt2-12", 0))
PARTS = ("forward", "backward", "clip")


class Operations(TorchDispatchMode):
    """Counts operations by part, views included."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, Counter[str]] = {}
        self._own: Counter[str] = Counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what is dispatched within this block."""
        self._own = self.counts[name] = Counter()
        with self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._own[func.overloadpacket._qualified_op_name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        """Of all parts."""
        return sum(count.total() for count in self.counts.values())


def operations(
    subject: Subject, losses: Callable[[Tensor], Tensor], clipper: PerSampleClipper | None = None
) -> Operations:
    """Count a micro-batch, ordinary or clipped, whose gradients are added to those that are there."""
    found = Operations()
    with patch.object(groups, "BUDGET_CPU", groups.BUDGET):
        _count(found, subject, losses, clipper)
    return found


def _count(
    found: Operations, subject: Subject, losses: Callable[[Tensor], Tensor], clipper: PerSampleClipper | None
) -> None:
    setting, ids = subject.setting, subject.micro_batches[0]
    for _ in range(2):  # the first makes gradients, and audits; small tensors are made once
        with nullcontext() if clipper is None else clipper.capture(setting.rows):
            with setting.autocast(), found.part("forward"):
                loss = losses(ids).sum()
            with found.part("backward"):
                loss.backward()
        with found.part("clip"):
            if clipper is not None:
                clipper.accumulate()


def compared(setting: Setting) -> tuple[Operations, Operations]:
    """Count an ordinary micro-batch and a private one."""
    subject = Subject(setting)
    ordinary = operations(subject, subject.losses)
    return ordinary, operations(subject, subject.losses, PerSampleClipper(subject.model, MAX_GRAD_NORM))


def operations_table(rows: int, device: str, precision: str) -> str:
    """Count the models of :data:`COUNTED`."""
    lines = []
    for size, rank in COUNTED:
        setting = Setting(size, rows, 64, device=device, precision=precision, adapters=rank)
        ordinary, private = compared(setting)
        cells = [" + ".join(f"{x.counts[part].total():,}" for part in PARTS) for x in (ordinary, private)]
        lines.append([str(setting), *cells, f"**{private.total / ordinary.total:.3f}**"])
    return table(("training", "ordinary: " + " + ".join(PARTS), "Doppel", "ratio"), lines)
