"""How synthetic utterances compare with human ones: overlap, χ², MAUVE, validity, copies."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands.annotations import parsed_trees, write_annotations
from datamodules.readers import read_turns
from datamodules.selection import Selection
from datamodules.turn import Turn
from doppel.errors import DataError
from doppel.lispress import Counting

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FEATURIZER = "models/base"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``evaluate``."""
    parser.add_argument("--synthetic", required=True, help='JSON lines with "utterance" and, if sampled, "parse"')
    parser.add_argument(
        "--reference",
        required=True,
        help="human turns: dialogue or plain JSON lines (.jsonl, .gz, .zip) or embedded:…",
    )
    parser.add_argument("--out", type=Path, help="also write the values here, as JSON")
    parser.add_argument(
        "--featurizer",
        default=DEFAULT_FEATURIZER,
        help="model folder or hub name whose hidden states MAUVE compares (default: the shipped base model)",
    )
    parser.add_argument("--no-mauve", action="store_true", help="leave MAUVE out (no model is loaded)")
    parser.add_argument(
        "--keep-function",
        metavar="PATTERN",
        help="compare with the reference turns that call this function: a name, or the start of one and a star",
    )
    parser.add_argument("--num-samples", type=int, help="compare at most so many of each side")
    parser.add_argument(
        "--counting",
        choices=("node_labels", "call_heads"),
        default="node_labels",
        help="what a function type is",
    )
    parser.add_argument(
        "--annotator", help="turns with trees for the nearest_… stand-in parser (default: the reference)"
    )
    parser.add_argument(
        "--parser",
        type=Path,
        metavar="CKPT",
        help="checkpoint of a semantic parser, which annotates both sides for the parsed_… and ground_truth_… values",
    )
    parser.add_argument("--parsed", metavar="FILE", help="a parser's trees of the synthetic utterances, as JSON lines")
    parser.add_argument("--parsed-reference", metavar="FILE", help="a parser's trees of the reference utterances")
    parser.add_argument("--save-parsed", type=Path, metavar="FILE", help="write the former here, for --parsed")
    parser.add_argument(
        "--save-parsed-reference", type=Path, metavar="FILE", help="write the latter here, for --parsed-reference"
    )
    parser.add_argument(
        "--private",
        help="private training turns: also report copies of them (private/…: these values are not DP)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the subsets and of MAUVE's clustering")


def run(args: argparse.Namespace) -> None:
    """Evaluate, print a table, and write ``--out``.

    Raises:
        UserError: one line on what is wrong with the input, where, and how to mend it.
    """
    if args.out is not None:
        _make_folder(args.out)  # before the long work, so that a bad path shows at once
    for option, path, ready in (
        ("--save-parsed", args.save_parsed, args.parsed),
        ("--save-parsed-reference", args.save_parsed_reference, args.parsed_reference),
    ):
        if path is not None:
            if not (args.parser or ready):
                raise DataError(f"{option}: there is nothing to save without a parser; give --parser")
            _make_folder(path)
    values = evaluate(
        read_synthetic(args.synthetic),
        Selection(args.keep_function).apply(read_turns(args.reference, unit="utterance"), args.reference),
        featurizer=None if args.no_mauve else args.featurizer,
        annotator=read_turns(args.annotator, unit="utterance") if args.annotator else None,
        private=read_turns(args.private, unit="utterance") if args.private else None,
        parser=args.parser,
        parsed=read_synthetic(args.parsed) if args.parsed else None,
        parsed_reference=read_synthetic(args.parsed_reference) if args.parsed_reference else None,
        save_parsed=args.save_parsed,
        save_parsed_reference=args.save_parsed_reference,
        counting=args.counting,
        num_samples=args.num_samples,
        seed=args.seed,
    )
    if args.out is not None:
        write_json(values, args.out)
    sys.stdout.write(format_table(values))


