"""The tables of redaction, and two measures that only they need.

python -m studies.redaction TASK
python -m studies.redaction TASK --help     what a task does, and its options
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from doppel.console import dispatch

TASKS = {
    "Tables of docs/results/details.md": {
        "attacks": "studies.redaction.attacks:main",
        "next-word": "studies.redaction.next_word:main",
        "replay": "studies.redaction.replay:main",
        "orders": "studies.redaction.orders:main",
    },
    "Measures": {
        "epsilon": "studies.redaction.epsilon:epsilon",
        "closeness": "studies.redaction.closeness:closeness",
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one task; exit status."""
    return dispatch.main(TASKS, __doc__ or "", "python -m studies.redaction", argv)


if __name__ == "__main__":
    sys.exit(main())
