"""A sensitive and a safe table with masks in place of the words that tell them apart."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from jsonargparse.typing import PositiveInt
from tqdm import tqdm

from datamodules.columns import Columns
from datamodules.records import head_of, kind, read_records
from datamodules.sources import embedded_turns, expand_path, is_embedded
from doppel.errors import DataError, UserError
from doppel.files import kind_of, whole_file, write_json
from doppel.redaction.mask import Ranker, Redacted, Redactor
from doppel.redaction.patterns import rules_of
from doppel.redaction.pseudonyms import pseudonyms as draws_of
from doppel.redaction.rank import LogisticRanker

#: What a card says of redacted files.
NO_GUARANTEE = (
    "Redaction gives no privacy guarantee: nothing bounds what is left, and no ε belongs to these files. Keep them as "
    "you keep the originals, and measure what they still tell: python cli.py attack"
)
#: What is kept of a turn of a dialogue, beside its utterance, tree and domain; all else may repeat what was said.
_OF_A_TURN = ("turn_index", "skip")


@dataclass
class _Counts:
    """Of one written file."""

    rows: int = 0
    held_out: int = 0
    words: int = 0
    hidden: int = 0


def redact(
    *,
    sensitive: str,
    safe: str,
    level: float,
    out: Path,
    words: Path | None = None,
    patterns: list[str] = [],  # noqa: B006 (never changed)
    entities: bool = False,
    pseudonyms: bool = False,
    held_out: float = 0.2,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    reconstruct: str | None = None,
    num_reconstructed: PositiveInt = 100,
) -> None:
    """Hide the words that tell a sensitive table from a safe one. This is no privacy guarantee.

    Words are ranked by how much they tell which table a row is from: |coefficient · TF-IDF| of a logistic regression.
    Of every row of both tables the most telling ones, a share --level of its words, become [MASK], a run of them one.
    So at level 1 every row is the same single mask. Lists of words, patterns and names are hidden besides.

    The ranker learns from --held-out of the rows of both tables, chosen by a hash of their text. These rows are not
    written: on rows that it has learnt from, a ranker finds words that it would not find on others, and redaction would
    look better than it is. At level 0 nothing is learnt and all rows are written.

    Written are OUT/sensitive and OUT/safe, .csv where the table is .csv or .tsv, else .jsonl, row by row with their
    other columns, which may repeat what was said; and OUT/redaction.json with counts. Quoted strings of parse trees are
    redacted as their utterance is. Of dialogues, what else may repeat the words is left out. Both files may be given to
    `run`; what they still tell says `attack`.

    Nothing of this is differentially private. Counts and files are as private as the tables.

    Args:
        sensitive: The sensitive table: any file that `run` reads.
        safe: The safe table, likewise.
        level: Share of each row's words that is hidden because they tell most, rounded up, between 0 and 1.
        out: Folder to write; files of these names must not be there.
        words: Text file of words and phrases that are always hidden, however they are typed, one a line; a tab and
            person, city or venue may follow.
        patterns: Some of email, phone and number.
        entities: Hide names, dates and sums that a spaCy model finds (extra entities).
        pseudonyms: Put made-up names in place of what lists, patterns and names have a kind for, the same for the same
            one in both files. A word that the ranker hides has a mask.
        held_out: Share of the rows that the ranker learns from.
        columns: What the columns are called.
        reconstruct: Folder of a public causal language model that guesses masks; how many it guesses is told.
        num_reconstructed: Rows of the sensitive table whose masks are guessed.

    Raises:
        UserError: A table or an option cannot be used.
    """
    if level > 0 and not 0 < held_out < 1:
        raise UserError(f"--held-out is {held_out}: give a share between 0 and 1, such as 0.2")
    if pseudonyms and reconstruct is not None:
        raise UserError("masks are guessed where masks stand: leave out --pseudonyms or --reconstruct")
    rules = rules_of(words, patterns, entities)
    if level <= 0 and not rules:
        raise UserError(f"--level is {level}, and no words, patterns or entities are given: nothing would be hidden")
    tables = {"sensitive": sensitive, "safe": safe}
    for path in (*(_target(out, name, table) for name, table in tables.items()), out / "redaction.json"):
        if path.exists():
            raise UserError("it is there already, and would be overwritten: give another --out", about=path)
    share = held_out if level > 0 else 0.0
    learnt: Ranker | None = None
    if level > 0:
        texts = {
            name: [text for text in _texts(path, columns) if _is_held_out(text, share)] for name, path in tables.items()
        }
        learnt = _ranker(texts["sensitive"], texts["safe"])
    key = secrets.token_bytes(32)  # of this command alone: who has both files learns no name from another's

    def keyed(text: str) -> str:
        return hashlib.blake2b(text.encode(), key=key).hexdigest()

    redactor = Redactor(rules, learnt, level, draws_of(keyed) if pseudonyms else None)
    kept: list[Redacted] = []
    counts = {}
    for name, path in tables.items():
        num_kept = num_reconstructed if reconstruct is not None and name == "sensitive" else 0
        counts[name] = _write(name, path, out, columns, redactor, share, kept, num_kept)
    told: dict[str, Any] = {
        "level": level,
        "rules": {"words": words is not None, "patterns": patterns, "entities": entities, "pseudonyms": pseudonyms},
        "held_out": share,
        **{name: asdict(count) for name, count in counts.items()},
        "guarantee": NO_GUARANTEE,
    }
    if reconstruct is not None:
        from doppel.redaction.reconstruction import Reconstructor

        guessed = Reconstructor(expand_path(reconstruct)).measure(kept)
        told["reconstruction"] = {"model": Path(reconstruct).name, "rows": len(kept), **guessed.as_dict()}
        print(
            f"of {guessed.num_masks} masks {reconstruct} guesses the first word of {guessed.top_1:.1%}, and has "
            f"{guessed.top_10:.1%} among ten guesses"
        )
    write_json(out / "redaction.json", told)
    for name, count in counts.items():
        print(f"{name}: {count.rows} rows, {count.hidden / max(count.words, 1):.1%} of their words hidden")
    print(NO_GUARANTEE)


def _ranker(sensitive: list[str], safe: list[str]) -> Ranker:
    """A ranker that has learnt from held-out rows."""
    if not sensitive or not safe:
        raise DataError(
            f"{len(sensitive)} sensitive and {len(safe)} safe rows are held out for the ranker: give larger tables, or "
            "a larger --held-out"
        )
    return LogisticRanker.fit(sensitive, safe)


def _records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a table with their places."""
    path = expand_path(path)
    if not is_embedded(path):
        yield from read_records(path)
        return
    for number, turn in enumerate(embedded_turns(path, "dialogue"), 1):
        yield f"{path}, turn {number}", {name: getattr(turn, name) for name in ("utterance", "parse", "unit", "label")}


