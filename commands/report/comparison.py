"""Several runs beside one another: what privacy costs, with seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from commands.privacy.coverage import of_same_data
from commands.quality.frame import HUMAN, counted, pool, read_runs, write_csv
from commands.quality.measures import LEAST_FOR_MAUVE, SHOWN, measure
from commands.quality.tables import beside_paper, lines, sections, table
from commands.report import charts
from commands.report.html import render
from commands.run_folder.places import public_names
from commands.run_folder.run_folder import RunFolder
from doppel.errors import UserError
from doppel.files import write_text


def write_comparison(runs: Sequence[Path], out: Path, csv: Path | None = None) -> str:
    """Write the comparison of several runs, pooled over seeds, beside the paper's numbers.

    Formal guarantees:
        What it shows are the runs' own metrics of samples and what they spent: nothing that a page of one run would not
        show. ε is what one run promises; beside it stands what the runs on one data set promise together.

    Args:
        runs: Folders at or below which runs lie.
        out: The page.
        csv: Also every metric of every run, a line each.

    Returns:
        The tables as Markdown, and what was left out.

    Raises:
        UserError: There is no run, or none has a number.
    """
    frame, problems = read_runs([run.resolve() for run in runs])
    frame, notes = counted(frame)
    is_rough = frame["metric"].str.startswith("mauve_") & (frame["num_compared"] < LEAST_FOR_MAUVE)
    if is_rough.any():
        notes = [*notes, f"MAUVE of fewer than {LEAST_FOR_MAUVE} samples"]
    left_out = [*problems, *notes]
    if frame.empty:
        raise UserError(f"no run has a number: {'; '.join(left_out) or 'none has metrics'}")
    if csv is not None:
        write_csv(frame, csv)
    records = {record.folder.resolve(): record for run in runs for record in RunFolder.find(run)}.values()
    together = of_same_data(records)
    parts = list(sections(frame[frame["metric"].isin(SHOWN) & frame["value"].notna() & ~is_rough]))
    tables = [table(beside_paper(pool(own))) for own, _ in parts]
    content = render(
        "comparison.html",
        title=f"Privacy against quality: {', '.join(sorted(set(frame['experiment'])))}",
        sections=[
            {
                "title": own["data"].iloc[0],
                "setting": context,
                "table": made,
                "figures": list(_figures(lines(own[own["system"] != HUMAN]))),
            }
            for (own, context), made in zip(parts, tables, strict=True)
        ],
        together=together,
        problems=left_out,
        runs=sorted(set(frame["run"])),
        command=f"python cli.py report {' '.join(public_names(str(run.resolve())) for run in runs)}",
    )
    write_text(out, content)
    texts = [f"\n{context}\n\n{made.markdown()}" for (_, context), made in zip(parts, tables, strict=True)]
    return "\n".join([*texts, *together, *(f"left out: {line}" for line in left_out)])


def _figures(drawn: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """A picture of each metric against ε."""
    for name in (name for name in SHOWN if name in set(drawn["metric"])):
        own, of = drawn[drawn["metric"] == name], measure(name)
        means = own.groupby(["line", "ε"], sort=False)["value"].mean()
        told = "; ".join(f"{line}: {value:.3g} at ε = {epsilon}" for (line, epsilon), value in means.items())
        picture = charts.curves(own, f"{of.label} against ε", told)
        has_deviation = own.duplicated(["line", "ε"]).any()
        yield {"picture": picture, "label": of.label, "better": of.better, "has_deviation": has_deviation}
