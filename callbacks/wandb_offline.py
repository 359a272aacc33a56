"""A Weights & Biases run that cannot begin online is kept in the run folder: no training waits for a network."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_warn

#: Seconds until W&B is taken as unreachable, for every step of a run may wait them; W&B itself waits 90.
_TIMEOUT = "30"


def begin(init: Callable[[], Any], settings: MutableMapping[str, Any]) -> Any:
    """Return the run that ``wandb.init`` begins: one offline where W&B cannot be reached, or takes no key.

    Args:
        init: Calls ``wandb.init``.
        settings: The arguments that it passes on; ``mode`` becomes ``offline`` where it fails online.

    Raises:
        wandb.Error: It fails offline, too.
    """
    import wandb

    os.environ.setdefault("WANDB_INIT_TIMEOUT", _TIMEOUT)
    try:
        return init()
    except wandb.Error as error:
        wandb.teardown()  # its service holds the id of the run that did not begin
        settings["mode"] = "offline"
        run = init()
        host = urlsplit(run.settings.base_url).netloc
        folder = os.path.dirname(run.settings.files_dir)
        rank_zero_warn(
            f"Weights & Biases at {host} begins no run ({' '.join(str(error).split())}): it is kept here, offline. "
            f"Send it where there are a key (wandb login) and a network: wandb sync {folder}"
        )
        return run


def may_be_offline(logger: WandbLogger) -> None:
    """Let a logger of any class derived from Lightning's :func:`begin` its run; Lightning asks ``experiment`` for it.

    The run begins where Lightning asks first, on the first rank alone, so it cannot be begun before and handed in.
    """

    class MayBeOffline(type(logger)):  # type: ignore[misc]
        """Of the same class, and with another way to begin."""

        @property
        def experiment(self) -> Any:
            """The run."""
            return begin(lambda: super(MayBeOffline, self).experiment, self._wandb_init)

    logger.__class__ = MayBeOffline
