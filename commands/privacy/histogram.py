"""Prompts for a model of utterances given a domain, from a noised histogram of the private domains."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from datamodules.canaries import first_units
from doppel.errors import DataError, UserError
from doppel.files import write_json_lines

PRIVACY = "callbacks.differential_privacy.DifferentialPrivacy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``python cli.py histogram``."""
    parser.description = (
        f"{__doc__} Data, unit, budget and noise are those of the trained stage: its callback announced the histogram "
        "(histogram_noise_multiplier), and one release of it is written to the ledger. The noised histogram is kept "
        "beside the prompts, and read instead of released again."
    )
    parser.add_argument("stage_dir", type=Path, help="folder of the trained domain model, RUN/domain")
    parser.add_argument("--labels", required=True, help="file of all labels there are, one a line; a public list")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines of prompts to write")
    parser.add_argument("--num-samples", type=int, required=True, help="prompts to draw")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw, never of the noise (default: 1)")
    parser.add_argument(
        "--exact",
        action="store_true",
        help="no noise, as in the paper: NOT PRIVATE, which the ledger and the report then say",
    )


def run(args: argparse.Namespace) -> None:
    """Release the histogram, unless it has been, and draw prompts from it.

    Raises:
        UserError: The stage, the labels and the options do not fit together.
        BudgetExceededError: The budget of the scope does not afford the histogram any more.
    """
    if args.num_samples < 1:
        raise DataError(f"--num-samples is {args.num_samples}: give at least 1")
    bins = read_labels(Path(args.labels))
    path = args.out.with_name(f"{args.out.stem}.histogram.json")
    if not path.exists():
        write_json_lines(path, [release(args.stage_dir, bins, exact=args.exact)])
    histogram = json.loads(path.read_text(encoding="utf-8"))
    if list(histogram["probabilities"]) != bins or (histogram["noise_multiplier"] is None) != args.exact:
        raise UserError(f"{path} was released with other labels or noise: restore them, or take another run folder")
    names = random.Random(args.seed).choices(bins, list(histogram["probabilities"].values()), k=args.num_samples)
    write_json_lines(args.out, ({histogram["field"]: name} for name in names))
    noise = "exact: NOT PRIVATE" if args.exact else f"noise of standard deviation {histogram['noise_multiplier']:g}"
    print(f"{args.out}: {args.num_samples} prompts of {len(bins)} labels ({noise})")


def read_labels(path: Path) -> list[str]:
    """The public labels, one a line; empty lines and those that begin with # are passed over.

    Raises:
        DataError: The file is missing, has no label, or one twice.
    """
    if not path.is_file():
        raise DataError(f"no labels at {path}: give --labels a file with one label a line, from a public source")
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    labels = [line for line in lines if line and not line.startswith("#")]
    if not labels or len(set(labels)) != len(labels):
        raise DataError(f"{path} has {'a label twice' if labels else 'no label'}: give every label once")
    return labels


def release(stage_dir: Path, bins: Sequence[str], exact: bool = False) -> dict[str, Any]:
    """Count the labels of the data that a stage was trained on, with the noise that it announced.

    Formal guarantees:
        One Gaussian mechanism of sensitivity 1 (see :mod:`doppel.privacy.histogram`), written to the ledger in the
        scope of the stage *before* the data are read, as one step with q = 1; the stage's own noise was calibrated for
        both together. With ``exact`` there is no guarantee, and the ledger says so.

    Args:
        stage_dir: Folder of the trained stage, with its ``config.yaml``.
        bins: Public labels.
        exact: Release the histogram as it is.

    Returns:
        ``field``, ``unit``, ``noise_multiplier`` (None if exact), ``sums`` and ``probabilities`` by label.
    """
    from datamodules.readers import data_fingerprint, expand_path, read_turns
    from datamodules.selection import Selection
    from doppel.privacy.accounting import default_delta
    from doppel.privacy.histogram import KIND, add_noise, histogram_spec, normalise, shares
    from doppel.privacy.ledger import Ledger

    if not (stage_dir / "config.yaml").is_file():
        raise UserError(f"{stage_dir} has no config.yaml: give the folder of the trained domain model")
    config = yaml.safe_load((stage_dir / "config.yaml").read_text(encoding="utf-8"))
    data, field = config["data"]["init_args"], config["model"]["init_args"].get("source")
    if field != "domain":
        raise UserError(f"{stage_dir} holds no model of utterances given a domain: its source is {field!r}")
    privacy: Any = next((c["init_args"] for c in config["trainer"]["callbacks"] if c["class_path"] == PRIVACY), None)
    sigma: Any = None if privacy is None else privacy["histogram_noise_multiplier"]
    if exact and sigma is not None:
        raise UserError(
            f"{stage_dir} was trained with room for a noised histogram: leave --exact out, or train it again with "
            "histogram_noise_multiplier: null"
        )
    if not exact and sigma is None:
        raise UserError(
            f"{stage_dir} announced no histogram: set histogram_noise_multiplier in its DifferentialPrivacy and train "
            "it again, or ask for --exact, which is not private"
        )
    path = expand_path(data["train_path"])
    selection = Selection.from_config(data)
    ledger = None if privacy is None else Ledger(privacy["ledger_path"])
    if ledger is not None and exact:
        text = f"the exact histogram of field {field} was released, which has no privacy guarantee"
        ledger.add_caveat(privacy["scope"], text, voids=True)
    turns = first_units(selection.apply(read_turns(path, data["unit"]), path), data.get("limit_train_units"))
    if ledger is not None and not exact:
        num_units = len({turn.unit for turn in turns})
        spec = histogram_spec(
            sigma,
            num_units,
            privacy["target_epsilon"],
            privacy["delta"] or default_delta(num_units),
            privacy["accountant"],
            data["unit"],
        )
        mechanism = ledger.open_mechanism(
            scope=privacy["scope"],
            stage="histogram",
            spec=spec,
            planned_steps=1,
            data_fingerprint=data_fingerprint(path, selection),
            kind=KIND,
        )
        ledger.spend(mechanism)
    sums = shares(((turn.unit, turn.domain) for turn in turns), bins)
    if not exact:
        sums = add_noise(sums, sigma)
    return {
        "field": field,
        "unit": data["unit"],
        "noise_multiplier": sigma,
        "sums": sums,
        "probabilities": normalise(sums),
    }
