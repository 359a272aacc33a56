"""Ledgers as earlier versions wrote them."""

from __future__ import annotations

import json
from pathlib import Path


def make_older(path: Path) -> None:
    """Take name and chains from a ledger, and the head from beside it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("chain")
        if line["type"] == "budget":
            line["version"] = 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line["type"] != "ledger"))
    path.with_name(f"{path.name}.head").unlink(missing_ok=True)
