"""What `report` adds where a run is an end-to-end adaptation (`slurm/adaptation.sh`)."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

#: Order of the parsers of the paper's Table 3; others follow by name.
ORDER = ("none", "one_stage", "two_stage", "full")
#: What makes two runs comparable, whatever their seeds.
SPLIT_FIELDS = ("fingerprint", "missing_function", "public_share", "test_fingerprint", "test_share", "by")


def adaptation(run_dir: Path) -> dict[str, Any]:
    """The parsers' accuracy, and the data as it was split.

    The files that the stages read depend on the seed (who is private) and on the low-resource parser (their trees), so
    ``data`` names what they were split from, and its fingerprint covers that and the way of the split.

    Args:
        run_dir: Folder of the pipeline.

    Returns:
        ``missing_function``; ``parser_metrics`` by parser (``none``, then by the system whose samples taught it, and
        ``full``, the high-resource parser); ``round_metrics`` by round before the last; ``data`` (``train``,
        ``fingerprint``, ``num_public``, ``num_private``, ``num_test``, ``public_share``, ``by``); ``parser_timings`` in
        seconds by stage; ``parser`` where the run trained its high-resource parser itself, as runs with other seeds do
        too. Empty where the run is no adaptation.
    """
    path = run_dir / "data" / "partition.json"
    if not path.exists():
        return {}
    split = json.loads(path.read_text(encoding="utf-8"))
    files = {file.stem: file for file in (run_dir / "parser_metrics").glob("*.json")}
    names = [name for name in ORDER if name in files] + sorted(files.keys() - set(ORDER))
    values = {name: json.loads(files[name].read_text(encoding="utf-8")) for name in names}
    rounds = {name: values.pop(name) for name in names if re.fullmatch(r"iterative_\d+", name)}
    fingerprint = hashlib.sha256(json.dumps([split[name] for name in SPLIT_FIELDS]).encode()).hexdigest()
    shown = ("public_share", "by", "num_public", "num_private", "num_test", "num_test_with_function")
    own_annotator = {"parser": "parser_full"} if (run_dir / "parser_full").is_dir() else {}
    return {
        **own_annotator,
        "missing_function": split["missing_function"],
        "parser_metrics": values,
        "round_metrics": rounds,
        "data": {"train": split["train"], "fingerprint": fingerprint, **{name: split[name] for name in shown}},
        "parser_timings": stage_seconds(run_dir / ".adaptation"),
    }


def stage_seconds(marks: Path) -> dict[str, int]:
    """Seconds that each finished stage took, in the order they ended, by the marks of slurm/run_stage.sh.

    A mark that somebody made by hand, for a stage done elsewhere, holds no number and is left out.
    """
    files = sorted(marks.glob("*"), key=lambda file: file.stat().st_mtime)
    return {file.name: int(text) for file in files if (text := file.read_text().strip()).isdigit()}


def render_adaptation(report: dict[str, Any]) -> str:
    """Table 3 of the paper as far as the run has it: a line for each parser, in percent."""
    missing = report["missing_function"]
    parts = (f"@{missing}", f"@not {missing}", "")
    metrics = ("exact_match", "api_precision", "api_recall")
    titles = [f"turns with {missing}", "other turns", "all turns"]
    lines = ["", "Parsers: graph match / API precision / API recall, in percent"]
    rows = [("parser", titles)]
    for name, values in (report["parser_metrics"] | report["round_metrics"]).items():
        rows.append((name, [" / ".join(_percent(values.get(f"{m}{part}")) for m in metrics) for part in parts]))
    width = max(len(name) for name, _ in rows)
    columns = [max(len(cells[i]) for _, cells in rows) for i in range(len(parts))]
    for name, cells in rows:
        lines.append(f"{name:{width}}" + "".join(f"  {cell:>{w}}" for cell, w in zip(cells, columns, strict=True)))
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
