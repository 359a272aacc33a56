"""Models that a checkout makes and does not ship."""

from __future__ import annotations

from pathlib import Path

#: SmolLM2-135M, which gives the cross-entropy per word of samples and may be a base model.
LARGER = "models/smollm2-135m"
#: Last part of a model's path → the command that makes it.
MADE_BY = {"smollm2-135m": "make base-135m", "smollm2-135m-requests": "make base-135m"}


def how_to_make(name: str | Path, root: Path = Path()) -> str | None:
    """Say how to make a model whose folder is missing; None if it is there, or nothing makes it.

    Args:
        name: Folder of the model.
        root: Where relative names begin.
    """
    command = MADE_BY.get(Path(name).name)
    return None if command is None or (root / name).is_dir() else f"there is no folder {name} yet: give `{command}`"
