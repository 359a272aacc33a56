"""A table whose words have each given way to another one, by a word-level mechanism."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from jsonargparse.typing import PositiveFloat
from tqdm import tqdm

from datamodules.reading.columns import Columns
from datamodules.reading.example import Example, Unit
from datamodules.reading.examples import iter_examples
from datamodules.reading.files import expand_path
from doppel.errors import DataError, UserError
from doppel.files import refuse_existing, whole_file, write_json
from doppel.redaction.mechanisms import MechanismName, word_mechanism

if TYPE_CHECKING:
    from doppel.redaction.word_vectors import WordVectors

#: Rows that are perturbed together.
_ROWS = 512
#: What a reader of the file is told beside its ε.
NO_GUARANTEE = (
    "It holds for one word at a time, whatever stands beside it: the words of a text add up, and their number and "
    "order stay. So it is no estimate of what a text tells, and not comparable with the ε of a training; no ledger "
    "counts it, and the file is as private as the table. Labels and units are copied as they are"
)


def perturb(
    table: str,
    *,
    mechanism: MechanismName,
    epsilon: PositiveFloat,
    out: Path,
    encoder: str = "minilm",
    set_size: int = 20,
    unit: Unit | None = None,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    seed: int | None = None,
) -> None:
    """Replace each word of a table by one that is drawn for it. This protects words, not people.

    Word-level differential privacy, to compare with redaction and private training. Each word is replaced by one of a
    public vocabulary, more often a near one; texts are written in lower case, without punctuation. --epsilon is that of
    one word: a text of n words has n times the loss, and it is not comparable with the ε of a training. Of feyisetan
    and santext it is metric (d_X-privacy): two words at distance t differ by a factor of at most e^(ε·t), so it scales
    with the encoder; feyisetan's noise has mean length D/ε (D = 384 for minilm), so below ε = D it keeps next to no
    word. Of custext it holds among the words of one set, and the set itself is told. It never enters a ledger.

    Example:
        python cli.py perturb private.csv --mechanism santext --epsilon 10 --out perturbed.jsonl

    Args:
        table: The table: any file that `run` reads.
        mechanism: feyisetan takes the word nearest to the noisy vector, santext draws from the whole vocabulary,
            custext from the few words of a set.
        epsilon: Of the mechanism, for one word; larger ones keep more words.
        out: File to write, .jsonl or .csv; OUT.card.json says beside it what was done.
        encoder: Whose input embeddings are the word vectors: minilm (extra minilm), or a folder or hub name of any
            public model, such as models/base.
        set_size: Words of a set of custext.
        unit: dialogue or user writes whose row each is, as `run` reads it; utterance writes it not. To be given where
            rows seem to be one person's: `run` could not ask any more whose they are.
        columns: What the columns of the table are called; those of the file have the usual names.
        seed: For tests alone: who knows it can tell which words were drawn for which.

    Raises:
        UserError: The table or an option cannot be used.
    """
    if out.suffix not in (".jsonl", ".csv"):
        raise UserError("rows are written as .jsonl or .csv: give such a name", about=f"--out {out}")
    beside = out.with_name(f"{out.name}.card.json")
    for written in (out, beside):
        refuse_existing(written)
    from doppel.redaction.word_level import Perturber

    made = word_mechanism(mechanism, _vectors(encoder), epsilon, set_size)
    perturber, path = Perturber(made, seed), expand_path(table)
    turns = iter_examples(path, unit, with_trees=False, columns=columns, unit_names="exact")
    is_alone, is_empty = unit in (None, "utterance"), True
    with whole_file(out, "give another --out") as file:
        write = _csv_row if out.suffix == ".csv" else _json_row
        if out.suffix == ".csv":
            write(file, {name: name for name in ("utterance", "label", *([] if is_alone else ["unit"]))})
        with tqdm(desc=mechanism, unit="row", disable=None) as bar:
            for rows in _blocks(turns):
                for turn, text in zip(rows, perturber([turn.utterance for turn in rows]), strict=True):
                    row = {"utterance": text, "label": turn.label}
                    write(file, row if is_alone else {**row, "unit": turn.unit})
                    is_empty &= turn.is_blank
                bar.update(len(rows))
        if is_empty:
            raise DataError("holds no request: give a file with at least one", about=path)
    card: dict[str, Any] = {
        "mechanism": mechanism,
        "word_level_epsilon": epsilon,
        "encoder": encoder,
        "statement": made.statement,
    }
    if mechanism == "custext":
        card["set_size"] = set_size
    if seed is not None:
        card["seed"] = "fixed: whoever reads the command can undo the draws"
    write_json(beside, {**card, "guarantee": NO_GUARANTEE})
    print(f"{out}: {made.statement}. {NO_GUARANTEE}.")


def _vectors(encoder: str) -> WordVectors:
    from commands.lightning.trained_model import place_of
    from doppel.models.encoders import minilm
    from doppel.redaction.word_vectors import input_vectors

    return input_vectors(minilm() if encoder == "minilm" else str(place_of(encoder)))


def _blocks(turns: Iterator[Example]) -> Iterator[list[Example]]:
    while rows := list(islice(turns, _ROWS)):
        yield rows


def _json_row(file: IO[bytes], row: dict[str, str | None]) -> None:
    kept = {name: value for name, value in row.items() if value is not None}
    file.write(f"{json.dumps(kept, ensure_ascii=False)}\n".encode())


def _csv_row(file: IO[bytes], row: dict[str, str | None]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([value or "" for value in row.values()])
    file.write(text.getvalue().encode())
