"""Doppel: synthetic utterances of an assistant's users, under differential privacy.

python cli.py run EXPERIMENT RUN_DIR    train, sample, evaluate and report
python cli.py COMMAND --help            what a command does, and its options
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from commands import STEPS  # what ``run`` calls, and ``step NAME --config FILE`` by hand
from doppel.console import interrupt
from doppel.console.parent import end_with_named

#: Group of ``--help`` → command → the function that it calls.
COMMANDS = {
    "Train and sample": {
        "run": "commands.run.launch:run",
        "sample": "commands.run.sample:sample",
        "fit": "commands.lightning.train:fit",
        "validate": "commands.lightning.train:validate",
        "test": "commands.lightning.train:test",
        "predict": "commands.lightning.train:predict",
    },
    "Privacy": {
        "plan": "commands.run.plan:plan",
        "norms": "commands.run.preflight.norms:norms",
        "ledger": "commands.run.execution.ledger:ledger",
        "verify": "commands.privacy.verify:verify",
        "export": "commands.privacy.export:export",
        "audit": "commands.privacy.audit:audit",
    },
    "Evaluate and report": {
        "evaluate": STEPS["evaluate"],
        "report": "commands.report.report:report",
    },
    "Annotate and redact": {
        "choose": STEPS["choose"],
        "redact": "commands.redaction.redact:redact",
    },
}

#: What ``--help all`` adds.
MORE = {
    "Where a run stands": {
        "status": "commands.run.status:status",
        "cancel": "commands.run.status:cancel",
    },
    "Redaction": {
        "attack": "commands.redaction.attack:attack",
        "divergence": "commands.redaction.divergence:divergence",
        "perturb": "commands.redaction.perturb:perturb",
    },
    "Labelled samples": {
        "label-accuracy": "commands.quality.labels:label_accuracy",
    },
    "Tables": {
        "metadata": "commands.privacy.metadata:metadata",
        "fill": "commands.data.fill:fill",
    },
}

#: What a command was called before.
ALIASES = {"page": "report"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; see :func:`doppel.console.dispatch.main`."""
    end_with_named()
    from doppel.console import dispatch  # what takes time is imported where Ctrl-C is one line already

    return dispatch.main(COMMANDS, __doc__ or "", "cli.py", argv, MORE, STEPS, ALIASES)


if __name__ == "__main__":
    sys.exit(interrupt.one_line(main))
