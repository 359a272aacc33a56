"""Which column of a file holds what."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from datamodules.reading.example import Unit
from doppel.errors import DataError

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
        is_dialogue: Whether these are no rows, but published dialogues.
    """

    text: str
    parse: str | None
    labels: tuple[str, ...]
    unit: str
    owners: tuple[str, ...]
    is_dialogue: bool


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
        schema = Path(os.path.expandvars(self.attributes or "")).expanduser()
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
        is_dialogue = "turns" in names and (text is None or text not in names)
        owners = ["dialogue_id"] if is_dialogue else self.owners(names)
        return Layout(text or "text", parse, tuple(self.of("label", names)), unit or "unit", tuple(owners), is_dialogue)

    def in_file(self, names: Collection[str]) -> Columns:
        """Return the columns that a file with these names is read by."""
        return self

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

    def in_file(self, names: Collection[str]) -> Columns:
        """Return these columns as far as a file has them."""
        kept = {what for what, columns in self.named.items() if set(columns) <= set(names)}
        kept |= {"messages"} if self.messages in names else set()
        return Columns(**{what: value for what, value in self.as_dict().items() if what in kept | {"attributes"}})


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
