"""The trainer's loggers as a module and the callbacks of a private run see them: figures are closed by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger

from datamodules.private_data import reads_public
from doppel.errors import UserError
from lightning_modules.training.logical_batch_module import LogicalBatchModule
from lightning_modules.training.step_policy import ClosedStep

#: Methods of a logger that take no figure.
_OPEN = ("save", "finalize", "after_save_checkpoint", "log_graph")
#: Hooks before the first row is read, in which settings are logged; Lightning logs those of a module outside of hooks.
_BEFORE_ROWS = (None, "setup", "configure_model", "on_fit_start")


class ClosedLogger:
    """A logger that writes what its run lets out, and settings; of all else nothing.

    Formal guarantees:
        ``log_metrics`` lets a figure through under a name that
        :meth:`~lightning_modules.training.logical_batch_module.LogicalBatchModule.log_metric` has let out, and
        learning rates (``lr-…``, of Lightning's monitor). Another one is dropped, with a warning, or is named
        ``private/…`` where that is asked for. ``log_hyperparams`` takes settings until rows are read. ``experiment`` is
        what Lightning gives on the ranks that do not log: it takes every call and does nothing; any other method, such
        as ``log_image``, likewise.

    Args:
        logger: What it stands for, also for ``isinstance``.
        module: What says which figures are let out.
    """

    def __init__(self, logger: Logger, module: LogicalBatchModule) -> None:
        self.opened = logger
        self._module = module

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        """The logger's, for Lightning looks for loggers by their classes."""
        return type(self.opened)

    @property
    def experiment(self) -> _Nothing:
        """What does nothing; the logger's own is made, for that begins its files."""
        _ = getattr(self.opened, "experiment", None)
        return _Nothing(self._module)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Write the figures that are let out."""
        opened: dict[str, Any] = {}
        for name, value in metrics.items():
            known = name.split("/dataloader_idx_")[0]
            is_public = {known, known.removesuffix("_step"), known.removesuffix("_epoch")} & self._module.let_out
            if is_public or name == "epoch" or name.startswith("lr-"):
                opened[name] = value
            elif (private_name := self._module.closed_name(name, "logger.log_metrics")) is not None:
                opened[private_name] = value
        if opened:
            self.opened.log_metrics(opened, step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Write settings; what a training has learnt is none."""
        if self._module._current_fx_name in _BEFORE_ROWS:
            self.opened.log_hyperparams(params, *args, **kwargs)
        else:
            self._module.say_closed("logger.log_hyperparams")

    def __getattr__(self, name: str) -> Any:
        """What the logger has, less its other methods."""
        value = getattr(self.opened, name)
        return value if not callable(value) or name in _OPEN or name.startswith("_") else _nothing(self._module, name)


class _Nothing:
    """Takes whatever an experiment takes."""

    def __init__(self, module: LogicalBatchModule) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing(self._module, f"experiment.{name}")

    def __getitem__(self, index: object) -> _Nothing:
        return self

    def __setitem__(self, index: object, value: object) -> None:
        self._module.say_closed("logger.experiment")


def _nothing(module: LogicalBatchModule, name: str) -> Callable[..., None]:
    return lambda *args, **kwargs: module.say_closed(f"logger.{name}")


def close_figures(
    trainer: pl.Trainer, module: pl.LightningModule, data: object, verb: str, log_private_diagnostics: bool = False
) -> None:
    """Let a module, and the loggers as it and its callbacks see them, tell what is declared public and nothing else.

    Args:
        trainer: Whose loggers :func:`open_loggers` gives back.
        module: The module.
        data: Says what is public.
        verb: ``fit``, ``validate`` or ``test``.
        log_private_diagnostics: Whether other figures may leave as ``private/…``.

    Raises:
        UserError: The module logs in ways that cannot be closed.
    """
    is_public = reads_public(data, verb)
    if isinstance(module, LogicalBatchModule):
        module.step_policy = ClosedStep(log_private_diagnostics)
        if not is_public:
            if isinstance(data, pl.LightningDataModule):
                data._log_hyperparams = False  # they may be the rows that it was given
            trainer.loggers = [cast(Logger, ClosedLogger(opened(logger), module)) for logger in trainer.loggers]
    elif not is_public:
        raise UserError(
            "would log figures of data that nobody declared public: derive it from lightning_modules.training."
            "logical_batch_module.LogicalBatchModule, or declare the data public, or give --not_private=true",
            about=type(module).__name__,
        )


def open_loggers(trainer: pl.Trainer) -> None:
    """Put the loggers back."""
    trainer.loggers = [opened(logger) for logger in trainer.loggers]


def opened(logger: Logger) -> Logger:
    """Return a logger itself: for code of this project, which logs what ε covers."""
    return logger.opened if type(logger) is ClosedLogger else logger
