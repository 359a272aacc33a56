"""A semantic parser's trees of utterances: from a checkpoint, or from a file that holds them already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datamodules.turn import Turn
from doppel.errors import DataError
from doppel.files import write_json_lines

Trees = list[str | None]


def look_up(annotated: Sequence[Turn], utterances: Sequence[str], option: str) -> Trees:
    """The trees that annotated lines give to utterances.

    Lines are found by their utterance, so that order and further lines do not matter; where an utterance stands in
    several lines, the first one counts.

    Args:
        annotated: lines with a parser's trees.
        utterances: what is asked for.
        option: the option that named the file, for the message.

    Raises:
        DataError: an utterance has no line.
    """
    trees: dict[str, str | None] = {}
    for turn in annotated:
        trees.setdefault(turn.utterance, turn.parse)
    missing = sum(utterance not in trees for utterance in utterances)
    if missing:
        raise DataError(
            f"{option} lacks {missing} of the {len(utterances)} compared utterances: annotate the very file that is "
            "compared, or leave the option out and give --parser"
        )
    return [trees[utterance] for utterance in utterances]


def parsed_trees(
    sides: Sequence[Sequence[str]], ready: Sequence[Sequence[Turn] | None], parser: str | Path | None
) -> list[Trees | None]:
    """Trees of the synthetic and of the reference utterances: ready ones, else the parser's, else None.

    Equal utterances are parsed once.

    Args:
        sides: the synthetic and the reference utterances.
        ready: for each side its lines with a parser's trees, or None.
        parser: checkpoint of a ``SemanticParser``, which is loaded only where ready lines lack.

    Raises:
        DataError: ready lines lack an utterance.
        UserError: the checkpoint cannot be loaded.
    """
    options = ("--parsed", "--parsed-reference")
    trees: list[Trees | None] = [
        None if turns is None else look_up(turns, utterances, option)
        for turns, utterances, option in zip(ready, sides, options, strict=True)
    ]
    todo = list(dict.fromkeys(u for side, found in zip(sides, trees, strict=True) if found is None for u in side))
    if parser is None or not todo:
        return trees
    from lightning_modules.parsing.annotate import load_parser

    parsed = dict(zip(todo, load_parser(parser).annotate(todo, progress=True), strict=True))
    return [
        [parsed[utterance] for utterance in side] if found is None else found
        for side, found in zip(sides, trees, strict=True)
    ]


def write_annotations(path: Path, utterances: Sequence[str], trees: Trees) -> None:
    """Write JSON lines ``{"utterance", "parse"}``.

    Raises:
        DataError: the file cannot be written.
    """
    pairs = zip(utterances, trees, strict=True)
    write_json_lines(path, ({"utterance": utterance, "parse": tree} for utterance, tree in pairs))
