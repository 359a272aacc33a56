"""Whose a row is: names of units, which of them may be one person's, and who is asked where nobody has said it."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from datamodules.reading.columns import Row
from datamodules.reading.example import Unit
from doppel.errors import DataError
from doppel.files import kind_of

#: Whether names that are one but for their spelling are other people's (``exact``) or one person's (``folded``).
NameRule = Literal["exact", "folded"]

#: What tables say where they know nobody, in one case, without signs around it, and words apart by one blank.
_NOBODY = {"", "null", "nan", "none", "na", "n/a", "nat", "undefined", "\\n", "unknown", "unknown user", "unknownuser"}
_NOBODY |= {"anonymous", "anonymous user", "anonymoususer", "anon", "guest", "guest user", "nobody", "no user", "blank"}
_NOBODY |= {"missing", "unset", "not set", "not available", "unassigned", "unidentified", "deleted", "deleted user"}
#: The same as a number: below zero, or several zeros, as of an empty UUID. A single 0 may be a first user.
_NO_NUMBER = re.compile(r"-\d+|0[0 -]*0")
#: A unit with more than so many times the rows of the 99th percentile of the others may be a placeholder's.
_HEAVY = 10
#: Beside format characters (Cf), what nobody sees.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]")
#: A number as tables and people write it: with a sign, thousands apart, or as a decimal.
_NUMBER = re.compile(r"\+?(\d{1,3}(?:([,' ’])\d{3})(?:\2\d{3})*|\d+)(?:\.0+)?")
#: A telephone number with its country, in parts.
_TELEPHONE = re.compile(r"(?=(?:\D*\d){7})(?:\+|00)[\d ()/.-]*\d")


def unit_name(value: object) -> str:
    """Normalise the name of a unit: NFC and without outer blanks, so that two ways to type it are one person.

    Formal guarantees:
        Two names are one unit only where their letters are the same: nothing but blanks is taken away, and a name that
        is said to be missing, has nothing that is seen, stands for nobody (such as ``unknown``, ``guest``, an empty
        UUID), or has a control character, which tables and terminals leave out, is refused. Strangers in one unit
        would be clipped together, so that one of them could change a sum by more than a unit may.

    Raises:
        ValueError: It is empty or says so, as ``NULL`` does, has a control character, or is neither a text nor a whole
            number; the message does not quote it.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise ValueError(f"is {kind_of(value)}: give a text or a whole number")
    name = unicodedata.normalize("NFC", "" if value is None else str(value)).strip(" \t\r\n")
    if re.search(r"[\0-\x1f\x7f-\x9f]", name):
        raise ValueError("has a control character, so that two names may look like one: write it without")
    name = name.strip()
    said = re.sub(r"[\s_-]+", " ", _seen(name).casefold().strip("<>()[]{}#-._?*'\" "))
    if said in _NOBODY or _NO_NUMBER.fullmatch(name.strip("<>()[]{}'\" ")):
        raise ValueError(
            "is empty, or stands for nobody (such as NULL, n/a, unknown, guest, -1, an empty UUID), so that strangers "
            "would be one unit: give everybody a name, or drop the row"
        )
    return name


def folded_name(name: str) -> str:
    """Fold a name of :func:`unit_name`: what it is whatever program, keyboard or hand wrote it.

    Compatible forms of a character are one (NFKC), and so are upper and lower case; characters of no width do not
    count, nor how many blanks there are. A name that is a number is its digits, of any script, without a plus sign,
    leading zeros, signs between thousands and a fraction of zeros; a telephone number with its country also without
    signs between its parts. A function of this name alone, and of a folded name itself.
    """
    folded = name
    if not name.isascii():
        folded = _seen(unicodedata.normalize("NFKC", _seen(name)))
        folded = unicodedata.normalize("NFKC", folded.casefold())
        folded = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in folded)
    folded = " ".join(folded.casefold().split())
    if not folded[-1:].isdigit():
        return folded or name
    number = _NUMBER.fullmatch(folded)
    digits = number[1] if number else folded if _TELEPHONE.fullmatch(folded) else None
    return folded if digits is None else re.sub(r"\D", "", digits).lstrip("0") or "0"