def _turns_of(record: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The user turns of a dialogue, what is read of each."""
    turns = record["turns"]
    own = [turn.get("user_utterance") if isinstance(turn, dict) else None for turn in turns or ()]
    if not isinstance(turns, list) or not all(
        isinstance(said, dict) and isinstance(said.get("original_text"), str) for said in own
    ):
        raise DataError("a turn without 'user_utterance' or its 'original_text': give every turn one", about=where)
    return turns


def _is_dialogue(record: dict[str, Any], columns: Columns) -> bool:
    return "turns" in record and not record.keys() & set(columns.of("text", record))


def _said(record: dict[str, Any], where: str, columns: Columns) -> str:
    """The text of a row of a table."""
    (name,) = columns.of("text", record) or ["text"]
    text = record.get(name)
    if text is not None and not isinstance(text, str):
        raise DataError(f"{name!r} is {kind_of(text)}: give a text", about=where)
    if name not in record:
        raise DataError(f"no {name!r}: name the column of what was said as --columns.text", about=head_of(where))
    return text or ""


def _texts(path: str, columns: Columns) -> Iterator[str]:
    """What was said in a table, without empty texts."""
    for where, record in tqdm(_records(path), "reading", unit="row", disable=None):
        if _is_dialogue(record, columns):
            said = [turn["user_utterance"]["original_text"] for turn in _turns_of(record, where)]
        else:
            said = [_said(record, where, columns)]
        yield from (text for text in said if text.strip())


def _is_held_out(text: str, share: float) -> bool:
    """Whether a text is of the share that the ranker learns from: the same for equal texts, wherever they stand."""
    digest = hashlib.blake2b(" ".join(text.split()).encode(), digest_size=7, person=b"held-out").digest()
    return int.from_bytes(digest, "big") / 2**56 < share


def _target(out: Path, name: str, table: str) -> Path:
    """The file of a redacted table."""
    return out / f"{name}{'.csv' if kind(table) in ('.csv', '.tsv') else '.jsonl'}"


def _write(
    name: str,
    path: str,
    out: Path,
    columns: Columns,
    redactor: Redactor,
    share: float,
    kept: list[Redacted],
    num_kept: int,
) -> _Counts:
    """Write a table anew, row by row."""
    counts, is_csv = _Counts(), _target(out, name, path).suffix == ".csv"

    def hide(text: str) -> Redacted:
        said = redactor.redact(text)
        counts.rows += 1
        counts.words += len(said.words)
        counts.hidden += len(said.hidden)
        if len(kept) < num_kept:
            kept.append(said)
        return said

    def is_out(text: str) -> bool:
        is_held = bool(text.strip()) and _is_held_out(text, share)
        counts.held_out += is_held
        return is_held or not text.strip()

    with ExitStack() as stack:
        file = stack.enter_context(whole_file(_target(out, name, path), "give another --out"))
        names: list[str] = []
        for where, record in tqdm(_records(path), name, unit="row", disable=None):
            if _is_dialogue(record, columns):
                turns = _turns_of(record, where)
                rows = [
                    _hidden_turn(turn, redactor, hide)
                    for turn in turns
                    if not is_out(turn["user_utterance"]["original_text"])
                ]
                if rows:
                    _line(file, {**{k: v for k, v in record.items() if k == "dialogue_id"}, "turns": rows})
                continue
            text = _said(record, where, columns)
            if is_out(text):
                continue
            said = hide(text)
            (column,) = columns.of("text", record) or ["text"]
            row = {**record, column: said.text}
            for tree in columns.of("parse", record):
                if isinstance(row.get(tree), str):
                    row[tree] = redactor.redact_tree(row[tree], said)
            if not is_csv:
                _line(file, row)
                continue
            if not names:
                names = list(record)
                _cells(file, names)
            _cells(file, [row[key] for key in names])
    return counts


def _hidden_turn(turn: dict[str, Any], redactor: Redactor, hide: Any) -> dict[str, Any]:
    """A turn of a dialogue with its utterance and tree redacted."""
    said = hide(turn["user_utterance"]["original_text"])
    kept = {key: turn[key] for key in _OF_A_TURN if key in turn}
    tags = turn.get("tags")
    if isinstance(tags, dict) and "domain" in tags:
        kept["tags"] = {"domain": tags["domain"]}
    if isinstance(turn.get("lispress"), str):
        kept["lispress"] = redactor.redact_tree(turn["lispress"], said)
    return {**kept, "user_utterance": {"original_text": said.text}}


def _line(file: IO[bytes], row: dict[str, Any]) -> None:
    file.write(f"{json.dumps(row, ensure_ascii=False, default=str)}\n".encode())


def _cells(file: IO[bytes], cells: list[Any]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(["" if cell is None else cell for cell in cells])
    file.write(text.getvalue().encode())
