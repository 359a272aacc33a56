"""The trainings and samplings of one system, without what needs no GPU: metrics, page and report.

    python -m benchmarks.gpu.synthesize EXPERIMENT RUN --system NAME [--set NAME=VALUE …]

The same steps as ``python cli.py run``, with the same ledger; ``benchmarks/gpu/score.sh`` judges the samples elsewhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from commands.run.execution.execute import run_here
from commands.run.execution.settle import begin, make_folder, write
from commands.run.execution.slurm import load_site
from commands.run.experiment.experiment import load, read_values
from commands.run_folder.steps import Step

#: Commands among the tools that samplings read from.
_NEEDED = ("public-trees", "resample")


def makes_samples(step: Step) -> bool:
    """Whether the samples need a step."""
    return step.kind in ("fit", "predict") or step.command in _NEEDED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; give the command again to go on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--system", required=True)
    parser.add_argument("--set", nargs="*", default=[], help="fields of the experiment, as of `run`")
    options = parser.parse_args(arguments)
    changes = read_values(options.set) | {"systems": [options.system]}
    work = begin(load(options.experiment, changes), options.run.resolve(), load_site(None, {}))
    work = replace(work, steps=[step for step in work.steps if makes_samples(step)])
    make_folder(work.run)
    write(work, overwrite=True)
    return run_here(work.run, work.steps)


if __name__ == "__main__":
    raise SystemExit(main())
