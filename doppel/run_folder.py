"""Where the folder of a run is, and its trainings."""

from __future__ import annotations

import glob
from pathlib import Path

#: In the folder of a run from its first moment on: what its steps have made.
MANIFEST = "manifest.json"


def run_of(place: Path) -> Path:
    """Return the run folder that a file, a training or a sampling lies in: RUN of RUN/SYSTEM/STAGE, and of RUN/parser.

    It is the nearest folder above that holds ``manifest.json``, which ``run`` writes before its first step. A training
    by hand has none above it: its run is the folder that it lies in.

    Formal guarantees:
        All trainings of a run find one folder, whichever system they are of, and so one ledger, which composes them.
    """
    return next((folder for folder in place.absolute().parents if (folder / MANIFEST).is_file()), place.parent)


def of_stages(run: Path, pattern: str) -> list[Path]:
    """Return a run's files of a pattern in the folders of its trainings, RUN/STAGE and RUN/SYSTEM/STAGE, in order.

    A folder that goes meanwhile, as a temporary one of another step does, is passed over; ``Path.glob`` would raise.
    """
    forms = (f"*/{pattern}", f"*/*/{pattern}")
    return sorted(run / file for form in forms for file in glob.glob(form, root_dir=run, include_hidden=True))
