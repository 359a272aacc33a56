"""What keeps the weights that a training pays for: callbacks that no list takes away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from doppel.errors import UserError

CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"


def refuse_unkept(trainer: Any) -> None:
    """Refuse a training that would leave no ``RUN_DIR/checkpoints/last.ckpt`` to go on from, or to sample from.

    Formal guarantees:
        Every step is charged before it is taken. So a training that keeps nothing costs its whole ε for nothing, and
        its run could neither go on nor begin anew.

    Args:
        trainer: Arguments of the trainer, parsed or as a file has them.

    Raises:
        UserError: It would.
    """
    if trainer.get("enable_checkpointing") is False:
        raise UserError(
            "trainer.enable_checkpointing is false, and nothing would keep the trained weights: leave it out"
        )
    for arguments in _keepers([*listed(trainer.get("callbacks")), *listed(trainer.get("callbacks+"))]):
        if arguments.get("dirpath"):
            raise UserError(
                f"trainer.callbacks has a ModelCheckpoint of {arguments['dirpath']}, and what is trained is looked for "
                "in RUN_DIR/checkpoints: leave out its dirpath, or give it a monitor, which makes it a further one"
            )
        if arguments.get("save_weights_only"):
            raise UserError(
                "trainer.callbacks has a ModelCheckpoint with save_weights_only, from which no training goes on: leave "
                "it out"
            )


def with_needed(given: Any, default: Any) -> list[Any]:
    """Append callbacks to those that every training has, whatever list is given.

    One of a class that is there already takes its place. A ModelCheckpoint that monitors nothing is the one that writes
    ``last.ckpt``; one with a monitor is a further one.

    Args:
        given: What the user lists, parsed.
        default: Those of ``configs/trainer.yaml``, parsed.
    """
    for arguments in _keepers(listed(given)):
        is_usual = arguments.get("save_last") == "link" and arguments.get("every_n_epochs") == 1
        arguments["save_last"] = "link" if is_usual else True  # a link would lead to an older one again
        arguments["enable_version_counter"] = False  # a run folder has one last.ckpt, also after it was moved
    known = {callback.class_path for callback in listed(given)}
    if not any(_keepers(listed(given))):
        known.discard(CHECKPOINT)
    return [*(callback for callback in listed(default) if callback.class_path not in known), *listed(given)]


def listed(value: Any) -> list[Any]:
    """Return what Lightning takes as one thing, a list of them, or nothing, as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _keepers(callbacks: Iterable[Any]) -> Iterator[Any]:
    """Arguments of each ModelCheckpoint that monitors nothing."""
    for callback in callbacks:
        path, arguments = (
            (callback, {}) if isinstance(callback, str) else (callback["class_path"], callback.get("init_args"))
        )
        if path.rpartition(".")[2] == "ModelCheckpoint" and not (arguments or {}).get("monitor"):
            yield arguments or {}
