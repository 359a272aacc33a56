"""Doppel's one entry point.

    python cli.py fit|validate|test|predict --config …    training and sampling (LightningCLI)
    python cli.py COMMAND …                               everything else

``python cli.py COMMAND --help`` explains each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from doppel.console import dispatch

COMMANDS = {
    "run": "commands.launch.run:run",
    "fit": "commands.launch.train:fit",
    "validate": "commands.launch.train:validate",
    "test": "commands.launch.train:test",
    "predict": "commands.launch.train:predict",
    "sync": "commands.launch.sync:sync",
    "plan": "doppel.console.plan:plan",
    "ledger": "commands.privacy.ledger:ledger",
    "evaluate": "commands.evaluation.evaluate:evaluate",
    "parser-metrics": "commands.evaluation.parser_metrics:parser_metrics",
    "classify": "commands.evaluation.classify:classify",
    "round-trip": "commands.evaluation.round_trip:round_trip",
    "match-labels": "commands.evaluation.match_labels:match_labels",
    "select": "commands.evaluation.select:select",
    "templates": "commands.selection.templates:templates",
    "sample-diverse": "commands.selection.sample_diverse:sample_diverse",
    "to-annotators": "commands.selection.annotators:to_annotators",
    "from-annotators": "commands.selection.annotators:from_annotators",
    "compositional-split": "commands.selection.compositional_split:compositional_split",
    "report": "commands.results.report:report",
    "page": "commands.results.page.page:page",
    "export": "commands.results.export:export",
    "results": "commands.results.results:results",
    "norms": "commands.privacy.norms:norms",
    "verify": "commands.privacy.verify:verify",
    "audit": "commands.privacy.audit:audit",
    "histogram": "commands.privacy.histogram:histogram",
    "calibrate": "commands.privacy.calibrate:calibrate",
    "download": "commands.data.download:download",
    "schema2qa-pool": "commands.data.schema2qa_pool:schema2qa_pool",
    "tokenizer": "commands.data.tokenizer:tokenizer",
    "partition": "commands.data.partition:partition",
    "upweight": "commands.data.upweight:upweight",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; see :func:`doppel.console.dispatch.main`."""
    return dispatch.main(COMMANDS, __doc__ or "", "cli.py", argv)


if __name__ == "__main__":
    sys.exit(main())
