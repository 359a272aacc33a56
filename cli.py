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
    "run": "commands.pipeline.run:run",
    "fit": "commands.lightning.train:fit",
    "validate": "commands.lightning.train:validate",
    "test": "commands.lightning.train:test",
    "predict": "commands.lightning.train:predict",
    "plan": "doppel.console.plan:plan",
    "ledger": "commands.privacy.ledger:ledger",
    "evaluate": "commands.quality.evaluate:evaluate",
    "parser-metrics": "commands.quality.parser_metrics:parser_metrics",
    "classify": "commands.quality.classify:classify",
    "round-trip": "commands.quality.round_trip:round_trip",
    "match-labels": "commands.quality.match_labels:match_labels",
    "templates": "commands.annotate.templates:templates",
    "sample-diverse": "commands.annotate.sample_diverse:sample_diverse",
    "to-annotators": "commands.annotate.annotators:to_annotators",
    "from-annotators": "commands.annotate.annotators:from_annotators",
    "compositional-split": "commands.annotate.compositional_split:compositional_split",
    "report": "commands.quality.report:report",
    "page": "commands.page.page:page",
    "export": "commands.privacy.export:export",
    "results": "commands.quality.results:results",
    "norms": "commands.privacy.norms:norms",
    "verify": "commands.privacy.verify:verify",
    "audit": "commands.privacy.audit:audit",
    "histogram": "commands.privacy.histogram:histogram",
    "calibrate": "commands.privacy.calibrate:calibrate",
    "download": "commands.data.download:download",
    "schema2qa-pool": "commands.data.schema2qa_pool:schema2qa_pool",
    "partition": "commands.data.partition:partition",
    "upweight": "commands.data.upweight:upweight",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; see :func:`doppel.console.dispatch.main`."""
    return dispatch.main(COMMANDS, __doc__ or "", "cli.py", argv)


if __name__ == "__main__":
    sys.exit(main())
