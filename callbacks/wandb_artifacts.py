"""Files of a pipeline as Weights & Biases artifacts, which tie its runs together."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from doppel.run_folder import run_of

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from wandb import Artifact
    from wandb.sdk.wandb_run import Run

Kind = Literal["model", "synthetic", "report", "page"]


class harmless:
    """Logging, whose failure is told and stops nothing: what was trained, or sampled, was paid for."""

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Tell what failed, and go on."""
        if not isinstance(error, Exception):
            return False
        from lightning.pytorch.utilities import rank_zero_warn  # which the report, without a failure, has no time for

        rank_zero_warn(f"logging failed, and the run goes on without it: {type(error).__name__}: {error}")
        return True


def never_fatal(logger: Logger) -> None:
    """Let the calls of a logger that a training makes be :class:`harmless`."""

    def safe(call: Callable[..., None]) -> Callable[..., None]:
        @wraps(call)
        def calling(*args: Any, **options: Any) -> None:
            with harmless():
                call(*args, **options)

        return calling

    for name in ("log_metrics", "log_hyperparams", "log_graph", "save", "after_save_checkpoint", "finalize"):
        setattr(logger, name, safe(getattr(logger, name)))


def artifact(path: Path, kind: Kind, metadata: dict[str, Any] | None = None, upload: bool = False) -> Artifact:
    """Return the artifact of a file: its place and its checksum, or its content too.

    It is named RUN-NAME after the run folder and the file's place in it, and its version follows from the content
    alone, so that the runs which write and read a file speak of one artifact.

    Args:
        path: A checkpoint RUN/…/STAGE/checkpoints/….ckpt, which is named after its stage, or another file; a page is
            named after its kind.
        kind: What it is.
        metadata: Public facts about it.
        upload: Whether W&B gets the content; otherwise it stays where it is.
    """
    import wandb

    path, entry = path.absolute(), f"{kind}{path.suffix}"
    named = path.parents[1] if kind == "model" else path.with_suffix("")
    folder = run_of(named)
    name = f"{folder.name}-{kind if kind == 'page' else named.relative_to(folder)}"
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:128]  # W&B takes no other letters
    made = wandb.Artifact(name, type=kind, metadata=metadata)
    if upload:
        made.add_file(str(path.resolve()), name=entry, policy="immutable", skip_cache=True)
    else:
        made.add_reference(path.resolve().as_uri(), name=entry)
    return made


def use_artifact(run: Run, used: Artifact) -> None:
    """Note that a run has read a file; ``Run.use_artifact`` refuses to do so offline."""
    if run.offline:
        run._log_artifact(used, is_user_created=True, use_after_commit=True)
    else:
        run.use_artifact(used)
