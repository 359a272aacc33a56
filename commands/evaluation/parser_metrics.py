"""How accurate a parser is: graph match, API match and bag of nodes of its trees against gold trees."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from commands.evaluation.evaluate import read_synthetic, write_json
from datamodules.readers import read_turns
from datamodules.turn import Turn
from doppel.errors import DataError

Values = dict[str, float | int | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``python cli.py parser-metrics``."""
    parser.add_argument("--predicted", required=True, help='a parser\'s JSON lines with "utterance" and "parse"')
    parser.add_argument(
        "--gold",
        required=True,
        help="the same turns in the same order with their trees: dialogue or plain JSON lines, or embedded:…",
    )
    parser.add_argument(
        "--function",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATTERN",
        help="also the turns with and without a function: a call head (WeatherQueryApi) or its start (EventOnDate*)",
    )
    parser.add_argument(
        "--apis", choices=("smcalflow", "treedst"), default="smcalflow", help="which functions are API calls"
    )
    parser.add_argument("--out", type=Path, help="also write the values here, as JSON")


def run(args: argparse.Namespace) -> None:
    """Compare, print a table, and write ``--out``.

    Raises:
        DataError: a file cannot be used, the two do not hold the same turns, or a function is no pattern.
    """
    predicted, gold = read_synthetic(args.predicted), read_turns(args.gold, unit="utterance")
    values = parser_report(predicted, gold, functions=args.function, apis=args.apis)
    if args.out is not None:
        write_json(dict(values), args.out)
    sys.stdout.write(format_groups(values))


def parser_report(
    predicted: Sequence[Turn], gold: Sequence[Turn], *, functions: Sequence[str] = (), apis: str = "smcalflow"
) -> Values:
    """The values of ``doppel.metrics.parser_metrics`` for aligned turns.

    Args:
        predicted: turns with a parser's trees; a missing or invalid one is wrong.
        gold: the same turns with their true trees; a turn without one is left out on both sides.
        functions: patterns of functions, as in ``doppel.lispress.uses_function``.
        apis: whose list of API calls, ``smcalflow`` or ``treedst``.

    Raises:
        DataError: the two do not hold the same turns, no gold turn has a tree, or a function is no pattern.
    """
    from doppel.metrics import SMCALFLOW_APIS, TREEDST_APIS, parser_metrics

    for number, (guess, truth) in enumerate(zip(predicted, gold, strict=False), start=1):
        if guess.utterance != truth.utterance:
            raise DataError(
                f"{guess.unit}: is not the utterance of turn {number} of --gold, and is the first that differs: "
                "annotate the gold file itself"
            )
    if len(predicted) != len(gold):
        raise DataError(f"--predicted has {len(predicted)} turns but --gold {len(gold)}: annotate all of the gold file")
    pairs = [(guess.parse, truth.parse) for guess, truth in zip(predicted, gold, strict=True) if truth.parse]
    if not pairs:
        raise DataError("--gold has no trees: give turns with their true trees")
    lists = {"smcalflow": SMCALFLOW_APIS, "treedst": TREEDST_APIS}
    try:
        return parser_metrics([guess for guess, _ in pairs], [truth for _, truth in pairs], functions, lists[apis])
    except ValueError as error:
        raise DataError(f"--function: {error}") from error


def format_groups(values: Values) -> str:
    """A table with a row for all turns, and for the turns with and without each function."""
    groups = dict.fromkeys(name.partition("@")[2] for name in values)
    keys = dict.fromkeys(name.partition("@")[0] for name in values)
    width = max(len("turns"), len("all"), *map(len, groups))
    lines = [f"{'turns':{width}}" + "".join(f"  {key}" for key in keys)]
    for group in groups:
        cells = ((key, values[f"{key}@{group}" if group else key]) for key in keys)
        lines.append(f"{group or 'all':{width}}" + "".join(f"  {_cell(value):>{len(key)}}" for key, value in cells))
    return "\n".join(lines) + "\n"


def _cell(value: float | int | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
