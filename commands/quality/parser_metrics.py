"""How accurate a parser is: graph match, API match and bag of nodes of its trees against gold trees."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from commands.quality.evaluate import format_value, read_synthetic
from commands.run_folder.private_files import of_runs
from datamodules.guards.overlap import refuse_private
from datamodules.reading.examples import read_examples
from datamodules.reading.files import expand_path
from doppel.console.table import Table
from doppel.errors import DataError
from doppel.files import write_json


def parser_metrics(
    *,
    predicted: Path,
    gold: str,
    function: list[str] = [],  # noqa: B006 (never changed)
    apis: Literal["smcalflow", "treedst"] = "smcalflow",
    out: Path | None = None,
) -> None:
    """Print how accurate a parser is: match of graphs, API calls and nodes of its trees and gold trees.

    A missing or invalid tree of the parser is wrong; a turn without a gold tree is left out on both sides. Below the
    table, strictly: trees that are identical with their quoted strings, and groups of gold trees that differ in strings
    alone in which all are.

    Args:
        predicted: A parser's JSON lines with "utterance" and "parse".
        gold: The same turns in the same order with their trees: dialogue or plain JSON lines, or embedded:…. The
            private turns of a run in which another of these files lies are refused.
        function: Also the turns with and without a function: a call head (WeatherQueryApi) or its start (EventOnDate*).
        apis: Which functions are API calls.
        out: Also write the values here, as JSON.

    Raises:
        DataError: A file cannot be used, the two do not hold the same turns, or a function is no pattern.
        UserError: The gold turns are a private file.
    """
    from doppel.metrics import SMCALFLOW_APIS, TREEDST_APIS, identical_trees
    from doppel.metrics import parser_metrics as compute

    refuse_private([("--gold", gold, None)], of_runs(predicted, out))
    guesses, truths = read_synthetic(predicted), read_examples(expand_path(gold), unit="utterance")
    for number, (guess, truth) in enumerate(zip(guesses, truths, strict=False), start=1):
        if guess.utterance != truth.utterance:
            raise DataError(
                f"is not request {number} of --gold, and is the first that differs: annotate the gold file itself",
                about=guess.unit,
            )
    if len(guesses) != len(truths):
        raise DataError(
            f"--predicted has {len(guesses)} requests but --gold {len(truths)}: annotate all of the gold file"
        )
    pairs = [(guess.parse, truth.parse) for guess, truth in zip(guesses, truths, strict=True) if truth.parse]
    if not pairs:
        raise DataError("--gold has no trees: give requests with their true trees")
    lists = {"smcalflow": SMCALFLOW_APIS, "treedst": TREEDST_APIS}
    try:
        values = compute([guess for guess, _ in pairs], [truth for _, truth in pairs], function, lists[apis])
    except ValueError as error:
        raise DataError(f"--function: {error}") from error
    strict = identical_trees([guess for guess, _ in pairs], [truth for _, truth in pairs])
    if out is not None:
        write_json(out, values | strict)
    groups = dict.fromkeys(name.partition("@")[2] for name in values)
    keys = dict.fromkeys(name.partition("@")[0] for name in values)
    table = Table(["turns", *keys])  # a row for all turns, and for the turns with and without each function
    for group in groups:
        cells = (values[f"{key}@{group}" if group else key] for key in keys)
        table.rows.append([group or "all", *map(format_value, cells)])
    summary = f"identical trees, strings included: {format_value(strict['identical_trees'])}"
    if strict["num_groups"]:
        summary += (
            f"; of {strict['num_groups']} groups of gold trees that differ in strings alone, all are identical in "
            f"{format_value(strict['consistent_groups'])}"
        )
    sys.stdout.write(f"{table.text()}\n{summary}\n")
