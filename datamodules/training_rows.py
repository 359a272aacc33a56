"""The rows of a file that are trained on or counted, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datamodules.guards.selection import Selection
from datamodules.reading.columns import Columns, ReferenceColumns, unit_of
from datamodules.reading.example import Example, Field, Unit
from datamodules.reading.examples import read_examples
from datamodules.reading.files import content_digest, expand_path
from datamodules.reading.units import NameRule


@dataclass(frozen=True)
class TrainingRows:
    """The rows that a data module trains on, which histograms, marginals and votes count too.

    Attributes:
        path: The file, with its variables filled in.
        unit: What is protected; None: nobody has said it (:func:`~datamodules.reading.examples.read_examples`).
        columns: What its columns are called.
        selection: Which of its rows are used, and what is hidden of them.
        unit_names: Whether names of units that differ in spelling alone are one; None: nobody has said it.
    """

    path: str
    unit: Unit | None
    columns: Columns = Columns()
    selection: Selection = Selection()
    unit_names: NameRule | None = None

    @classmethod
    def from_config(cls, init_args: Mapping[str, Any]) -> TrainingRows:
        """Read the training rows of a data module's configuration; a unit that is not given is that of its columns, or
        of a public file an utterance.
        """
        is_public = bool(init_args.get("is_public"))
        columns = (ReferenceColumns if is_public else Columns).from_config(init_args)
        unit = unit_of(init_args.get("unit") or ("utterance" if is_public else None), columns)
        path = expand_path(init_args["train_path"])
        selection = Selection.from_config(init_args)
        return cls(path, unit, columns, selection, init_args.get("unit_names"))

    @property
    def fingerprint(self) -> str:
        """Digest of the content of the file and of what is selected from it, taken anew; never to be shown."""
        return content_digest(self.path, self.selection, self.columns)

    @property
    def data_file(self) -> str:
        """Digest of the whole file, whatever is selected from it; never to be shown."""
        return content_digest(self.path)

    def read(self, needs: Sequence[Field] = ()) -> list[Example]:
        """Read the rows, each with the fields that it needs.

        Raises:
            DataError: The file cannot be used, or nothing of it is selected.
        """
        examples = read_examples(self.path, self.unit, needs=needs, columns=self.columns, unit_names=self.unit_names)
        return self.selection.apply(examples, self.path, unit_of(self.unit, self.columns))


def first_units(rows: Sequence[Example], limit: int | None) -> list[Example]:
    """Return the rows of the first ``limit`` units, in the order in which units appear; all for None."""
    if limit is None:
        return list(rows)
    kept = set(list(dict.fromkeys(row.unit for row in rows))[:limit])
    return [row for row in rows if row.unit in kept]
