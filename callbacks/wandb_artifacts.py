"""Files of a pipeline as Weights & Biases artifacts, which tie its runs together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from wandb import Artifact
    from wandb.sdk.wandb_run import Run

Kind = Literal["model", "synthetic", "report", "page"]


def artifact(path: Path, kind: Kind, metadata: dict[str, Any] | None = None, upload: bool = False) -> Artifact:
    """The artifact of a file: its place and its checksum, or its content too.

    It is named PIPELINE-NAME after the folder of the pipeline, and its version follows from the content alone, so that
    the run which writes a file and the runs which read it speak of the same artifact.

    Args:
        path: A checkpoint PIPELINE/STAGE/checkpoints/….ckpt, or a file PIPELINE/NAME; a page is named after its kind.
        kind: What it is.
        metadata: Public facts about it.
        upload: Whether W&B gets the content; otherwise it stays where it is.
    """
    import wandb

    path = path.absolute()
    folder, name = (path.parents[2], path.parents[1].name) if kind == "model" else (path.parent, path.stem)
    name = kind if kind == "page" else name
    entry = f"{kind}{path.suffix}"
    made = wandb.Artifact(_safe(f"{folder.name}-{name}"), type=kind, metadata=metadata)
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


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)[:128]