def evaluate(
    synthetic: Sequence[Turn],
    reference: Sequence[Turn],
    *,
    featurizer: str | Path | None = DEFAULT_FEATURIZER,
    annotator: Sequence[Turn] | None = None,
    private: Sequence[Turn] | None = None,
    parser: str | Path | None = None,
    parsed: Sequence[Turn] | None = None,
    parsed_reference: Sequence[Turn] | None = None,
    save_parsed: Path | None = None,
    save_parsed_reference: Path | None = None,
    counting: Counting = "node_labels",
    num_samples: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Compute every metric on equally many samples of both sides.

    Args:
        synthetic: samples; ``parse`` is the tree that an utterance was sampled from, None for one-stage
            samples.
        reference: human turns.
        featurizer: model folder (also relative to the repository) or hub name for MAUVE; None leaves MAUVE
            out.
        annotator: turns with trees for the ``nearest_…`` stand-in parser; None: the reference.
        private: private training turns; opts into the ``private/…`` values, which are not differentially
            private.
        parser: checkpoint of a semantic parser, which annotates the compared utterances.
        parsed: ready annotations of the synthetic utterances, which go before the parser's.
        parsed_reference: ready annotations of the reference utterances.
        save_parsed: where to write the annotations of the compared synthetic utterances.
        save_parsed_reference: where to write those of the compared reference utterances.
        counting: what a function type is.
        num_samples: compare at most so many of each side.
        seed: seed of the subsets and of MAUVE's clustering.

    Returns:
        The values of ``doppel.metrics.compare``: ready for JSON, None where a value cannot be computed
        (``notes`` say why), ``featurizer`` and ``parser`` as they were named.

    Raises:
        DataError: a side is empty, ``num_samples`` is not positive, or annotations lack an utterance or a source.
        FeaturizerError: the featurizer cannot be loaded.
        UserError: the parser cannot be loaded.
    """
    from doppel.metrics import FeaturizerError, compare, compared_sides

    if num_samples is not None and num_samples < 1:
        raise DataError(f"--num-samples is {num_samples}: give at least 1")
    for side, turns in (("synthetic", synthetic), ("reference", reference)):
        if not turns:
            raise DataError(f"the {side} side has no utterance: give at least one")
    source = featurizer
    if featurizer is not None and not Path(featurizer).is_dir() and (ROOT / featurizer).is_dir():
        source = ROOT / featurizer
    if source == DEFAULT_FEATURIZER and not Path(source).is_dir():
        raise FeaturizerError(
            f"the shipped base model is not at {ROOT / DEFAULT_FEATURIZER}: name another one with "
            "--featurizer (a folder or a hub name), or leave MAUVE out with --no-mauve"
        )
    corpora = _corpus(synthetic), _corpus(reference)
    sides = [side.utterances for side in compared_sides(*corpora, num_samples, seed)]
    trees = parsed_trees(sides, (parsed, parsed_reference), parser)
    for path, utterances, side_trees in zip((save_parsed, save_parsed_reference), sides, trees, strict=True):
        if path is not None and side_trees is not None:
            write_annotations(path, utterances, side_trees)
    values = compare(
        *corpora,
        featurizer=source,
        annotator=_corpus(annotator) if annotator is not None else None,
        private=[turn.utterance for turn in private] if private is not None else None,
        parsed=trees[0],
        parsed_reference=trees[1],
        counting=counting,
        num_samples=num_samples,
        seed=seed,
    )
    names = {"featurizer": featurizer, "parser": parser}
    return {**values, **{name: None if path is None else str(path) for name, path in names.items()}}


def _corpus(turns: Sequence[Turn]) -> Any:
    from doppel.metrics import Corpus

    return Corpus(tuple(turn.utterance for turn in turns), tuple(turn.parse for turn in turns))


def read_synthetic(path: str | Path) -> list[Turn]:
    """Read samples: JSON lines with ``utterance`` and optionally ``parse``, which need not be valid.

    Raises:
        DataError: the file is missing, empty, or a line of it is unreadable; the message says which one.
    """
    turns = []
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    turns.append(_sample(line, f"{path}:{number}"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 text; give JSON lines, uncompressed") from error
    if not turns:
        raise DataError(f"{path}: holds no sample; give at least one line with an utterance")
    return turns


def _sample(line: str, where: str) -> Turn:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}:{error.colno}: is no JSON ({error.msg}); mend or remove the line") from None
    if not isinstance(record, dict) or not isinstance(record.get("utterance"), str):
        raise DataError(f'{where}: has no text under "utterance"; every line is {{"utterance": …, "parse": …}}')
    parse = record.get("parse")
    if parse is not None and not isinstance(parse, str):
        raise DataError(f'{where}: "parse" is {type(parse).__name__}; give the tree as text, or leave it out')
    return Turn(utterance=record["utterance"], parse=parse, unit=where)


def write_json(values: dict[str, Any], path: Path) -> None:
    """Write values as JSON, whole or not at all; the folder is made if need be."""
    _make_folder(path)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
    ) as file:
        json.dump(values, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: its folder cannot be made ({error.strerror}); give another path") from error


def format_table(values: dict[str, Any]) -> str:
    """Aligned lines ``name  value``, notes below; a value that could not be computed shows as a dash."""
    rows = [(name, value) for name, value in values.items() if name != "notes"]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {_show(value)}" for name, value in rows]
    return "\n".join(lines + [f"note: {note}" for note in values.get("notes", [])]) + "\n"


def _show(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
