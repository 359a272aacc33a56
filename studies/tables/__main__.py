"""Tables of docs/results/details.md that no single run makes.

python -m studies.tables TASK
python -m studies.tables TASK --help     what a task does, and its options
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from doppel.console import dispatch

TASKS = {
    "Tables of docs/results/details.md": {
        "evolution": "studies.tables.evolution:main",
        "metadata": "studies.tables.metadata:main",
        "optimizers": "studies.tables.optimizers:main",
        "tree-names": "studies.tables.tree_names:main",
        "usable": "studies.tables.usable:main",
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one task; exit status."""
    return dispatch.main(TASKS, __doc__ or "", "python -m studies.tables", argv)


if __name__ == "__main__":
    sys.exit(main())
