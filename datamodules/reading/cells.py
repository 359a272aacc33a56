"""What the cells of rows say becomes examples; an error names the cell and never quotes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from datamodules.reading.attribute_codes import AttributeCodes, control_code
from datamodules.reading.columns import Row
from datamodules.reading.example import Example, Field
from datamodules.reading.units import Units
from doppel.errors import DataError
from doppel.files import kind_of
from doppel.lispress import first_error
from doppel.tables.schema import OTHER, as_word

#: What to do about an example without a field that the model needs.
_WAYS_OUT = {
    "utterance": "add one, or drop the line",
    "parse": "add the tree, drop the line, let a semantic parser write the trees, or do without: systems=[labels] "
    "learns from labels, systems=[one_stage] from utterances alone",
    "label": "add one, drop the line, or train a model without labels (systems=[one_stage])",
}


def examples_of(
    rows: Iterable[Row], codes: AttributeCodes | None, units: Units, with_trees: bool, needs: Sequence[Field], path: str
) -> Iterator[Example]:
    """Yield the example of each row of a file, also of one without text.

    Args:
        rows: Of the file.
        codes: How its attributes are written; None: labels are those of its columns.
        units: Says whose a row is.
        with_trees: Whether rows are read with their trees.
        needs: Fields that every example must have; one without text only if trees are not read.
        path: The file, for errors.

    Raises:
        DataError: A cell is none of its kind, a field that is needed is missing, or the units of the file may not be
            what they seem.
    """
    reads_trees = with_trees or (codes is not None and codes.schema.needs_trees)
    reads_labels = codes is None or codes.schema.needs_label
    for row in rows:
        cells, layout, at = row.cells, row.layout, row.at
        utterance = "" if cells[layout.text] is None else text_of(cells, layout.text, at)
        parse = tree_of(cells, layout.parse, at) if reads_trees else None
        label = label_of({name: cells.get(name) for name in layout.labels}, at) if reads_labels else None
        if codes is not None:
            places = codes.schema.codes(cells, at, utterance, parse, label)
            label = codes.write(places)
        owner = layout.owners[0] if layout.owners else None
        example = Example(utterance, parse, units.name(row), label, row.where, owner)
        if not (with_trees and example.is_blank):
            units.refuse_again(row)
            for field in needs:
                if getattr(example, field) is None:
                    own = {"utterance": (layout.text,), "parse": (layout.parse,), "label": layout.labels}[field]
                    wanted = " and ".join(repr(name) for name in own if name is not None) or repr(field)
                    has_column = bool(cells.keys() & set(own))
                    named = "" if has_column else f"name its column as data.columns.{field}, "
                    raise DataError(
                        f"no {wanted}, which is needed here: {named}{_WAYS_OUT[field]} ({row.listed})",
                        about=row.where if has_column else row.head,
                    )
        yield example
    units.refuse_heavy(path)


def label_of(cells: Mapping[str, object], where: str) -> str | None:
    """Return the label that the cells of some columns make; None where one of them is empty.

    Raises:
        DataError: One is no text or number.
    """
    words: dict[str, str] = {}
    for name, cell in cells.items():
        if not isinstance(cell, str | int | float | None):
            raise DataError(f"{name!r} is {kind_of(cell)}: a label must be a text or a number", about=where)
        words[name] = as_word(cell)
        if words[name] == OTHER and str(cell).strip() != OTHER:
            return None
    return control_code(words) if len(words) > 1 else next(iter(words.values()), None)


def text_of(record: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text under a key.

    Raises:
        DataError: There is none.
    """
    value = record.get(key)
    if not isinstance(value, str):
        what = f"no {key!r}" if value is None else f"{key!r} is {kind_of(value)}, not a text"
        raise DataError(f"{what}: every record needs {key!r} as a text", about=where)
    return value


def tree_of(record: Mapping[str, Any], key: str | None, where: str) -> str | None:
    """Return the Lispress tree under a key; None where there is none.

    Raises:
        DataError: It is none; the message of its parser may quote it, which is private, so only the position is said.
    """
    if key is None or record.get(key) is None:
        return None
    text = text_of(record, key, where)
    error = first_error(text)
    if error is None and "(" in text:
        return text
    wrong = (
        "a word alone is no parse tree" if error is None else f"unreadable parse tree at character {error.position + 1}"
    )
    raise DataError(
        f"{wrong}: correct the tree or drop the line; if {key!r} holds labels, set "
        f"data.columns.label={key} and systems=[labels]",
        about=where,
    )
