"""Which column of a file holds what; its records become rows whose cells are known."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from datamodules.reading.attribute_codes import FILL, AttributeCodes
from datamodules.reading.embedded import is_embedded
from datamodules.reading.example import Unit
from datamodules.reading.files import expand_path
from datamodules.reading.records import Record, head_of
from doppel.compressed import ending
from doppel.errors import DataError, UserError
from doppel.tables.schema import Schema

#: What a column is called unless ``Columns`` says otherwise; the first that there is counts.
USUAL = {"text": ("utterance", "text"), "label": ("label",), "unit": ("unit",), "parse": ("parse",)}

#: What columns are called that say whose a row is, in lower case and without signs, whatever ``Columns`` says.
_OWNER = re.compile(
    "(unit|user|author|customer|client|patient|speaker|member|account|person|caller|email|phone|(device|visitor)(?=.)"
    "|dialog|dialogue|conversation|session|thread|chat)(id|ids|name|key|no|number|hash|uuid|address)?"
)


@dataclass(frozen=True)
class Layout:
    """What the columns of rows with one header hold.

    Attributes:
        text: The column of what was said, whether or not the header has it.
        parse: The column of the tree, likewise; None where it is one of something else.
        labels: The columns of the label, likewise.
        unit: The column that names the unit, likewise.
        owners: The columns of the header that say, or seem to say, whose a row is.
        messages: The column of a conversation's messages; None where these are no conversations.
        is_dialogue: Whether these are no rows, but published dialogues.
        columns: What the columns of the file are called.
    """

    text: str
    parse: str | None
    labels: tuple[str, ...]
    unit: str
    owners: tuple[str, ...]
    messages: str | None
    is_dialogue: bool
    columns: Columns


class Row(NamedTuple):
    """A row of a file, or a turn of a dialogue, and what its cells hold.

    Attributes:
        where: The place of its record, such as ``reviews.csv:7``.
        at: Its own place, for errors: the turn of a dialogue is told, too.
        cells: By column.
        layout: What they hold.
        number: Tells it from the other rows of its file, or the other turns of its dialogue.
    """

    where: str
    at: str
    cells: Mapping[str, Any]
    layout: Layout
    number: object

    @property
    def head(self) -> str:
        """The place of the line that names its columns."""
        return head_of(self.where)

    @property
    def listed(self) -> str:
        """The columns that it has, for an error message; see :func:`listed`."""
        return listed(self.cells, self.layout.columns)


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table, or of the keys of JSON lines. Published dialogues and plain text have their own.

    A column that is named here for one thing is not read as another: ``label: parse`` says that there are no trees.

    Attributes:
        text: The request; ``utterance`` or ``text`` if left out.
        label: The label, or a list of columns that make one together
            (:func:`~datamodules.reading.attribute_codes.control_code`); ``label`` if left out.
        unit: Name of the dialogue or user; ``unit`` if left out.
        parse: The Lispress tree; ``parse`` if left out.
        messages: A conversation in OpenAI's form, a list of ``{"role": …, "content": …}``, whose user's messages are
            the requests (:func:`~datamodules.reading.conversations.user_turns`); none if left out.
        attributes: YAML file of attributes with their public values, as ``python cli.py metadata --schema`` takes it.
            They then make the label of the row (:mod:`datamodules.reading.attribute_codes`).
    """

    text: str | None = None
    label: str | list[str] | None = None
    unit: str | None = None
    parse: str | None = None
    messages: str | None = None
    attributes: str | None = None

    @classmethod
    def from_config(cls, init_args: Mapping[str, Any]) -> Self:
        """Read the columns of a data module from its arguments in a configuration.

        Raises:
            DataError: They are not these fields, or a value is no name.
        """
        config = init_args.get("columns") or {}
        if isinstance(config, cls):
            return config
        known = {field.name for field in fields(cls)}
        if not isinstance(config, Mapping) or not config.keys() <= known:
            blank = ", with a blank behind each colon" if any(":" in str(name) for name in config) else ""
            raise DataError(f"data.columns is {config!r}: give names for {', '.join(sorted(known))}{blank}")
        for name, value in config.items():
            values = value if name == "label" and isinstance(value, list) and value else [value]
            if not all(isinstance(v, str) for v in values) and value is not None:
                more = ", or a list of them" if name == "label" else ""
                raise DataError(f"data.columns.{name} is {value!r}: give the name of a column{more}")
        if config.get("messages") is not None and config.get("text") is not None:
            raise DataError("data.columns names messages, whose users say the text, and text: leave one of them out")
        return cls(**config)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, without usual names."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @property
    def key(self) -> str:
        """Names the columns in fingerprints, with the content of the attributes' file in place of its path; empty where
        all are the usual ones."""
        names = self.as_dict()
        schema = Path(expand_path(self.attributes or ""))
        if schema.is_file():
            names["attributes"] = hashlib.sha256(schema.read_bytes()).hexdigest()
        return f"columns={json.dumps(names, sort_keys=True)}" if names else ""

    @cached_property
    def named(self) -> dict[str, list[str]]:
        """The columns that are named here, by what they hold."""
        given = {name: value for name, value in self.as_dict().items() if name in USUAL}
        return {name: [v] if isinstance(v, str) else list(v) for name, v in given.items()}

    def layout(self, names: Collection[str]) -> Layout:
        """Resolve the columns of rows with these names: once for a header, not for each row."""
        text, parse, unit = (next(iter(self.of(what, names)), None) for what in ("text", "parse", "unit"))
        is_dialogue = self.is_dialogue(names)
        owners = ["dialogue_id"] if is_dialogue else self.owners(names)
        labels = tuple(self.of("label", names))
        return Layout(text or "text", parse, labels, unit or "unit", tuple(owners), self.messages, is_dialogue, self)

    def is_dialogue(self, names: Collection[str]) -> bool:
        """Return whether records with these names are published dialogues, and no rows."""
        return "turns" in names and not set(self.of("text", names)).intersection(names)

    def in_file(self, records: Iterator[Record]) -> tuple[Columns, Iterator[Record]]:
        """Return the columns that a file is read by, and its records: lines of text and the grammar have their own.

        Raises:
            DataError: These say whose a record is, and the file cannot: each line would be protected by itself.
        """
        first = list(islice(records, 1))
        if any(_has_own_columns(where, record) for where, record in first):
            if named := [name for name in ("messages", "unit") if getattr(self, name) is not None]:
                raise DataError(
                    f"it has no columns, and data.columns names {' and '.join(named)}, so that a {unit_of(None, self)} "
                    "would be protected in name alone: leave them out, or give a file that has them",
                    about=first[0][0].rpartition(":")[0],
                )
            return Columns(attributes=self.attributes), chain(first, records)
        return self, chain(first, records)

    def of(self, what: str, names: Collection[str]) -> list[str]:
        """Return the columns of a text, label, unit or parse, whether or not the ``names`` of the file hold them."""
        named = self.named
        if what in named:
            return named[what]
        others = {name for columns in named.values() for name in columns}
        usual = [name for name in USUAL[what] if name not in others]
        return [next((name for name in usual if name in names), (usual or USUAL[what])[0])] if usual else []

    def owners(self, names: Collection[str]) -> list[str]:
        """Return those of a file's columns that say, or seem to say, whose a row is."""
        own = self.of("unit", names)
        others = {name for what, columns in self.named.items() if what != "unit" for name in columns}
        plain = {name: re.sub(r"[\W_]+", "", name).lower() for name in names if name not in others}
        return [name for name in plain if name in own or _OWNER.fullmatch(plain[name])]


