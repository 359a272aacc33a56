"""``python cli.py results``: runs beside the paper's numbers, as Markdown, as one CSV and as a figure."""

from __future__ import annotations

from pathlib import Path

from doppel.files import whole_file


def results(runs: list[Path], *, csv: Path | None = None, figure: Path | None = None) -> None:
    """Print tables of all runs below some folders, beside the paper's numbers.

    A cell is the mean ± the unbiased standard deviation over seeds; runs that differ in a setting never share one.
    ε is what one run promises: whoever releases several runs on the same people spends all of them together.

    Args:
        runs: Folders at or below which runs lie.
        csv: Also write every metric of every run, a line each.
        figure: Also draw metrics against ε: a .svg, .pdf or .png.

    Raises:
        UserError: There is no run, none with numbers, or a file cannot be written.
    """
    from commands.quality.frame import counted, pool, read_runs, write_csv  # pandas, which no --help waits for
    from commands.quality.tables import beside_paper, draw, markdown, sections

    frame, problems = read_runs(runs)
    frame, notes = counted(frame)
    for own, context in sections(pool(frame)):
        print("\n".join([f"\n{context}\n" if context else "", markdown(beside_paper(own))]))
    print("".join(f"\nleft out: {line}" for line in [*problems, *notes]))
    if csv is not None:
        write_csv(frame, csv)
        print(f"{csv} has every metric of every run")
    if figure is not None:
        with whole_file(figure) as file:
            draw(frame).savefig(file, format=figure.suffix[1:] or "png", dpi=160, bbox_inches="tight")
        print(f"{figure} shows them against ε")