def _seen(text: str) -> str:
    """A text without what nobody sees."""
    if text.isascii():
        return text
    return "".join(sign for sign in text if unicodedata.category(sign) != "Cf" and not _INVISIBLE.match(sign))


class UnitNames:
    """Reads the names of the units of one file, and asks where two of them may be one person's.

    Formal guarantees:
        A name is read by itself, as it is written (:func:`unit_name`) or folded (:func:`folded_name`), whichever the
        rule says for the whole file: a unit is the same whatever else is in the file. Without a rule names stay as they
        are written, and a file where two of them are one when folded is refused. That question depends on private data,
        as the one for what a unit is does: it is one bit, and the place of a line, told on the console to whoever holds
        the file, before anything is spent or released; no release depends on it, and the answer is a setting that
        holds for every row. How many there are, and what they are, is not told. Likewise, without a rule, a file where
        one name has more than ten times the rows of the 99th percentile of the others is refused at its end
        (:meth:`refuse_heavy`): one bit, without a place or a number.

    Args:
        rule: Whether names that are one when folded are one person's; None: nobody has said.
        setting: What a user sets the rule by, and how it takes a value.
    """

    def __init__(self, rule: NameRule | None, setting: str = "data.unit_names=") -> None:
        self.rule, self._setting = rule, setting
        self._first: dict[str, tuple[str, str]] = {}  # the first name of each when folded, and its place
        self._rows: Counter[str] = Counter()  # of each name

    def read(self, value: object, where: str, what: str) -> str:
        """Return the name of a unit, by the cell ``what`` at ``where``.

        Raises:
            ValueError: As for :func:`unit_name`.
            DataError: It may be that of an earlier row, and nobody has said; the message quotes neither.
        """
        name = unit_name(value)
        if self.rule == "exact":
            return name
        folded = folded_name(name)
        if self.rule == "folded":
            return folded
        self._rows[name] += 1
        first, place = self._first.setdefault(folded, (name, where))
        if first != name:
            raise DataError(
                f"{what} is that of {line_of(place)} in another spelling (case, width, "
                "unseen characters, or the form of a number), and nothing says whether that is one person: set "
                f"{self._setting}folded, so that such names are one unit, or {self._setting}exact, so that each "
                "spelling is another one",
                about=where,
            )
        return name

    def refuse_heavy(self, what: str, about: str) -> None:
        """Refuse a file that has been read, where a name may be a placeholder and nobody has said what names are.

        Args:
            what: The cell that names units.
            about: The file.

        Raises:
            DataError: One name has far more rows than the others; the message tells neither which nor how many.
        """
        *others, most = sorted(self._rows.values()) or [0]
        if others and most > _HEAVY * others[math.ceil(0.99 * len(others)) - 1]:
            raise DataError(
                f"one name in {what} has more than {_HEAVY} times the rows of nearly all others, as one has that "
                "stands for people who are not known, or for a program: strangers in one unit are not protected one by "
                "one. Drop these rows, or give each a name of its own; if every name is one person, set "
                f"{self._setting}exact (or folded)",
                about=about,
            )


