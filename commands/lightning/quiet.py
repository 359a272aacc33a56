"""Only our own messages, and true warnings, one line each."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

#: What a step of a run says stands below the run's line about it.
_INDENT = "   "
_OURS = Path(__file__).resolve().parents[2]
_LOGGERS = (
    "lightning.pytorch",
    "lightning.pytorch.utilities.rank_zero",
    "lightning.pytorch.trainer.connectors.checkpoint_connector",
    "lightning.fabric",
    "lightning.fabric.utilities.rank_zero",
    "lightning.fabric.utilities.seed",
    "lightning_utilities.core.rank_zero",
)
_IGNORED = (
    # Lightning 2.6 makes a `LeafSpec`, which torch 2.13 deprecates, for every batch and every step's output.
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    "The `srun` command is available on your system but is not used",
    "The number of training batches .* is smaller than the logging interval",  # the last step is logged anyway
    ".*does not have many workers which may be a bottleneck",
)


def silence(command: str) -> None:
    """Let a process that runs a command tell what this project says, and of other packages their warnings."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # reports of W&B's own errors, to its maker
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_ours)
    for text in _IGNORED:
        warnings.filterwarnings("ignore", text)
    if command != "fit":  # whoever only reads a model needs no callback of its training
        warnings.filterwarnings(
            "ignore", "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint"
        )
        warnings.filterwarnings("ignore", "The dirpath has changed from")
    if "DOPPEL_RUN" in os.environ:  # the run has said it before its first step
        warnings.filterwarnings("ignore", r"delta \S+ is large", UserWarning)
        for name in ("lightning.pytorch", "lightning.fabric"):
            for handler in logging.getLogger(name).handlers:
                handler.setFormatter(logging.Formatter(f"{_INDENT}%(message)s"))
    warnings.formatwarning = _one_line


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a record is a warning, or was logged by this project: ``rank_zero_info`` names the file that calls it."""
    path = Path(record.pathname)
    return record.levelno >= logging.WARNING or (path.is_relative_to(_OURS) and "site-packages" not in path.parts)


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning in one line; the source line that gave it says nothing to whoever runs a training."""
    indent = _INDENT if "DOPPEL_RUN" in os.environ else ""
    return f"{indent}warning: {' '.join(str(message).split())}\n"
