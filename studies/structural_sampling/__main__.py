"""What only the tables of structural sampling need: programs in ThingTalk, and samplers beside UAT.

python -m studies.structural_sampling TASK
python -m studies.structural_sampling TASK --help     what a task does, and its options
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from doppel.console import dispatch

TASKS = {
    "From a grammar to what a parser learns": {
        "pool": "studies.structural_sampling.schema2qa_pool:pool",
        "templates": "studies.structural_sampling.templates:templates",
        "choose": "studies.structural_sampling.choose:choose",
        "split": "studies.structural_sampling.split_files:split",
        "lispress": "studies.structural_sampling.lispress:lispress",
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one task; exit status."""
    return dispatch.main(TASKS, __doc__ or "", "python -m studies.structural_sampling", argv)


if __name__ == "__main__":
    sys.exit(main())
