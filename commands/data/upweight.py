"""Weights of turns by how unsure a public parser is of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from datamodules.columns import Columns
from datamodules.readers import Unit, content_digest, data_fingerprint, expand_path, read_turns
from datamodules.turn import Turn
from doppel.errors import UserError
from doppel.files import write_json_lines


def upweight(
    *,
    parser: str,
    train: str,
    out: Path,
    floor: float = 0.2,
    scale: float = 0.5,
    unit: Unit = "utterance",
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Weigh turns by how unsure a public parser is of them.

    Write the turns of --train with a weight in [0, 1] each, w = clamp(floor + u / scale, 0, 1), where u is the parser's
    negative log-likelihood of its own output, in nats an action. `fit` on the written file multiplies each unit's
    clipped gradient by the mean weight of its rows. How they were weighed stands in OUT.upweight.json.

    Why the guarantee stays: w is a function of one turn alone, by a parser, a floor and a scale that are public; so a
    unit's weighted gradient is still a function of this unit, of norm at most w C <= C, and the sum is divided by the
    same public batch size. Nothing is normalised by what other turns hold. This holds only if the parser was trained on
    public data (or on samples of a private model: post-processing), and if --scale and --floor were not chosen by
    looking at the private turns. The weights are as private as the turns: the file is readable by its owner alone, and
    no figure of them is shown.

    Args:
        parser: Checkpoint of the public parser.
        train: Turns: whatever training reads.
        out: Plain JSON lines with weights, for train_path.
        floor: Weight where the parser is sure.
        scale: Nats an action that add 1 to the weight; public.
        unit: Unit that training will protect.
        columns: What the columns of --train are called; those of --out have the usual names.

    Raises:
        DataError: The turns cannot be read.
        UserError: The parser cannot be loaded, or an argument is out of range.
    """
    if not 0 <= floor <= 1:
        raise UserError(f"--floor is {floor}: give a number in [0, 1]")
    if not 0 < scale < math.inf:
        raise UserError(f"--scale is {scale}: give a finite number above 0")
    from lightning_modules.semantic_parser import load_parser

    path = expand_path(train)
    turns = read_turns(path, unit, columns=columns)
    scored = load_parser(parser).annotate_with_scores([turn.utterance for turn in turns], progress=True)
    write_json_lines(out, map(asdict, weigh(turns, scored, floor, scale)))
    how: dict[str, Any] = {
        "train": train,
        "train_fingerprint": data_fingerprint(path, columns=columns),
        "parser": parser,
        "parser_fingerprint": content_digest(parser),
        "floor": floor,
        "scale": scale,
    }
    write_json_lines(out.with_name(f"{out.name}.upweight.json"), [how])
    print(f"{len(turns)} weighted turns in {out}: train with --data.init_args.train_path {out}")
    print(json.dumps(how, indent=2))


def weigh(turns: Sequence[Turn], scored: Sequence[tuple[str, float]], floor: float, scale: float) -> Iterator[Turn]:
    """Turns with weights; one without a tree gets the parser's.

    Args:
        turns: Turns of any weight.
        scored: The parser's tree of each turn, and its negative log-likelihood in nats an action.
        floor: As for :func:`upweight`, and likewise ``scale``.
    """
    for turn, (tree, uncertainty) in zip(turns, scored, strict=True):
        weight = weight_of(uncertainty, floor, scale)
        yield replace(turn, parse=tree if turn.parse is None else turn.parse, weight=weight)


def weight_of(uncertainty: float, floor: float, scale: float) -> float:
    """clamp(floor + uncertainty / scale, 0, 1); 1 for an uncertainty that is not finite."""
    if not math.isfinite(uncertainty):
        return 1.0
    return min(max(floor + uncertainty / scale, 0.0), 1.0)
