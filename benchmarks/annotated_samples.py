"""How many DP samples must be annotated: accuracy of the parser against their number, for each way of choosing them.

    python -m benchmarks.annotated_samples RUN [--system two_stage] [--methods uniform uat cmaxent hybrid] \
        [--sizes 250 500 1000 2000] [--seeds 1 2 3] [--out TABLE.md]

RUN is an adaptation (docs/adaptation.md) that has ended. Of its synthetic utterances, whose trees p(y) wrote,
``sample-diverse`` chooses k by these trees, as somebody would before anything is annotated; their annotations are
those of the run. The parser learns from the public part and these k, and is judged on the test. Choosing is
post-processing of private models: it spends nothing. What lies in ``RUN/annotated_samples`` is not done again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks._curves import draw_curves
from benchmarks._harness import Report, table
from commands.pipeline.experiment import ROOT, read_yaml
from doppel.files import read_json_lines, write_json_lines

COLUMNS = ("chosen by", "k", "all turns", "with the function", "samples with it", "templates", "seeds")


def accuracy(run: Path, system: str, method: str, k: int, seed: int) -> dict[str, float]:
    """Exact match of the parser that k chosen samples teach.

    Returns:
        ``all``, ``with`` (the function), ``share`` of the chosen annotations that have it, and ``templates``.

    Raises:
        SystemExit: A command failed.
    """
    folder = run / "annotated_samples" / f"{system}-{method}-{k}-{seed}"
    metrics, missing = folder / "metrics.json", read_yaml(run / "experiment.yaml")["adaptation"]["missing"]
    chosen, annotated = folder / "chosen.jsonl", folder / "annotated.jsonl"
    if not metrics.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        samples = run / ("synthetic.jsonl" if system == "two_stage" else f"synthetic_{system}.jsonl")
        words = ["--pool", samples, "--method", method, "--k", k, "--seed", seed, "--out", chosen]
        command("sample-diverse", *words)
        tree_of = {line["utterance"]: line["parse"] for _, line in read_json_lines(run / f"annotated_{system}.jsonl")}
        texts = [line["utterance"] for _, line in read_json_lines(chosen)]
        write_json_lines(annotated, ({"utterance": text, "parse": tree_of[text]} for text in texts))
        config = read_yaml(run / "configs" / f"parser_{system}.yaml")
        config["data"]["init_args"]["train_paths"] = [str(run / "data" / "public.jsonl"), str(annotated)]
        config["seed_everything"] = seed
        (folder / "parser.yaml").write_text(yaml.safe_dump(config))
        command("fit", "--config", folder / "parser.yaml", "--run_dir", folder / "parser")
        config = read_yaml(run / "configs" / f"annotate_test_{system}.yaml")
        (writer,) = (c for c in config["trainer"]["callbacks"] if c["class_path"].endswith("SyntheticWriter"))
        writer["init_args"]["output_path"] = str(folder / "parsed.jsonl")
        config["ckpt_path"] = str(folder / "parser" / "checkpoints" / "last.ckpt")
        (folder / "annotate.yaml").write_text(yaml.safe_dump(config))
        command("predict", "--config", folder / "annotate.yaml", "--run_dir", folder / "annotate")
        words = ["--predicted", folder / "parsed.jsonl", "--gold", run / "data" / "test.jsonl"]
        command("parser-metrics", *words, "--function", missing, "--out", metrics)
    found = json.loads(metrics.read_text(encoding="utf-8"))
    trees = [line["parse"] or "" for _, line in read_json_lines(annotated)]
    return {
        "all": found["exact_match"],
        "with": found[f"exact_match@{missing}"],
        "share": sum(f"({missing.rstrip('*')}" in tree for tree in trees) / k,
        "templates": len({line["template"] for _, line in read_json_lines(chosen)}),
    }


def command(*words: object) -> str:
    """Run one of ``cli.py``'s, quietly.

    Returns:
        What it printed.

    Raises:
        SystemExit: It failed; what it said is printed.
    """
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *map(str, words)], cwd=ROOT, text=True, capture_output=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
        raise SystemExit(done.returncode)
    return done.stdout


def cell(values: Sequence[float], scale: float = 100.0) -> str:
    """Mean and unbiased standard deviation, in percent."""
    spread = f" ± {scale * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{scale * statistics.mean(values):.1f}{spread}"


def main(argv: Sequence[str] | None = None) -> None:
    """Choose, train, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--system", default="two_stage")
    parser.add_argument("--methods", nargs="+", default=["uniform", "uat", "cmaxent", "hybrid"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, help="file to write as well")
    parser.add_argument("--figure", type=Path, help="curves to draw as well (.svg, .png)")
    options = parser.parse_args(argv)
    run = options.run.resolve()
    rows = []
    panels: dict[str, dict[str, dict[int, list[float]]]] = {"all turns": {}, "turns with the function": {}}
    for k in options.sizes:
        for method in options.methods:
            found = [accuracy(run, options.system, method, k, seed) for seed in options.seeds]
            values = {name: [each[name] for each in found] for name in found[0]}
            cells = [cell(values["all"]), cell(values["with"]), cell(values["share"]), cell(values["templates"], 1.0)]
            rows.append([method, str(k), *cells, str(len(found))])
            for metric, name in zip(panels, ("all", "with"), strict=True):
                panels[metric].setdefault(method, {})[k] = values[name]
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    notes = [f"{options.run}, samples of {options.system}; exact match on the test, and shares, in percent"]
    report = Report("Annotated samples", "cpu", options.out, append=False, notes=notes)
    report.add(table(COLUMNS, rows))
    if options.figure:
        draw_curves(options.figure, panels, label="annotated samples")


if __name__ == "__main__":
    main()