class Units:
    """Says whose each row of a file is, and asks where nobody has said what is protected.

    Formal guarantees:
        The unit of a row is a function of this row alone: of its place, where every row is a unit of its own, or of
        the name that it bears, read as :class:`UnitNames` says. A file is refused of which a row bears no name; where
        two dialogues bear one, of which one more would change the other's unit; and, where nobody has said what is
        protected, where two rows seem to be somebody's. Whether it is depends on private data, and is told on the
        console alone, to whoever holds the file, before anything is spent; no name and no number is.

    Args:
        unit: What is protected; None: nobody has said.
        protected: What is protected then.
        rule: As of :class:`UnitNames`.
    """

    def __init__(self, unit: Unit | None, protected: Unit, rule: NameRule | None) -> None:
        self._asks, self._protected, self._names = unit is None, protected, UnitNames(rule)
        self._dialogues: dict[str, str] = {}  # the place of each dialogue that is a unit, by its name
        self._owners: dict[tuple[str, str], str] = {}  # that of the first row of each owner, by column and name
        self._column: str | None = None  # that names the units of a table

    def name(self, row: Row) -> str:
        """Return the unit of a row.

        Raises:
            DataError: It names nobody, or a dialogue that was there before.
        """
        column = row.layout.unit
        if self._protected == "utterance":  # every row is a unit of its own, whatever name it carries
            owner = row.cells.get(column)
            return str(row.number) if owner is None else f"{owner}/{row.number}"
        if column not in row.cells:
            raise DataError(
                f"no {column!r}, which says whose line this is ({row.listed}): name the column "
                "as data.columns.unit, add one to every line, or train with unit=utterance (each line protected by "
                "itself)",
                about=row.head,
            )
        try:
            name = self._names.read(row.cells[column], row.where, repr(column))
        except ValueError as error:
            raise DataError(f"{column!r} {error}", about=row.where) from None
        if not row.layout.is_dialogue:
            self._column = column if row.layout.messages is None else None
        elif (first := self._dialogues.setdefault(name, row.where)) != row.where:
            raise DataError(
                f"the {column} of {line_of(first)} again, so that two dialogues would be one unit: give every "
                "dialogue an id of its own, or drop the line",
                about=row.where,
            )
        return name

    def refuse_again(self, row: Row) -> None:
        """Refuse a row of whom, or of a dialogue of which, there was one before.

        Raises:
            DataError: There was, and nobody has said what is protected.
        """
        if not self._asks:
            return
        layout, of_talks = row.layout, row.layout.messages is not None
        if of_talks and self._protected == "user":  # who is named
            return
        owners = [name for name in layout.owners if not of_talks or name != layout.unit]
        before = named_before(self._owners, owners, row.cells, row.where)
        if before is None or (of_talks and before[1] == row.where):  # another turn of the same one
            return
        column, first = before
        together = "data.unit=dialogue" if layout.is_dialogue else "data.unit=user (or dialogue)"
        if not layout.is_dialogue and column != layout.unit:
            together = f"{together} and data.columns.unit={column}"
        alone = "utterance, so that each"
        if of_talks:
            together, alone = f"data.columns.unit={column}", "dialogue, so that each conversation"
        raise DataError(
            f"the same {column!r} as at {line_of(first)}, and nothing says what is protected: set {together}, so that "
            f"all requests of one name are protected together, or data.unit={alone} is protected by itself",
            about=row.where,
        )

    def refuse_heavy(self, path: str) -> None:
        """Refuse a table that has been read, as :meth:`UnitNames.refuse_heavy` does."""
        if self._column is not None and not self._dialogues:
            self._names.refuse_heavy(repr(self._column), path)


def named_before(
    places: dict[tuple[str, str], str], owners: Iterable[str], row: Mapping[str, object], where: str
) -> tuple[str, str] | None:
    """Note whose a row is; return the column by which it is somebody's of whom there was one before, and where that is.

    Args:
        places: Where the first row of each stands, by the column and the name, folded
            (:func:`folded_name`); this row's are added.
        owners: Columns that seem to say whose a row is.
        row: Its cells.
        where: Its place.
    """
    for column in owners:
        try:
            key = column, folded_name(unit_name(row.get(column)))
        except ValueError:  # it names nobody
            continue
        if key in places:
            return column, places[key]
        places[key] = where
    return None


def line_of(where: str) -> str:
    """Return the line of a place, for an error about another line; the place itself where it names none."""
    line = where.rpartition(":")[2]
    return f"line {line}" if line.isdigit() else where


def check_rule(rule: object) -> None:
    """Refuse what is no rule.

    Raises:
        DataError: It is none.
    """
    if rule not in (None, "exact", "folded"):
        raise DataError(f"unit_names is {rule!r}: give exact or folded, or leave it out")
