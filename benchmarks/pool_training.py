"""What a parser gains from a sample of a synthetic pool: exact match, i.i.d. and compositional, by way of choosing.

    python cli.py schema2qa-pool --num 100000 --out runs/pool.tsv
    python -m benchmarks.pool_training runs/pool.tsv --data $DOPPEL_DATA/schema2qa --runs runs/pool_training \
        [--methods uniform uat cmaxent hybrid] [--sizes 2000 5000 10000] [--seeds 1 2 3] [--out TABLE.md]

The experiment of Oren et al. (2021, Table 9): a parser learns k rows of the pool, then the natural pairs of
``program_train.tsv``, and is judged on ``iid_dev.tsv`` and on ``program_dev.tsv``, whose templates no natural pair has
and no row of the pool may have. With k = 0 it learns the natural pairs alone.
What lies in ``--runs`` is not done again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks._curves import draw_curves
from benchmarks._harness import Report, table
from benchmarks.annotated_samples import cell, command

CONFIG = Path("configs") / "semantic_parser.yaml"
COLUMNS = ("chosen by", "k", "EM_comp", "EM_iid", "templates", "H(compounds)", "H(atoms)", "seeds")
TESTS = {"iid": "iid_dev.tsv", "comp": "program_dev.tsv"}


def exact_match(
    folder: Path, pool: Path, data: Path, method: str, k: int, seed: int, pool_epochs: int, epochs: int
) -> dict[str, float]:
    """Train and judge one parser.

    Returns:
        ``iid`` and ``comp``: shares of identical programs; ``templates``, ``compounds`` and ``atoms`` of the sample
        (entropies in nats), zero without one.

    Raises:
        SystemExit: A command failed.
    """
    metrics = folder / "metrics.json"
    if not metrics.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        start, found = [], {"templates": 0.0, "compounds": 0.0, "atoms": 0.0}
        if k:
            chosen = folder / "chosen.jsonl"
            words = ["--pool", pool, "--method", method, "--k", k, "--seed", seed, "--out", chosen]
            shown = command("sample-diverse", *words, "--held-out", data / TESTS["comp"])
            (row,) = (line.split() for line in shown.splitlines() if line.startswith("sample "))
            found = {"templates": float(row[2]), "atoms": float(row[4]), "compounds": float(row[5])}
            fit(folder / "pool", chosen, seed, pool_epochs)
            start = ["--model.init_args.init_weights", folder / "pool" / "checkpoints" / "last.ckpt"]
        fit(folder / "parser", data / "program_train.tsv", seed, epochs, *start)
        for name, file in TESTS.items():
            predicted, judged = folder / f"{name}.jsonl", folder / f"{name}.json"
            words = ["--config", CONFIG, "--config", "configs/overlays/annotate.yaml", "--run_dir", folder / name]
            words += [
                "--ckpt_path",
                folder / "parser" / "checkpoints" / "last.ckpt",
                "--data.init_args.path",
                data / file,
            ]
            command("predict", *words, "--trainer.callbacks.init_args.output_path", predicted)
            command("parser-metrics", "--predicted", predicted, "--gold", data / file, "--out", judged)
            found[name] = json.loads(judged.read_text(encoding="utf-8"))["identical_trees"]
        metrics.write_text(json.dumps(found), encoding="utf-8")
    result: dict[str, float] = json.loads(metrics.read_text(encoding="utf-8"))
    return result


def fit(run: Path, file: Path, seed: int, epochs: int, *words: object) -> None:
    """Train a parser on a file, or go on where that was stopped."""
    last = run / "checkpoints" / "last.ckpt"
    resumed = ["--ckpt_path", last] if last.is_file() else []
    command(
        *("fit", "--config", CONFIG, "--run_dir", run, "--seed_everything", seed, "--trainer.max_epochs", epochs),
        *("--trainer.precision", "auto", f"--data.init_args.train_paths=[{file}]", *resumed, *words),
        *("--data.init_args.max_tokens_per_batch", 512),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Choose, train, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder of the three files of Schema2QA")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the trainings; what is there is kept")
    parser.add_argument("--methods", nargs="+", default=["uniform", "uat", "cmaxent", "hybrid"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000, 5000, 10000], help="k; 0: without a pool")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--pool-epochs", type=int, default=3, help="passes over the sample")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the natural pairs")
    parser.add_argument("--out", type=Path, help="file to write as well")
    parser.add_argument("--figure", type=Path, help="curves to draw as well (.svg, .png)")
    options = parser.parse_args(argv)
    rows = []
    panels: dict[str, dict[str, dict[int, list[float]]]] = {"EM_comp": {}, "EM_iid": {}}
    without: dict[str, list[float]] = {}
    for k in options.sizes:
        for method in options.methods if k else ["no pool"]:
            found = []
            for seed in options.seeds:
                folder = options.runs.resolve() / f"{method.replace(' ', '-')}-{k}-{seed}"
                passes = (options.pool_epochs, options.epochs)
                found.append(
                    exact_match(folder, options.pool.resolve(), options.data.resolve(), method, k, seed, *passes)
                )
                print(folder.name, found[-1], file=sys.stderr, flush=True)
            values = {name: [each[name] for each in found] for name in found[0]}
            cells = [cell(values["comp"]), cell(values["iid"]), cell(values["templates"], 1.0)]
            cells += [cell(values["compounds"], 1.0), cell(values["atoms"], 1.0)]
            rows.append([method, str(k), *cells, str(len(found))])
            for metric, name in (("EM_comp", "comp"), ("EM_iid", "iid")):
                if k:
                    panels[metric].setdefault(method, {})[k] = values[name]
                else:
                    without[metric] = values[name]
    notes = [
        f"{options.pool_epochs} epochs of k rows of {options.pool.name}, then {options.epochs} of the natural pairs; "
        "identical programs of the two development files, in percent; entropies in nats"
    ]
    report = Report("Training on samples of a pool", "cpu", options.out, append=False, notes=notes)
    report.add(table(COLUMNS, rows))
    if options.figure:
        draw_curves(options.figure, panels, without, "rows of the pool that the parser learns first")


if __name__ == "__main__":
    main()