class ReferenceColumns(Columns):
    """Columns of the private file, for a file that is compared with it and may be of another form.

    They are read by these names where the file has them, else by the usual ones.
    """

    def in_file(self, records: Iterator[Record]) -> tuple[Columns, Iterator[Record]]:
        """Return these columns as far as a file has them, and its records; attributes if it has all that are read."""
        found = list(records)  # any row may have a column that the first lacks
        names, kept = {name for _, record in found for name in record}, set[str]()
        if not any(_has_own_columns(where, record) for where, record in found[:1]):
            kept = {what for what, columns in self.named.items() if set(columns) <= names}
            kept |= {"messages"} if self.messages in names else set()
        codes = codes_of(self)
        if codes is not None and all(c.source is None or c.source in names for c in codes.schema.columns):
            kept.add("attributes")
        return Columns(**{what: value for what, value in self.as_dict().items() if what in kept}), iter(found)


def _has_own_columns(where: str, record: Mapping[str, Any]) -> bool:
    """Whether a record is a line of text, or of the embedded grammar, whose columns nobody names."""
    return is_embedded(where) or (ending(where.rpartition(":")[0]) == ".txt" and record.keys() == {"text"})


def rows_of(records: Iterable[Record], columns: Columns, codes: AttributeCodes | None, path: str) -> Iterator[Row]:
    """Yield the records of a file with what their columns hold, which is asked once for each header.

    Args:
        records: Of the file.
        columns: By which it is read (:meth:`Columns.in_file`).
        codes: How its attributes are written; None: it has none.
        path: The file, for errors.

    Raises:
        DataError: A record has no text; or all are read, and none has a column that is named, or that an attribute is
            read of.
    """
    layouts: dict[tuple[str, ...], Layout] = {}
    first = 0 if is_embedded(path) else 1  # turns of the grammar have always been numbered from 0
    for number, (where, record) in enumerate(records, first):
        header = tuple(record)
        layout = layouts.get(header)
        if layout is None:
            layout = layouts[header] = columns.layout(header)
        row = Row(where, where, record, layout, number)
        if layout.text not in record and layout.messages is None and not layout.is_dialogue:
            mend = "name the column of what was said as data.columns.text"
            if isinstance(record.get("messages"), list):
                mend = "of conversations in OpenAI's form give data.columns.messages=messages"
            raise DataError(f"no {layout.text!r} ({row.listed}): {mend}", about=row.head)
        yield row
    present = {name: None for header in layouts for name in header}
    missing = sorted({name for names in columns.named.values() for name in names}.difference(present))
    if missing and present and not any(layout.is_dialogue for layout in layouts.values()):
        raise DataError(
            f"no row has {' or '.join(map(repr, missing))}, which data.columns names: name a column that "
            f"there is ({listed(present, columns)})",
            about=path,
        )
    for attribute in codes.schema.columns if codes is not None and present else ():
        if attribute.source is not None and attribute.source not in present:
            way = FILL if attribute.made else f": name its column with `of`, or take it out of {columns.attributes}"
            raise DataError(
                f"no row has a column {attribute.source!r}, of which the attribute {attribute.name!r} is read "
                f"({listed(present, columns)}){way}",
                about=path,
            )


