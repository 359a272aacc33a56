"""Public requests that taught a base: what is compared with the samples of its models leaves them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commands.run_folder.stage_config import StageConfig
from datamodules.reading.example import Example
from datamodules.training_rows import TrainingRows, first_units
from doppel.errors import DataError


def taught_by(data: Mapping[str, Any]) -> list[Example]:
    """Return the turns that a public training learns, by the arguments of its data module."""
    return first_units(TrainingRows.from_config(data).read(), data.get("limit_train_units"))


def without_taught(turns: Sequence[Example], taught: Path, reference: str) -> list[Example]:
    """Return the turns of a reference that a public training did not learn, nor others of the same words.

    Args:
        turns: All of them.
        taught: Folder of the training.
        reference: Their file, for an error.

    Raises:
        DataError: It learnt all of them.
        UserError: There is no training.
    """
    data = {**StageConfig.read(taught).data, "train_path": reference}  # which may be the copy that a run keeps
    learnt = {turn.utterance for turn in taught_by(data)}
    left = [turn for turn in turns if turn.utterance not in learnt]
    if not left:
        raise DataError(f"{taught} learnt all requests of {reference}, so none is left to compare with: give others")
    return left
