"""``python cli.py report``: what came of a run, or of several beside one another."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse.typing import NonNegativeInt, PositiveInt

from commands.report.report_json import build_report, write_report
from commands.report.report_text import render
from commands.report.write import write_page
from commands.run_folder.run_folder import RunFolder
from doppel.console.command import check_options
from doppel.errors import UserError
from doppel.files import try_folder
from doppel.garbage import no_collection


@no_collection()
def report(
    runs: list[Path],
    *,
    out: Path | None = None,
    csv: Path | None = None,
    supported: list[str] | None = None,
    names: str | None = None,
    names_template: Path | None = None,
    topics: PositiveInt | None = None,
    private: bool = False,
    samples: NonNegativeInt = 3,
) -> None:
    """Report on a run, or compare several: tables here, and one HTML file that anybody can open.

    Of one run: what people ask for and the assistant cannot do, how often, in synthetic examples; the privacy card;
    how near the samples come to human requests; how to repeat it. RUN/report.json has every number. Of several: what
    privacy costs, beside the paper's numbers. A cell is then the mean ± the unbiased standard deviation over seeds, and
    runs that differ in another setting never share one. The page asks no network for anything, and all on it is
    released with noise, post-processed or public.

    Example:
        python cli.py report runs/mine

    Args:
        runs: A run folder; several, or a folder of runs, for a comparison.
        out: The page; by default report.html in the run folder, comparison.html in the first folder. Of one run with
            this, nothing else is written.
        csv: Also write every metric of every run here, a line each.
        supported: Functions or labels that the assistant supports, in place of what the experiment says: names, starts
            of names with a star, '!NAME' for one that it lacks; or a file of them, or a .csv table of its API.
        names: A public YAML file of what people call functions, labels and topics, in place of what the experiment
            says, such as configs/names/smcalflow.yaml, which is found by itself for functions of SMCalFlow.
        names_template: Also write the names of the page to this new file, to fill in and give as --names.
        topics: Group samples that have neither trees nor labels by so many topics, and count these.
        private: Also show what the run compared with private text, which is NOT PRIVATE.
        samples: Synthetic utterances to print, of one run.

    Raises:
        UserError: There is no run, or it has no samples; a file is not there; an option belongs to the page of one
            run; nothing that is said to be supported occurs in the samples.
    """
    values = dict(locals())
    records = [record for folder in runs for record in _records(folder)]
    if len(records) != 1 or csv is not None:
        check_options(report, values, "several runs" if csv is None else "--csv", {"runs", "out", "csv"})
        from commands.report.comparison import write_comparison  # pandas, which no --help waits for

        path = out or runs[0] / "comparison.html"
        print(write_comparison(runs, path, csv))
        if csv is not None:
            print(f"{csv} has every metric of every run")
    else:
        (record,) = records
        if out is None:
            try_folder(record.folder)
        try:
            numbers = build_report(record)
        except UserError as error:  # the page says that nothing was measured, and of privacy what the card says
            numbers = None
            sys.stderr.write(f"there is no report.json: {error}\n")
        if numbers is not None and out is None:
            numbers = write_report(record, numbers)
            print(render(numbers, record, samples))
        card = None if numbers is None else numbers.get("card")
        path, notes = write_page(
            record,
            numbers,
            card,
            supported=supported,
            names=names,
            names_template=names_template,
            topics=topics,
            with_private=private,
            out=out,
        )
        print("".join(f"note: {note}\n" for note in notes), end="")
        if numbers is not None and out is None and not private:  # which is sent nowhere
            from callbacks.wandb_artifacts import harmless
            from commands.lightning.quiet import silence
            from commands.report.wandb_report import log_report

            silence("report")
            with harmless():
                log_report(record, numbers)
    print(f"The page: {path} (open it in a browser; it asks no network for anything)")


def _records(folder: Path) -> list[RunFolder]:
    """The run that a folder is, or those that it holds."""
    found = list(RunFolder.find(folder))
    if not found:
        raise UserError(f"{folder} holds no run: give a run folder, or several")
    return [record for record in found if record.folder == folder] or found
