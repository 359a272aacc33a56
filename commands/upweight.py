"""Weigh turns by how unsure a public parser is of them, for training that upweights what the parser lacks."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from datamodules.readers import Unit, data_fingerprint, expand_path, read_turns
from datamodules.turn import Turn
from doppel.errors import UserError
from doppel.files import write_json_lines

DESCRIPTION = """\
Write the turns of --train with a weight in [0, 1] each, w = clamp(floor + u / scale, 0, 1), where u is the
parser's negative log-likelihood of its own output, in nats an action. `fit` on the written file multiplies each
unit's clipped gradient by the mean weight of its rows.

Why the guarantee stays: w is a function of one turn alone, by a parser, a floor and a scale that are public; so
a unit's weighted gradient is still a function of this unit, of norm at most w C <= C, and the sum is divided by
the same public batch size. Nothing is normalised by what other turns hold. This holds only if

* the parser was trained on public data (or on samples of a private model: post-processing), and
* --scale and --floor were not chosen by looking at the private turns.

The weights are as private as the turns: the file is readable by its owner alone, and no figure of them is shown.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``python cli.py upweight``."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--parser", required=True, metavar="CKPT", help="checkpoint of the public parser")
    parser.add_argument("--train", required=True, help="turns: dialogue or plain JSON lines, or embedded:…")
    parser.add_argument("--out", type=Path, required=True, help="plain JSON lines with weights, for train_path")
    parser.add_argument("--floor", type=float, default=0.2, help="weight where the parser is sure (default: 0.2)")
    parser.add_argument(
        "--scale", type=float, default=0.5, help="nats an action that add 1 to the weight; public (default: 0.5)"
    )
    parser.add_argument(
        "--unit",
        choices=get_args(Unit),
        default="utterance",
        help="unit that training will protect (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Write the weighted turns to ``--out``, and how they were weighed to ``OUT.upweight.json``.

    Raises:
        DataError: The turns cannot be read.
        UserError: The parser cannot be loaded, or an argument is out of range.
    """
    check_range(args.floor, args.scale)
    from lightning_modules.parsing.annotate import load_parser

    path = expand_path(args.train)
    turns = read_turns(path, args.unit)
    parser = load_parser(args.parser)
    scored = parser.annotate_with_scores([turn.utterance for turn in turns], progress=True)
    write_json_lines(args.out, map(asdict, weigh(turns, scored, args.floor, args.scale)))
    how: dict[str, Any] = {
        "train": args.train,
        "train_fingerprint": data_fingerprint(path),
        "parser": args.parser,
        "parser_fingerprint": data_fingerprint(args.parser),
        "floor": args.floor,
        "scale": args.scale,
    }
    write_json_lines(args.out.with_name(f"{args.out.name}.upweight.json"), [how])
    print(f"{len(turns)} weighted turns in {args.out}: train with --data.init_args.train_path {args.out}")
    print(json.dumps(how, indent=2))


def weigh(turns: Sequence[Turn], scored: Sequence[tuple[str, float]], floor: float, scale: float) -> Iterator[Turn]:
    """Turns with weights; one without a tree gets the parser's.

    Args:
        turns: Turns of any weight.
        scored: The parser's tree of each turn, and its negative log-likelihood in nats an action.
        floor: Weight where that is 0.
        scale: Nats an action that add 1.
    """
    for turn, (tree, uncertainty) in zip(turns, scored, strict=True):
        weight = weight_of(uncertainty, floor, scale)
        yield replace(turn, parse=tree if turn.parse is None else turn.parse, weight=weight)


def weight_of(uncertainty: float, floor: float, scale: float) -> float:
    """clamp(floor + uncertainty / scale, 0, 1); 1 for an uncertainty that is not finite."""
    if not math.isfinite(uncertainty):
        return 1.0
    return min(max(floor + uncertainty / scale, 0.0), 1.0)


def check_range(floor: float, scale: float) -> None:
    """Refuse what gives no weights.

    Raises:
        UserError: ``floor`` is not in [0, 1], or ``scale`` is not a finite number above 0.
    """
    if not 0 <= floor <= 1:
        raise UserError(f"--floor is {floor}: give a number in [0, 1]")
    if not 0 < scale < math.inf:
        raise UserError(f"--scale is {scale}: give a finite number above 0")
