"""A sensitive and a safe table with masks in place of the words that tell them apart."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonargparse.typing import PositiveInt

from commands.redaction.redacted_table import redacted_rows, texts, write_rows
from datamodules.reading.columns import Columns
from datamodules.reading.files import expand_path
from doppel.compressed import ending
from doppel.errors import DataError, UserError
from doppel.files import refuse_existing, write_json
from doppel.redaction.mask import Redacted, Redactor
from doppel.redaction.patterns import rules_of
from doppel.redaction.pseudonyms import pseudonyms as draws_of
from doppel.redaction.rank import LogisticRanker

#: What a card says of redacted files.
NO_GUARANTEE = (
    "Redaction gives no privacy guarantee: nothing bounds what is left, and no ε belongs to these files. Keep them as "
    "you keep the originals, and measure what they still tell: python cli.py attack"
)


@dataclass(frozen=True)
class Guess:
    """Masks that a model guesses.

    Attributes:
        model: Folder of a public causal language model; how many masks it guesses is told. Null: nobody guesses.
        rows: Rows of the sensitive table whose masks are guessed.
    """

    model: str | None = None
    rows: PositiveInt = 100


@dataclass
class _Hider:
    """Redacts the texts of one table that the ranker has not learnt from, and counts.

    Attributes:
        redactor: Redacts them.
        share: Of the texts that the ranker learns from.
        kept: The first texts that were redacted, as many as are guessed.
    """

    redactor: Redactor
    share: float
    num_kept: int = 0
    kept: list[Redacted] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("rows", "held_out", "words", "hidden"), 0))

    def __call__(self, text: str) -> Redacted | None:
        if not text.strip():
            return None
        if _is_held_out(text, self.share):
            self.counts["held_out"] += 1
            return None
        said = self.redactor.redact(text)
        self.counts["rows"] += 1
        self.counts["words"] += len(said.words)
        self.counts["hidden"] += len(said.hidden)
        if len(self.kept) < self.num_kept:
            self.kept.append(said)
        return said


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
    guess: Guess = Guess(),
) -> None:
    """Hide the words that tell a sensitive table from a safe one. This is no privacy guarantee.

    Words are ranked by |coefficient · TF-IDF| of a logistic regression that tells the tables apart. In each row a share
    --level of its words, the highest ranked, become [MASK], one for neighbours; at level 1 the row is one mask. Listed
    words, patterns and names are hidden too, also in quoted strings of parse trees. The ranker learns from a share
    --held-out of the rows, which are not written: on them redaction would look better than it is. Writes OUT/sensitive
    and OUT/safe, .csv for .csv and .tsv, else .jsonl, with all other columns, which may repeat what was said, and
    OUT/redaction.json with counts. Both may be given to `run`; `attack` measures what they still tell. Nothing of this
    is differentially private: counts and files are as private as the tables.

    Example:
        python cli.py redact --sensitive a.csv --safe b.csv --level 0.3 --patterns email number --out redacted

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
        guess: Masks that a public language model guesses.

    Raises:
        UserError: A table or an option cannot be used.
    """
    if level > 0 and not 0 < held_out < 1:
        raise UserError(f"--held-out is {held_out}: give a share between 0 and 1, such as 0.2")
    if pseudonyms and guess.model is not None:
        raise UserError("masks are guessed where masks stand: leave out --pseudonyms or --guess.model")
    if columns.messages is not None:
        raise UserError(
            "the messages of a conversation would stay as they are, for redact hides what is in the text of a row: "
            "write each message as a row of its own",
            about="--columns.messages",
        )
    rules = rules_of(words, patterns, entities)
    if level <= 0 and not rules:
        raise UserError(f"--level is {level}, and no words, patterns or entities are given: nothing would be hidden")
    tables = {"sensitive": sensitive, "safe": safe}
    targets = {name: _target(out, name, table) for name, table in tables.items()}
    for path in (*targets.values(), out / "redaction.json"):
        refuse_existing(path)
    share = held_out if level > 0 else 0.0
    ranker = _ranker([*tables.values()], columns, share) if level > 0 else None
    key = secrets.token_bytes(32)  # of this command alone: who has both files learns no name from another's

    def keyed(text: str) -> str:
        return hashlib.blake2b(text.encode(), key=key).hexdigest()

    redactor = Redactor(rules, ranker, level, draws_of(keyed) if pseudonyms else None)
    hiders = {name: _Hider(redactor, share, guess.rows if name == "sensitive" else 0) for name in tables}
    for name, table in tables.items():
        write_rows(targets[name], redacted_rows(table, columns, redactor, hiders[name]))
    told: dict[str, Any] = {
        "level": level,
        "rules": {"words": words is not None, "patterns": patterns, "entities": entities, "pseudonyms": pseudonyms},
        "held_out": share,
        **{name: hider.counts for name, hider in hiders.items()},
        "guarantee": NO_GUARANTEE,
    }
    if guess.model is not None:
        told["reconstruction"] = _guessed(guess.model, hiders["sensitive"].kept)
    write_json(out / "redaction.json", told)
    for name, hider in hiders.items():
        hidden = hider.counts["hidden"] / max(hider.counts["words"], 1)
        print(f"{name}: {hider.counts['rows']} rows, {hidden:.1%} of their words hidden")
    print(NO_GUARANTEE)


def _ranker(tables: list[str], columns: Columns, share: float) -> LogisticRanker:
    """A ranker that has learnt from held-out rows."""
    sensitive, safe = ([text for text in texts(path, columns) if _is_held_out(text, share)] for path in tables)
    if not sensitive or not safe:
        raise DataError(
            f"{len(sensitive)} sensitive and {len(safe)} safe rows are held out for the ranker: give larger tables, or "
            "a larger --held-out"
        )
    return LogisticRanker.fit(sensitive, safe)


def _guessed(model: str, redacted: list[Redacted]) -> dict[str, Any]:
    from doppel.redaction.reconstruction import Reconstructor

    found = Reconstructor(expand_path(model)).measure(redacted)
    print(
        f"of {found.num_masks} masks {model} guesses the first word of {found.top_1:.1%}, and has "
        f"{found.top_10:.1%} among ten guesses"
    )
    return {"model": Path(model).name, "rows": len(redacted), **found.as_dict()}


def _is_held_out(text: str, share: float) -> bool:
    """Whether a text is of the share that the ranker learns from: the same for equal texts, wherever they stand."""
    digest = hashlib.blake2b(" ".join(text.split()).encode(), digest_size=7, person=b"held-out").digest()
    return int.from_bytes(digest, "big") / 2**56 < share


def _target(out: Path, name: str, table: str) -> Path:
    """The file of a redacted table."""
    return out / f"{name}{'.csv' if ending(table) in ('.csv', '.tsv') else '.jsonl'}"
