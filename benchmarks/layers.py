"""Time of a step of models whose layers have no formula, against ordinary training and other ways.

    python -m benchmarks.layers

A small CNN (two Conv2d, GroupNorm, a Linear head; 28 × 28 pixels) and a TransformerEncoderLayer (width 64, 32
positions), 64 rows, without dropout. A step is forward, backward and clipping, without an optimiser; each way takes
turns with ordinary training in one process.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from benchmarks._harness import compare, keep_allocated_memory, table
from doppel.privacy.clipping import PerSampleClipper

Step = Callable[[], None]


def cnn() -> nn.Module:
    """Convolutions and a head."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.GroupNorm(4, 16),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def encoder() -> nn.Module:
    """One layer of a transformer."""
    return nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "CNN": (cnn, (1, 28, 28)),
    "TransformerEncoderLayer": (encoder, (32, 64)),
}


def ordinary(model: nn.Module, x: Tensor) -> Step:
    """Forward and backward."""

    def step() -> None:
        model.zero_grad()
        _losses(model(x)).sum().backward()

    return step


def doppel(model: nn.Module, x: Tensor) -> Step:
    """Clipped, by torch.func where there is no formula."""
    clipper = PerSampleClipper(model, 1.0)

    def step() -> None:
        model.zero_grad()
        with clipper.capture(len(x)):
            _losses(model(x)).sum().backward()
        clipper.accumulate()

    return step


def naive(model: nn.Module, x: Tensor) -> Step:
    """A backward pass for each row."""
    parameters = list(model.parameters())

    def step() -> None:
        total = [torch.zeros_like(p) for p in parameters]
        for row in x.split(1):
            grads = torch.autograd.grad(_losses(model(row)).sum(), parameters)
            norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt().item()
            for sum_, grad in zip(total, grads, strict=True):
                sum_.add_(grad, alpha=min(1.0, 1.0 / norm))

    return step


def opacus(model: nn.Module, x: Tensor) -> Step:
    """Opacus's hooks, which keep every row's gradient."""
    from opacus import GradSampleModule

    wrapped = GradSampleModule(model, loss_reduction="sum")

    def step() -> None:
        wrapped.zero_grad()
        _losses(wrapped(x)).sum().backward()
        grads = [p.grad_sample for p in wrapped.parameters()]
        norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads]).norm(dim=0)
        factors = (1.0 / norms).clamp(max=1.0)
        for parameter, grad in zip(wrapped.parameters(), grads, strict=True):
            parameter.grad = torch.einsum("n,n...->...", factors, grad)

    return step


WAYS: dict[str, Callable[[nn.Module, Tensor], Step]] = {"Doppel": doppel, "Opacus hooks": opacus, "naive loop": naive}


def _losses(output: Tensor) -> Tensor:
    return output.square().flatten(1).mean(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="rows of a micro-batch")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each way")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = []
    for name, (make, shape) in SUBJECTS.items():
        for way, make_step in WAYS.items():
            torch.manual_seed(0)
            x = torch.randn(options.rows, *shape)
            try:
                judged = make_step(make(), x)
                judged()
            except (ImportError, TypeError) as error:  # Opacus is not installed, or has no rule for torch's attention
                lines.append([f"{name}: {way}", "–", "–", f"does not run ({error})"])
                continue
            found = compare(judged, ordinary(make(), x), device="cpu", repeats=options.repeats, seconds=20.0)
            low, high = found.spread
            ratio = f"**{found.ratio:.2f}** [{low:.2f}, {high:.2f}]"
            lines.append([f"{name}: {way}", f"{1e3 * found.median:.1f}", f"{1e3 * found.baseline_median:.1f}", ratio])
    print(table(("training", "ms a step", "ordinary, ms", "time ratio"), lines))


if __name__ == "__main__":
    keep_allocated_memory()
    main()
