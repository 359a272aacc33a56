"""Messages of other packages that say nothing to whoever runs a training, each silenced by its own text."""

from __future__ import annotations

import logging
import warnings

_INFOS = (
    "GPU available: False",
    "TPU available: False",
    "litlogger",  # advertises another package
)


def silence(command: str) -> None:
    """Filter those messages in this process, which runs a command."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(_says_something)
    # Lightning 2.6 makes a `LeafSpec`, which torch 2.13 deprecates, for every batch and every step's output.
    warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
    warnings.filterwarnings("ignore", "The `srun` command is available on your system but is not used")
    if command != "fit":  # whoever only reads a model needs no callback of its training
        warnings.filterwarnings(
            "ignore", "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint"
        )
        warnings.filterwarnings("ignore", "The dirpath has changed from")


def _says_something(record: logging.LogRecord) -> bool:
    return not any(text in record.getMessage() for text in _INFOS)
