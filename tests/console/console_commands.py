"""Commands that the tests call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveInt

from doppel.errors import UserError

seen: dict[str, object] = {}


@dataclass(frozen=True)
class Limits:
    """Limits of a thing.

    Args:
        depth: How deep it may be.
    """

    depth: int = 3


def measure(
    runs: list[Path],
    *,
    num_samples: PositiveInt,
    batch_size: PositiveInt | None = None,
    epochs: list[float] | None = None,
    accountant: Literal["pld", "rdp"] = "pld",
    out: Path | None = None,
    limits: Limits = Limits(),
    dry_run: bool = False,
) -> int | None:
    """Measure some runs.

    A second paragraph
      with an indented line.

    Args:
        runs: Folders of the runs.
        num_samples: How many samples to
            compare.
        batch_size: How many at once.
        epochs: Epochs of each stage.
        accountant: Which bound.
        out: Where to write.
        limits: The limits.
        dry_run: Do nothing.
    """
    seen.clear()
    seen.update(locals())
    return 3 if dry_run else None


def words(argv: list[str]) -> None:
    """Keep the words."""
    seen["argv"] = argv


def refuse(name: str = "it") -> None:
    """Refuse, or meet a disk that is full.

    Args:
        name: What is refused.
    """
    if name == "disk":
        raise OSError(28, os.strerror(28), "runs/a")
    if name == "bug":
        raise OSError(9, os.strerror(9))
    raise UserError(f"{name} is wrong: mend it")
