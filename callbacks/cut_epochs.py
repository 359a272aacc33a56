"""A training that was stopped within an epoch, by ``max_steps`` or ``max_time``, goes on within it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def go_on_within(loops: Mapping[str, Any], num_steps: int, steps_per_epoch: int) -> None:
    """Count as epochs, in what Lightning has saved of its fit loop, those whose steps were taken.

    Lightning counts an epoch that a limit has cut as one that is over: a training that goes on without the limit would
    leave out the steps that the epoch lacks, which are planned, and whose noise is calibrated for them. What a
    preemption saves within an epoch is not touched.

    Formal guarantees:
        The batch of a step is a function of the step (:mod:`datamodules.batches.loader`), and the last step is set
        apart: no step is repeated, and none is added.

    Args:
        loops: ``checkpoint["loops"]["fit_loop"]``, which is changed in place.
        num_steps: Steps that the weights have.
        steps_per_epoch: Steps of an epoch.
    """
    epochs, within = divmod(num_steps, steps_per_epoch)
    progress = loops["epoch_progress"]
    if progress["current"]["processed"] <= epochs:
        return
    for own in progress.values():
        own.update(dict.fromkeys(("processed", "completed"), epochs))
        own.update(dict.fromkeys(("ready", "started"), epochs + (within > 0)))
    batches = loops["epoch_loop.batch_progress"]
    batches["current"].update(dict.fromkeys(batches["current"], within))
    batches["is_last_batch"] = False
