"""What is worth knowing of a file before anything is trained on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from datamodules.reading.columns import Columns, unit_of
from datamodules.reading.embedded import is_embedded
from datamodules.reading.example import Example, Field, Unit
from datamodules.reading.examples import iter_examples
from datamodules.reading.files import expand_path
from datamodules.reading.units import NameRule
from doppel.compressed import ending
from doppel.errors import DataError
from doppel.privacy.accounting import default_delta
from doppel.privacy.spec import note_on_delta


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        notes: Sentences for the console.
        num_units: Units of the file, N if all of them are trained on.
        has_labels: Whether a row has a label of the public list, where labels are asked for.
    """

    notes: list[str]
    num_units: int
    has_labels: bool


def check(
    path: str,
    unit: Unit | None = "utterance",
    needs: Sequence[Field] = (),
    columns: Columns | None = None,
    is_public: bool = False,
    is_over_long: Callable[[Example], bool] | None = None,
    labels: Collection[str] | None = None,
    delta: float | None = None,
    is_protected: bool = False,
    truncate: bool = False,
    unit_names: NameRule | None = None,
) -> Checked:
    """Read a file as training will, and say what it does with rows that teach nothing.

    Formal guarantees:
        What is said of a private file is the place of the first row of a kind. That is meant for the console of whoever
        holds the file and starts the run, as every error is: it is neither logged nor written, and no stage of the run
        learns of it, nor of whether all rows are too long, or none has a label of the list, which is refused. How many
        such rows there are is said of public files alone. What becomes of a row is decided by this row: one
        without text is no turn; one that is too long for the model, or whose label is not in the public list, keeps its
        place and contributes zero (:class:`~datamodules.batches.encoded.EncodedExamples`), or nothing to the histogram
        of labels.

    Args:
        path: As in a configuration; ``$VARIABLE`` is filled in.
        unit: As for :func:`~datamodules.reading.examples.read_examples`; likewise ``needs`` and ``columns``.
        is_public: Whether counts may be said.
        is_over_long: Whether the model takes no text of this length; None asks for nothing.
        labels: The public list of labels, if the run has one.
        delta: Of the guarantee; None: min(1/(N ln N), 1e-5).
        is_protected: Whether a guarantee protects this file; then it is said where rows may be protected by themselves
            that are one person's, and where N, which is public, makes δ large.
        truncate: Whether utterances that are too long are cut.
        unit_names: As for :func:`~datamodules.reading.examples.read_examples`.

    Returns:
        What is to be said, and the number of units.

    Raises:
        DataError: The file cannot be used; the message names the line.
    """
    path, protected = expand_path(path), unit_of(unit, columns or Columns())
    places_of: dict[str, list[str]] = {"empty": [], "long": [], "unknown": []}
    num_turns, owner, units, fits, has_labels = 0, None, set[str](), is_over_long is None, labels is None
    for turn in iter_examples(path, unit, needs=needs, columns=columns, unit_names=unit_names):
        if turn.is_blank:
            places_of["empty"].append(turn.where)
            continue
        num_turns += 1
        owner = owner or turn.owner
        units.add(turn.unit if protected != "utterance" else str(num_turns))
        if is_over_long is not None and (is_public or not fits or not places_of["long"]):
            is_long = is_over_long(turn)
            fits = fits or not is_long
            places_of["long"] += [turn.where] if is_long else []
        if labels is not None and turn.label is not None:
            has_labels |= (is_known := turn.label in labels)
            places_of["unknown"] += [] if is_known else [turn.where]
    if not num_turns:
        raise DataError(f"{path} holds no request: give a file with at least one")
    if not (fits or truncate or is_public):
        raise DataError(
            "no row fits model.max_length, so there is nothing to learn from: raise it, or let data.truncate=true cut "
            "utterances",
            about=path,
        )
    what = {
        "empty": "has no text; such rows are left out",
        "long": "is longer than the model's max_length; "
        + (
            "of such rows the utterance is cut, as data.truncate asks for"
            if truncate
            else "such rows teach nothing: shorten them, raise it, or let data.truncate=true cut their utterances"
        ),
        "unknown": "has a label that the public list lacks; none of it will be sampled: add it there if it is public",
    }
    count = {name: f" ({len(places)} of {num_turns} rows)" if is_public else "" for name, places in places_of.items()}
    notes = [f"{places[0]} {what[name]}{count[name]}" for name, places in places_of.items() if places]
    if is_protected and unit == "utterance" and owner is not None:
        notes.append(
            f"{path} says whose a request is ({owner}), and data.unit is utterance: each is protected by itself, and "
            "whoever has k of them by about k times the ε; data.unit=user or dialogue protects all of one together"
        )
    has_columns = not is_embedded(path) and ending(path) != ".txt"
    if is_protected and has_columns and unit is None and protected == "utterance" and owner is None:
        notes.append(
            f"{path}: each row is protected by itself; if a column says whose a row is, name it: data.unit=user "
            "data.columns.unit=COLUMN, else data.unit=utterance says so"
        )
    if is_protected and len(units) > 1:
        notes += filter(None, [note_on_delta(delta or default_delta(len(units)), len(units))])
    return Checked(notes, len(units), has_labels)
