"""What is hidden of each training row before it is tokenised."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from datamodules.guards.overlap import Named
from datamodules.reading.example import Example
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest, expand_path, file_digest
from doppel.errors import DataError
from doppel.privacy.fingerprint import keyed_fingerprint
from doppel.redaction.mask import Ranker, Redactor
from doppel.redaction.patterns import Pattern, rules_of
from doppel.redaction.pseudonyms import pseudonyms
from doppel.redaction.rank import LogisticRanker
from doppel.settings.facts import setting

#: Form of a bar over private rows, which tells no count of them.
NO_COUNT = "{l_bar}{bar}|"


@dataclass(frozen=True)
class Redaction:
    """What is hidden of each row: words of a list, patterns, names, and the words that tell most.

    Which words tell is learnt of two public files alone. A ranker that was learnt on the private rows would make what
    is hidden in one row depend on all others: it would have to be paid for, so such files are refused.

    Formal guarantees:
        What a row becomes is a function of this row, of public files and of settings, each row by itself. So a row
        stays one row of its unit, N stays what it is, and the ε of the training holds for the file as it was before. No
        ε is added and none is saved: redaction is no part of the guarantee, and nothing is promised of hidden words.
        What cannot be checked: that a list of words was not made of the private rows.

    Attributes:
        level: Share of a row's words to mask, those that tell most, rounded up.
        sensitive: Public file of sensitive texts, from which the ranker learns. Null: level is 0.
        safe: Public file of other texts, likewise.
        words: Text file of words and phrases that are always masked, one per line; a tab and ``person``, ``city`` or
            ``venue`` may follow.
        patterns: Some of ``email``, ``phone`` and ``number``.
        entities: Mask names, dates and sums that a spaCy model finds.
        pseudonyms: Replace masked names with made-up ones of the same kind, the same for the same name, keyed by the
            key of the fingerprints.
    """

    level: float = 0.0
    sensitive: str | None = setting(None, path=True)
    safe: str | None = setting(None, path=True)
    words: str | None = setting(None, path=True)
    patterns: tuple[Pattern, ...] = ()
    entities: bool = False
    pseudonyms: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", tuple(self.patterns))
        if not 0 <= self.level <= 1:
            raise DataError(f"redact.level is {self.level}: give a share of the words, between 0 and 1")
        if (self.level > 0) != (self.sensitive is not None) or (self.sensitive is None) != (self.safe is None):
            raise DataError(
                f"redact.level is {self.level}, and words are ranked by two public files: give a level above 0, "
                "sensitive and safe together, or none of them"
            )
        if not (self.level or self.words or self.patterns or self.entities):
            raise DataError("redact hides nothing: give a level, words, patterns or entities, or leave it out")

    @classmethod
    def from_config(cls, value: Redaction | Mapping[str, Any] | None) -> Redaction | None:
        """Build the redaction of a data module, from its argument or from a saved configuration.

        Raises:
            DataError: It has other fields.
        """
        if value is None or isinstance(value, cls):
            return value
        known = {field.name for field in fields(cls)}
        if not isinstance(value, Mapping) or not value.keys() <= known:
            raise DataError(f"redact is {value!r}: give {', '.join(sorted(known))}")
        return cls(**value)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, without defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {name: plain[name] for name in values if values[name] != getattr(type(self), name)}

    @property
    def public_files(self) -> list[Named]:
        """What the ranker learns of; one of private rows would have to be paid for, and is refused."""
        given = {"redact.sensitive": self.sensitive, "redact.safe": self.safe}
        return [(name, path, None) for name, path in given.items() if path is not None]

    @property
    def key(self) -> str:
        """Names the redaction in fingerprints, with the content of its files in place of their paths."""
        named = {name: expand_path(path) for name in ("words", "sensitive", "safe") if (path := getattr(self, name))}
        digests = {n: file_digest(Path(p)).hex() if Path(p).is_file() else content_digest(p) for n, p in named.items()}
        return json.dumps(self.as_dict() | digests, sort_keys=True)

    def prepare(self) -> None:
        """Read lists and public files, and learn of them, once in a process.

        Raises:
            UserError: A file cannot be used, or no model of names is installed.
        """
        _redactor(self)

    def apply(self, turns: Sequence[Example]) -> list[Example]:
        """Redact the turns, each by itself and its tree with it.

        Raises:
            UserError: A file cannot be used, or no model of names is installed.
        """
        redactor = _redactor(self)
        return [_redacted(turn, redactor) for turn in tqdm(turns, "redacting", bar_format=NO_COUNT, disable=None)]


def _redacted(turn: Example, redactor: Redactor) -> Example:
    said = redactor.redact(turn.utterance)
    tree = None if turn.parse is None else redactor.redact_tree(turn.parse, said)
    return replace(turn, utterance=said.text, parse=tree)


@lru_cache(maxsize=4)
def _redactor(redaction: Redaction) -> Redactor:
    words = None if redaction.words is None else Path(expand_path(redaction.words))
    rules = rules_of(words, redaction.patterns, redaction.entities)
    ranker: Ranker | None = None
    if redaction.sensitive is not None and redaction.safe is not None:
        ranker = LogisticRanker.fit(_texts(redaction.sensitive), _texts(redaction.safe))
    return Redactor(rules, ranker, redaction.level, pseudonyms(keyed_fingerprint) if redaction.pseudonyms else None)


def _texts(path: str) -> list[str]:
    turns = read_examples(expand_path(path), "utterance", with_trees=False)
    return [turn.utterance for turn in turns if turn.utterance.strip()]
