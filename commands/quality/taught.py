"""Public requests that taught a base: what is compared with the samples of its models leaves them out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from commands.run_folder.stage_config import StageConfig
from datamodules.reading.example import Example
from datamodules.training_rows import TrainingRows, first_units
from doppel.errors import DataError


def taught_by(config: StageConfig) -> list[Example]:
    """Return the turns that a public training learns, by its configuration."""
    return first_units(TrainingRows.from_config(config.data).read(), config.data.get("limit_train_units"))


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
    learnt = {turn.utterance for turn in taught_by(StageConfig.read(taught))}
    left = [turn for turn in turns if turn.utterance not in learnt]
    if not left:
        raise DataError(f"{taught} learnt all requests of {reference}, so none is left to compare with: give others")
    return left
