"""What guards against guessed randomness and floating point cost: the noise of a step, and room in clipping norms.

    python -m benchmarks.privacy_price configs/experiments/quickstart.yaml --public 'embedded:any?num=200' \
        [--num-units 200] [--out TABLE.md]

*Noise*: CPU time of the noise of one step, for the parameters of each private training of an experiment, drawn from the
keyed stream in float64, and as it was before, by NumPy's PCG64 in float32. The two take turns in one process.

*Norms*: how much less a unit contributes because the norm that it is clipped by has room for rounding. The units must
be public.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._harness import Report, table
from commands.privacy.gradient_norms import build, micro_batches
from commands.run.experiment.experiment import load
from commands.run.steps.recipes import steps_of
from doppel.privacy.clipping import PerSampleClipper
from doppel.privacy.clipping.rule import Capture
from doppel.privacy.noise import GaussianNoise


def as_before(params: Sequence[nn.Parameter], std: float) -> None:
    """Noise of PCG64, drawn and added in float32."""
    generator = np.random.Generator(np.random.PCG64(1))
    for parameter in params:
        assert parameter.grad is not None
        draws = torch.from_numpy(generator.standard_normal(parameter.numel(), dtype=np.float32))
        parameter.grad.add_(draws.view(parameter.shape), alpha=std)


def milliseconds(ways: Sequence[Callable[[], None]], repeats: int) -> list[float]:
    """Median CPU time of each way; they take turns."""
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats + 1):  # the first one warms up
        for way, times in zip(ways, found, strict=True):
            start = time.process_time()
            way()
            times.append(1e3 * (time.process_time() - start))
    return [statistics.median(times[1:]) for times in found]


class _Recorder(PerSampleClipper):
    """Keeps the norms, as computed and with room."""

    def __init__(self, model: nn.Module, max_grad_norm: float) -> None:
        super().__init__(model, max_grad_norm)
        self.seen: list[Tensor] = []

    def _norms(self, capture: Capture) -> tuple[Tensor, Tensor] | None:
        norms = super()._norms(capture)
        self.seen += [] if norms is None else [torch.stack(norms).double()]
        return norms


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--public", required=True, help="public turns like the private ones: a file, or embedded:…")
    parser.add_argument("--num-units", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file to write as well")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    noise_rows, norm_rows = [], []
    for stage in steps_of(load(options.experiment, {}), Path("RUN")):
        if not (stage.config or {}).get("privacy"):
            continue
        assert stage.config is not None
        model = build(stage.config["model"])
        clipper = _Recorder(model, 1.0)
        for batch in micro_batches(model, stage.config["data"]["init_args"], options.public, options.num_units):
            with clipper.capture(batch.num_units, batch.rows_per_unit):
                (model.losses(batch) / batch.rows_per_unit).sum().backward()
            clipper.accumulate()
        norms, safe = torch.cat(clipper.seen, 1)
        lost = 1 - (norms / safe)[norms > 0]
        quantiles = [lost.mean(), lost.median(), lost.quantile(0.95), lost.max()]
        norm_rows.append([stage.name, str(len(lost)), *(f"{100 * float(share):.3f} %" for share in quantiles)])
        params = [p for p in model.parameters() if p.requires_grad]
        for parameter in params:
            parameter.grad = torch.zeros_like(parameter)
        number = sum(p.numel() for p in params)
        ways = [partial(as_before, params, 1.0), partial(GaussianNoise(1.0, 1.0).add_, torch.zeros(number), 0, 0)]
        before, now = milliseconds(ways, options.repeats)
        cells = [f"{number:,}", f"{before:.1f}", f"{now:.1f}", f"{1e6 * now / number:.1f}", f"{now / before:.2f}"]
        noise_rows.append([stage.name, *cells])
    report = Report("The price of privacy", "cpu", options.out, append=False, notes=["one thread; CPU time, medians"])
    columns = ["training", "parameters", "PCG64, float32, ms", "now, ms", "now, ns a number", "ratio"]
    report.add(f"Noise of one step:\n\n{table(columns, noise_rows)}")
    columns = ["training", "units", "mean loss of norm", "median", "95 %", "largest"]
    report.add(f"Room for rounding in clipping norms:\n\n{table(columns, norm_rows)}")


if __name__ == "__main__":
    main()