def codes_of(columns: Columns | None) -> AttributeCodes | None:
    """Return the codes of a file's attributes, where its columns name a schema; None where they do not.

    Raises:
        DataError: The schema cannot be read.
    """
    if columns is None or columns.attributes is None:
        return None
    path = Path(expand_path(columns.attributes))
    return _read(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> AttributeCodes:
    return AttributeCodes(Schema.read(path), path)


def check_schema(path: str) -> AttributeCodes:
    """Read the attributes of a file of public values.

    Raises:
        UserError: It is not there, or says something else.
    """
    if not Path(expand_path(path)).is_file():
        raise UserError(
            f"attributes.schema is {path}, and there is no such file: give a YAML file of attributes with their public "
            "values, such as configs/data/yelp_attributes.yaml"
        )
    found = codes_of(Columns(attributes=path))
    assert found is not None
    return found


def reference_columns(columns: Columns | None) -> ReferenceColumns | None:
    """Return the columns of a file that is compared with the private one; None for the usual names."""
    return None if columns is None else ReferenceColumns(**columns.as_dict())


def unit_of(unit: Unit | None, columns: Columns) -> Unit:
    """Return what is protected; where nobody has said it, an utterance, and of conversations a user whose column is
    named, or else a conversation.

    Whoever reads the file where nobody has said it refuses one in which this may be less than a person
    (:func:`~datamodules.reading.examples.read_examples`).
    """
    if unit is not None:
        return unit
    if columns.messages is None:
        return "utterance"
    return "dialogue" if columns.unit is None else "user"


def check_unit(unit: Unit | None, columns: Columns) -> None:
    """Refuse a column of units where a unit is one utterance: an ε for rows where one for people was meant.

    Raises:
        DataError: There is one.
    """
    if columns.unit is not None and unit_of(unit, columns) == "utterance":
        raise DataError(
            f"data.columns.unit is {columns.unit}, but data.unit is utterance, so that each row would be protected by "
            "itself: set data.unit=user (or dialogue), or leave columns.unit out"
        )


def listed(names: Collection[str], columns: Columns) -> str:
    """List the columns there are, for an error message.

    The first line of a table without a header is somebody's row, and its cells may be single words like any name. So
    nothing of it is quoted but what the configuration or Doppel itself calls a column.
    """
    known = {name for usual in USUAL.values() for name in usual}.union(*columns.named.values())
    shown = [name for name in names if name in known]
    hidden = "" if len(shown) == len(names) else "; others are not shown, for a first line may be somebody's row"
    return f"known of its {len(names)} columns: {', '.join(shown) or 'none'}{hidden}"
